# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check a group's module_defaults with the real ansible-playbook.

The defaults must apply to every module in the group.
"""

from __future__ import annotations

import json
import os
import subprocess

import pytest
import yaml

from tests.integration.simulated_host import ROOT
from tests.integration.warm_ansible import interpreter
from tests.lab import warm_playbook

#: Modules that take a layout. The test gives each of them an invalid layout, which the error must name.
LAYOUTS = ["layout", "mig", "mps", "time_slicing", "vgpu_quota"]
REFUSED = [{"gpus": [0], "sharing": "by the defaults of the group"}]
#: The modules for audits, without right-sizing, which requires NumPy.
AUDITS = ["audit"]


@pytest.mark.core
def test_defaults_of_a_group_reach_its_modules(tmp_path):
    state = tmp_path / "state by the defaults of the group"
    tasks = [{f"openfleet.gpu.{name}": {}, "register": name, "ignore_errors": True} for name in LAYOUTS + AUDITS]
    drain = {"openfleet.gpu.drain": {"state": "drained", "services": []}, "register": "drain"}
    told = {"ansible.builtin.copy": {"content": "{{ said | to_json }}", "dest": str(tmp_path / "said.json")}}
    told["vars"] = {"said": {name: "{{ %s.msg | default('') }}" % name for name in LAYOUTS + AUDITS}}
    play = {
        "hosts": "localhost",
        "gather_facts": False,
        "module_defaults": {
            "group/openfleet.gpu.layout": {"layout": REFUSED},
            "group/openfleet.gpu.state": {"state_directory": str(state)},
            "group/openfleet.gpu.audit": {"window": "by the defaults of the group"},
        },
        "vars": {"ansible_python_interpreter": str(interpreter(tmp_path / "python3"))},
        "tasks": [*tasks, drain, told],
    }
    playbook = tmp_path / "play.yml"
    playbook.write_text(yaml.safe_dump([play]))
    command = [
        *warm_playbook.COMMAND,
        "-i",
        "localhost,",
        "-c",
        "local",
        str(playbook),
    ]
    environment = dict(os.environ, ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"), ANSIBLE_NOCOLOR="1")
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 0, run.stdout + run.stderr
    said = json.loads((tmp_path / "said.json").read_text())
    assert {name: "by the defaults of the group" in message for name, message in said.items()} == dict.fromkeys(
        said, True
    )
    assert set(said) == {*LAYOUTS, *AUDITS}
    assert state.is_dir(), "the lock and the record of a drain are in it"
