# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test how the role gpu_layout installs pynvml.

The real pip installs it from an index, or the controller sends it.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml import calls
from tests.integration.warm_ansible import interpreter
from tests.lab import warm_playbook
from tests.unit.wheel_files import wheel

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
    """Return a function that runs both installation steps.

    The host has an index. The function returns the exit status and the output.
    """
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


def test_pip_installs_only_wheels_with_known_hashes(run, tmp_path):
    folder = tmp_path / "python"
    status, said = run(GOOD)
    assert status != 0
    assert "localhost: gpu_layout_nvml_version: it is 12.1, but the collection has only hashes of " in said
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


COPY = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_role: {name: openfleet.gpu.gpu_layout, tasks_from: nvml_controller}
"""


def test_controllers_pynvml_is_copied_unless_the_plan_found_it(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("the files are root's: run as root")
    play, brought = tmp_path / "play.yml", tmp_path / "python" / "pynvml.py"
    play.write_text(COPY)

    def copy(**seen):
        variables = {
            "ansible_python_interpreter": sys.executable,
            "gpu_layout": [],
            "gpu_layout_nvml_directory": str(brought.parent),
            **seen,
        }
        command = [*warm_playbook.COMMAND, "-i", "localhost,", "-c", "local", str(play), "-e", json.dumps(variables)]
        environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return "changed=1" in done.stdout

    right = hashlib.sha256(Path(pynvml.__file__).read_bytes()).hexdigest()
    assert not copy(gpu_layout__pynvml_seen=right) and not brought.exists()
    assert copy(gpu_layout__pynvml_seen="") and brought.read_bytes() == Path(pynvml.__file__).read_bytes()
    brought.write_text("# another one")
    assert copy(gpu_layout__pynvml_seen=hashlib.sha256(brought.read_bytes()).hexdigest())
    brought.write_text("# another one")
    assert copy()


def test_plan_accepts_pynvml_only_if_root_alone_can_write_it(tmp_path, monkeypatch):
    if os.geteuid() != 0:
        pytest.skip("the files are root's: run as root")
    folder = tmp_path / "python"
    monkeypatch.setattr(calls, "BINDING_DIRECTORY", str(folder))
    assert calls.installed_binding() == ""
    folder.mkdir()
    folder.chmod(0o755)
    file = folder / "pynvml.py"
    file.write_text("pass\n")
    file.chmod(0o644)
    right = hashlib.sha256(b"pass\n").hexdigest()
    assert calls.installed_binding() == right
    for path, good, owners in ((file, 0o644, ((1, 0), (0, 1))), (folder, 0o755, ((1, 0),))):
        for more in (0o020, 0o002):
            path.chmod(good | more)
            assert calls.installed_binding() == ""
            path.chmod(good)
        for owner in owners:
            os.chown(path, *owner)
            assert calls.installed_binding() == ""
            os.chown(path, 0, 0)
    # Directories below /usr/local on Debian can have this owner and mode.
    os.chown(folder, 0, 50)
    folder.chmod(0o2755)
    assert calls.installed_binding() == right
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert calls.installed_binding() == ""
