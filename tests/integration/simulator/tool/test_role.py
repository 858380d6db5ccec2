# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the role gpu_simulator with a directory that represents the host."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.integration.warm_ansible import interpreter
from tests.lab import warm_playbook

REPOSITORY = Path(__file__).resolve().parents[4]


def play(folder, root, *options):
    """Run the role with one T4, and return the exit status and the output."""
    tasks = [{"ansible.builtin.include_role": {"name": "openfleet.gpu.gpu_simulator"}}]
    # The role has no variable for the root directory. The test sets the module's default, so that the role does not
    # change this machine.
    defaults = {"openfleet.gpu.gpu_simulator": {"root": str(root)}}
    plays = [{"hosts": "all", "gather_facts": False, "module_defaults": defaults, "tasks": tasks}]
    (folder / "play.json").write_text(json.dumps(plays))
    variables = {
        "ansible_connection": "local",
        "ansible_python_interpreter": str(interpreter(folder / "python3", {"CFLAGS": "-O0"})),
        "gpu_simulator_gpus": [{"model": "T4-16GB"}],
    }
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": {"h1": variables}}}))
    command = [*warm_playbook.COMMAND, "-i", str(folder / "hosts.json"), *options, str(folder / "play.json")]
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"),
        "ANSIBLE_COLLECTIONS_PATH": str(REPOSITORY / "collections"),
        "NO_COLOR": "1",
    }
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.returncode, done.stdout + done.stderr


def test_dry_run_on_a_bare_host_predicts_and_installs_nothing(tmp_path):
    root = tmp_path / "root"
    status, said = play(tmp_path, root, "--check")
    assert status == 0, said
    assert "changed=1 " in said, said
    assert not root.exists()
