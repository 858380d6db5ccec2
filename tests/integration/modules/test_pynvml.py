# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the role gpu_layout brings pynvml from an index: by the real pip, with a folder for an index."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import warm_playbook
from warm_ansible import interpreter
from wheel_files import wheel

ROOT = Path(__file__).resolve().parents[3]
PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_role: {name: openfleet.gpu.gpu_layout, tasks_from: nvml_check}
    - ansible.builtin.include_role: {name: openfleet.gpu.gpu_layout, tasks_from: nvml_index}
"""
ALTERED, GOOD = "import os", ""


@pytest.fixture
def run(tmp_path):
    """Run both on a host that has a wheel in its index; return the exit status and the output."""
    if os.geteuid() != 0:
        pytest.skip("the files are root's: run as root")
    index = tmp_path / "index"
    index.mkdir()
    play = tmp_path / "play.yml"
    play.write_text(PLAY)
    environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PATH": os.environ["PATH"]}
    python = interpreter(tmp_path / "python3", environment)

    def one(code, *hashes):
        wheel(index, "nvidia-ml-py", "12.1", module="pynvml", code=code)
        variables = {
            "ansible_python_interpreter": str(python),
            "gpu_layout": [],
            "gpu_layout_nvml_source": "index",
            "gpu_layout_nvml_version": "12.1",
            "gpu_layout_nvml_hashes": hashes,
            "gpu_layout_nvml_directory": str(tmp_path / "python"),
        }
        done = subprocess.run(
            [
                *warm_playbook.COMMAND,
                *("-i", "localhost,", "-c", "local", str(play), "-e", json.dumps(variables)),
            ],
            env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    return one


def test_pip_takes_a_wheel_with_a_known_hash_and_no_other(run, tmp_path):
    folder = tmp_path / "python"
    status, said = run(GOOD)
    assert status != 0
    assert "localhost: gpu_layout_nvml_version: it is 12.1, and gpu_layout_nvml_hashes is empty" in said
    assert not folder.exists()
    (tmp_path / "elsewhere").mkdir()
    known = "sha256:" + wheel(tmp_path / "elsewhere", "nvidia-ml-py", "12.1", module="pynvml")
    status, said = run(ALTERED, known)
    assert status != 0 and "DO NOT MATCH THE HASHES" in said
    assert not (folder / "pynvml.py").exists()
    status, said = run(GOOD, known)
    assert status == 0, said
    assert (folder / "pynvml.py").read_text().startswith("__version__ = '12.1'")
    assert "changed=0" in run(GOOD, known)[1]
