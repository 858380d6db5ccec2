# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test hosts whose tasks hang.

Playbooks that only read must name the host and continue with the other hosts. The test uses a copy of the playbooks
with short timeouts.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.patience import PATIENCE_SECONDS
from tests.integration.simulated_fleet import Fleet
from tests.integration.simulated_host import ROOT

LAYOUT = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}]
LIMIT_SECONDS = 20


@pytest.fixture(name="fleet")
def of_two_hosts_of_which_one_hangs(host, library, tmp_path):
    fleet = Fleet(tmp_path, library, ["well", "hangs"])
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 3600\n")
    silent.chmod(0o755)
    fleet.more["hangs"] = {"ansible_python_interpreter": str(silent)}
    return fleet


@pytest.fixture(name="collections")
def of_a_copy_with_short_limits(tmp_path):
    copy = tmp_path / "collections" / "ansible_collections" / "openfleet" / "gpu"
    copy.mkdir(parents=True)
    for name in ("plugins", "meta", "galaxy.yml"):
        (copy / name).symlink_to(ROOT / name)
    for name in ("playbooks", "roles"):
        shutil.copytree(ROOT / name, copy / name)
    changed = 0
    for path in [*copy.glob("playbooks/*.yml"), *copy.glob("roles/*/tasks/*.yml")]:
        text = path.read_text(encoding="utf-8")
        short, count = re.subn(r"^( *)timeout: \d+$", r"\1timeout: %d" % LIMIT_SECONDS, text, flags=re.MULTILINE)
        path.write_text(short, encoding="utf-8")
        changed += count
    assert changed
    return copy.parents[2]


def play(fleet, collections: Path, playbook: str, *arguments: str) -> subprocess.CompletedProcess:
    fleet.execute = lambda command, environment, folder: subprocess.run(
        command,
        env=dict(environment, ANSIBLE_COLLECTIONS_PATH=str(collections)),
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=2 * PATIENCE_SECONDS,
    )
    path = collections / "ansible_collections" / "openfleet" / "gpu" / "playbooks" / playbook
    return fleet.play(dict.fromkeys(fleet.hosts, LAYOUT), *arguments, playbook=path)


def test_hanging_host_has_no_plan_and_can_be_tolerated(fleet, collections):
    refused = play(fleet, collections, "site.yml", "--check")
    said = refused.stdout + refused.stderr
    assert refused.returncode != 0, said
    assert "No plan for hangs (its error is above)" in said, said
    done = play(fleet, collections, "site.yml", "-e", "gpu_site_tolerate=1")
    said = done.stdout + done.stderr
    assert re.search(r"fatal: \[hangs\]: FAILED! => .*?no plan \(its error is above\)", said, re.DOTALL), said
    assert "did not answer within %d s" % LIMIT_SECONDS in said, said
    assert fleet.hosts["well"].seen()[0] == [("3g.40gb", 0), ("3g.40gb", 4)], said


@pytest.mark.parametrize("playbook", ["audit.yml", "rightsize.yml"])
def test_reporting_playbooks_continue_and_name_a_hanging_host(fleet, collections, playbook, tmp_path):
    folder = tmp_path / "reports"
    name = playbook.partition(".")[0]
    run = play(fleet, collections, playbook, "-e", "gpu_%s_dir=%s" % (name, folder))
    said = run.stdout + run.stderr
    # The following task ran for both hosts, so the play continued.
    assert "Timed out after %d second" % LIMIT_SECONDS in said or "expected time frame" in said, said
    assert re.search(r"^well +: ok=\d+ .*failed=0", run.stdout, re.MULTILINE), said
    assert re.search(r"^localhost +: ok=\d+", run.stdout, re.MULTILINE), said
