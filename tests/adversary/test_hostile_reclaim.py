# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Forge announcements on a host, and check how Ansible handles them.

Ansible must send mail only to the site's domain, and the log must stay readable.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.adversary.attackers import ROOT, HostileHost, play, said
from tests.audit.rightsize_hosts import gpu, state
from tests.integration.warm_ansible import interpreter
from tests.unit.plugin_utils.rightsize.test_reclaim_told import mailbox, row

__all__ = ["mailbox"]

DAY = 86400


class Site:
    """Run only the play that reclaims.

    A variable lists the workloads, as an audit would.
    """

    def __init__(self, folder: Path, server: str) -> None:
        self.folder, self.server = folder, server

    def play(self, noticed, *arguments: str):
        answer = state(gpu("bad", 0, "H100-80GB", "idle.service"))
        answer.update(noticed=noticed, stopped=[], spared=[])
        self.host = HostileHost(self.folder / "bad", answer)
        playbook = self.folder / "reclaim.yml"
        playbook.write_text(yaml.safe_dump(yaml.safe_load((ROOT / "playbooks/rightsize.yml").read_text())[-1:]))
        listed = [
            {"host": "bad", "kind": "unit", "name": "idle.service", "runtime": "", "gpus": ["GPU-0"], "spared": ""}
        ]
        local = {
            "ansible_connection": "local",
            "ansible_python_interpreter": str(interpreter(self.folder / "python3")),
            "gpu_rightsize_reclaim": "act",
            "gpu_rightsize_result": {"reclaim": listed, "reclaim_grace_seconds": 1},
            "gpu_rightsize_tell": {"notice_seconds": DAY, "host_ways": [], "tells": True},
        }
        site = {
            "gpu_rightsize_dir": str(self.folder),
            "gpu_rightsize_reclaim_tell": [{"to": "{user}@example.org", "server": self.server}],
        }
        inventory = {
            "gpu_hosts": {"hosts": {"bad": self.host.variables}},
            "all": {"hosts": {"localhost": local}, "vars": site},
        }
        return play(self.folder, playbook, inventory, *arguments)

    @property
    def log(self) -> list[dict]:
        return [json.loads(line) for line in (self.folder / "reclaim.log").read_text().splitlines()]

    @property
    def asked(self) -> int:
        """Return how often a module ran on the host."""
        return len(self.host.asked.read_text().splitlines())


@pytest.fixture
def site(tmp_path, mailbox):
    return Site(tmp_path, mailbox.server)


def test_notice_counts_only_after_owners_got_mail(site, mailbox):
    done = site.play([row("idle.service", "alice")])
    assert done.returncode == 0, said(done)
    ((to, mail),) = mailbox.mails
    assert to == ["alice@example.org"] and "gpu-layout keep idle.service 3d" in mail.get_content()
    assert "Service idle.service on bad holds" in mail.get_content()
    assert [(line["told"], line["untold"]) for line in site.log] == [(["alice@example.org"], [])]
    # The module ran once to announce the notice, and once to confirm it.
    assert site.asked == 2


def test_unreachable_owner_is_named_and_notice_does_not_count(site, mailbox):
    done = site.play([row("idle.service", "nobody")])
    assert done.returncode != 0 and "the notification was not sent" in said(done)
    assert mailbox.mails == [] and site.asked == 1
    assert site.log[0]["told"] == [] and "no such user" in site.log[0]["untold"][0]


def test_dry_run_notifies_no_owner(site, mailbox):
    assert site.play([row("idle.service", "alice")], "--check").returncode == 0
    assert mailbox.mails == [] and site.asked == 1


WORDS = "{{ lookup('pipe', 'touch PWNED') }}"


@pytest.mark.parametrize(
    "noticed",
    [
        [row("idle.service", "alice", places=["x"] * 1000, keep=WORDS), row(WORDS, "alice@evil.org, x")],
        [row("idle.service", "alice")] * 300,
        WORDS,
    ],
    ids=["much", "hundreds", "no list"],
)
def test_notice_text_cannot_add_receivers_or_run_commands(site, mailbox, noticed):
    site.play(noticed)
    assert not list(site.folder.rglob("PWNED")) and not (ROOT / "PWNED").exists()
    assert len(mailbox.mails) <= 1
    for to, mail in mailbox.mails:
        assert to == ["alice@example.org"] and len(mail.get_content()) < 10_000
