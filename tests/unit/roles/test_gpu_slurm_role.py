# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Count how often the role gpu_slurm restarts slurmctld for several nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# This program replaces systemctl. The file `started` has the time of the last start.
SYSTEMCTL = """#!/bin/sh
echo "$@" >> {folder}/calls
case "$1" in
show) cat {folder}/started ;;
restart) [ ! -e {folder}/fails ] || exit 1; echo $(($(cat {folder}/started) + 1)) > {folder}/started ;;
esac
"""


@pytest.fixture
def restarted(tmp_path):
    """Return a function that runs the task file for a number of nodes.

    The function returns the exit status and the number of restarts.
    """
    program = tmp_path / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(SYSTEMCTL.format(folder=tmp_path))
    program.chmod(0o755)
    (tmp_path / "started").write_text("7\n")

    def run(nodes):
        (tmp_path / "calls").write_text("")
        local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        hosts = dict.fromkeys([*("node%d" % number for number in range(nodes)), "ctl"], local)
        (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
        play = {
            "hosts": "all:!ctl",
            "gather_facts": False,
            "vars": {"gpu_slurm_controllers": ["ctl"]},
            "tasks": [{"ansible.builtin.include_tasks": str(ROOT / "roles/gpu_slurm/tasks/restart.yml")}],
        }
        (tmp_path / "play.json").write_text(json.dumps([play]))
        command = ["ansible-playbook", "--forks=8", "-i", str(tmp_path / "hosts.json"), str(tmp_path / "play.json")]
        path = "%s:%s" % (program.parent, os.environ["PATH"])
        environment = {**os.environ, "PATH": path, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        calls = (tmp_path / "calls").read_text().splitlines()
        assert calls.count("show --value --property=ExecMainStartTimestampMonotonic slurmctld") >= nodes, done.stdout
        return done.returncode, calls.count("restart slurmctld")

    run.folder = tmp_path
    return run


@pytest.mark.slow
def test_nodes_of_a_wave_share_one_restart(restarted):
    assert restarted(6) == (0, 1)
    # The nodes of the next wave have other files, so slurmctld restarts once more.
    assert restarted(2) == (0, 1)


@pytest.mark.slow
def test_nodes_that_run_one_after_the_other_restart_it_themselves(restarted):
    assert restarted(1) == (0, 1)
    assert restarted(1) == (0, 1)


@pytest.mark.slow
def test_failed_restart_fails_all_nodes(restarted):
    (restarted.folder / "fails").touch()
    # Each node tries to restart slurmctld again.
    assert restarted(2) == (2, 2)
