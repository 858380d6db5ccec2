# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test how idle Slurm jobs are found, announced to their users and cancelled.

Slurm, Prometheus, the playbooks and the mail server are real. The tests generate the GPUs' history.
"""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from slurm_host import INVENTORY, layout

from tests.audit.fleet_history import AT_REST, CLEAR, NOBODY, Device, prometheus, steady
from tests.audit.mailbox import mailbox
from tests.lab.lab_fixtures import REPOSITORY

__all__ = ["mailbox"]

pytestmark = pytest.mark.thorough
USER = "alice"
# Length of the history in hours.
HOURS = 50
RUNNING = "JobState=RUNNING Restarts=0"


class IdleJob:
    """A user's job that holds a GPU and has run no process for two days.

    The other GPUs were free.
    """

    def __init__(self, host, folder):
        self.host, self.folder, self.url = host, folder, ""
        host.reset(layout())
        host.ask(f"id {USER} >/dev/null 2>&1 || useradd --create-home {USER}")
        batch = "cd /tmp && sbatch --parsable --output=/dev/null --gres=gpu:h100:1 --wrap 'sleep 1d'"
        self.job = host.ask(f'runuser -u {USER} -- sh -c "{batch}"').strip()
        host.wait_until(f"squeue --noheader --states R --jobs {self.job} | grep -q .")
        self.gpus = host.module("gpu_info", telemetry=False, holders=True)["gpus"]
        (self.gpu,) = [gpu["uuid"] for gpu in self.gpus if any(one["kind"] == "slurm" for one in gpu["holders"])]

    def history(self):
        """Return the recorded history of each GPU."""
        held = {("gpu:held", "kind", "slurm"): steady(1)}
        at_rest = {**AT_REST, "gpu:processes": steady(0), "gpu:processes:max5m": steady(0)}
        return [
            Device("one", gpu["index"], series=at_rest, labelled=held, known_uuid=gpu["uuid"])
            if gpu["uuid"] == self.gpu
            else Device("one", gpu["index"], series=NOBODY, labelled=CLEAR, known_uuid=gpu["uuid"])
            for gpu in self.gpus
        ]

    def play(self, playbook, **variables):
        """Run a playbook, and return its report."""
        given = {"gpu_audit_prometheus": {"url": self.url}, "gpu_audit_window": f"{HOURS}h", **variables}
        given.update(gpu_audit_dir=str(self.folder), gpu_rightsize_dir=str(self.folder))
        command = ["ansible-playbook", "-i", str(INVENTORY), f"playbooks/{playbook}.yml", "-e", json.dumps(given)]
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
        return json.loads((self.folder / f"{playbook}.json").read_text())


@pytest.fixture(scope="module")
def idle(host, tmp_path_factory):
    folder = tmp_path_factory.mktemp("idle")
    found = IdleJob(host, folder)
    (folder / "prometheus").mkdir()
    with prometheus(found.history(), HOURS, folder / "prometheus") as found.url:
        yield found


def test_idle_job_is_found_with_its_user(idle):
    thresholds = {"least_history_hours": 0, "idle_hours": 24, "new_holder_hours": 24}
    findings = idle.play("audit", gpu_audit_thresholds=thresholds)["findings"]
    verdicts = {row["holding"]["subject"]["gpu_uuid"]: row["verdict"] for row in findings}
    held = verdicts.pop(idle.gpu)
    assert held["word"] == "held_without_process", held
    assert f"Slurm job {idle.job} (wrap) of user {USER}. No process runs on it." in held["reason"]
    assert [verdict["word"] for verdict in verdicts.values()] == ["free"] * 3


def test_idle_job_is_announced_and_cancelled_only_if_the_inventory_allows_it(idle, mailbox):
    def act(jobs):
        idle.play(
            "rightsize",
            gpu_rightsize_thresholds={"least_history_hours": 0, "idle_hours": 1, "new_holder_hours": 1},
            gpu_rightsize_reclaim="act",
            gpu_rightsize_reclaim_grace="1h",
            gpu_rightsize_reclaim_look_seconds=2,
            gpu_rightsize_reclaim_notice="0.001m",
            gpu_rightsize_reclaim_tell=[{"to": "{user}@example.org", "server": mailbox.server, "tls": ""}],
            gpu_rightsize_reclaim_jobs=jobs,
        )

    host = idle.host
    # The job is younger than an hour.
    act("cancel")
    assert mailbox.mails == [] and host.state(idle.job) == RUNNING

    host.move_start(idle.job, HOURS * 3600)
    act("spare")
    assert mailbox.mails == []
    act("notify")
    act("notify")
    ((receivers, mail),) = mailbox.mails
    assert receivers == [f"{USER}@example.org"] and f"scancel {idle.job}" in mail.get_content()
    assert host.state(idle.job) == RUNNING

    # The first run announces the cancellation, and the second run cancels the job.
    act("cancel")
    assert host.state(idle.job) == RUNNING
    act("cancel")
    assert host.state(idle.job).startswith("JobState=CANCELLED")
    assert "AdminComment=openfleet.gpu" in host.ask(f"scontrol show job {idle.job}")
    assert ["will be cancelled" in mail.get_content() for _to, mail in mailbox.mails] == [False, True, False]
    assert "was cancelled" in mailbox.mails[2][1].get_content()
