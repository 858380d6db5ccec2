# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that runs of ansible-playbook end in a forked process as in a new one."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.patience import wait_until
from tests.lab import warm_playbook

#: This program starts two runs, and prints the exit status and output of each.
MAKER = """
import subprocess, sys
for arguments in (["ok.yml"], ["ok.yml", "-e", "word=second", "-e", "wrong=1"]):
    done = subprocess.run([*%r, *arguments], capture_output=True, text=True)
    print("status", done.returncode)
    print(done.stdout + done.stderr)
"""
PLAY = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.debug: {msg: "said {{ word | default('first') }} by {{ lookup('env', 'OPENFLEET_SAID') }}"}
    # What a module is given, and the Python that programs are given to.
    - ansible.builtin.command: {argv: [sh, -c, "echo module of $OPENFLEET_SAID in $PWD with $(umask)"]}
      register: module
    - ansible.builtin.command: {argv: ["{{ ansible_playbook_python }}", -c, "{{ script }}", word]}
      vars: {script: "import os, sys; print(os.path.realpath(sys.executable), sys.argv)"}
      register: program
    - ansible.builtin.debug: {msg: "{{ module.stdout_lines + program.stdout_lines }}"}
    - ansible.builtin.fail:
      when: wrong is defined
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "ok.yml").write_text(PLAY)
    (tmp_path / "ansible.cfg").write_text("[defaults]\nforks = 2\n")
    return tmp_path


def environment(place) -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {
        **found,
        "ANSIBLE_CONFIG": str(place / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_HOME": str(place / "home"),
        "OPENFLEET_SAID": "the caller",
    }


def processes(place) -> set[int]:
    """Return the pids of the processes that have this test's environment."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if b"ANSIBLE_CONFIG=%s\0" % os.fsencode(place / "ansible.cfg") in entry.read_bytes():
                found.add(int(entry.parent.name))
    return found


def modules_of(left: Path) -> bool:
    """Return whether the process still listens that forks itself for modules."""
    socket = shlex.split(warm_playbook.interpreter(left).read_text().splitlines()[-1])[-2]
    return Path(socket).exists()


def runs(place, command) -> str:
    command = [sys.executable, "-c", MAKER % (command,)]
    return subprocess.run(command, cwd=place, env=environment(place), capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_warm_playbook_prints_and_ends_like_ansible_playbook(place):
    real = runs(place, [str(Path(sys.executable).with_name("ansible-playbook"))])
    assert [line for line in real.splitlines() if line.startswith("status")] == ["status 0", "status 2"]
    assert "said second by the caller" in real and "module of the caller" in real
    assert runs(place, list(warm_playbook.COMMAND)) == real
    # Each run must have removed its temporary folder, which is at the place where ansible-playbook puts it.
    wait_until(lambda: not any((place / "home/tmp").iterdir()), "the folders of the runs are gone")
    assert {path.name for path in place.iterdir()} == {"ok.yml", "ansible.cfg", "home"}


@pytest.mark.slow
def test_run_ends_with_its_caller(place):
    # The process of the run itself evaluates the pattern of hosts, and writes its pid.
    asked = "{{ lookup('ansible.builtin.pipe', 'echo $PPID >%s; echo localhost') }}" % (place / "run")
    pause = {"hosts": asked, "connection": "local", "gather_facts": False, "tasks": [{"pause": {"seconds": 600}}]}
    (place / "pause.yml").write_text(json.dumps([pause]))
    lines = (
        "import subprocess, sys",
        "sys.path.append(%r)" % str(Path(warm_playbook.__file__).parents[2]),
        "from tests.lab import warm_playbook",
        "ok, pause = ([*warm_playbook.COMMAND, name] for name in ('ok.yml', 'pause.yml'))",
        "subprocess.run(ok, stdout=subprocess.DEVNULL, check=True)",
        "print(warm_playbook.address(), flush=True)",
        "print(subprocess.Popen(pause, stdout=subprocess.DEVNULL).pid, flush=True)",
        "sys.stdin.read()",
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-c", "\n".join(lines)]
    with subprocess.Popen(command, cwd=place, env=environment(place), text=True, **pipes) as maker:
        left, caller = Path(maker.stdout.readline().strip()), int(maker.stdout.readline())
        assert left.is_socket()
        wait_until(lambda: (place / "run").exists() and (place / "run").read_text().strip(), "the run has begun")
        run = int((place / "run").read_text())
        assert run not in (caller, maker.pid)
        os.kill(caller, signal.SIGKILL)
        wait_until(lambda: not Path("/proc/%d" % run).exists(), "the run ends with its caller")
        assert left.is_socket()
        maker.stdin.close()
    wait_until(lambda: not left.exists(), "what was left ends with its maker")
    wait_until(lambda: not modules_of(left), "what its modules are forks of ends with it")
    # The worker of the run continues, as it does after ansible-playbook has ended.
    for pid in processes(place):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_module_archives_are_cached_by_the_state_of_the_code(tmp_path, monkeypatch):
    code = tmp_path / "ansible_collections/openfleet/gpu/plugins/modules/layout.py"
    code.parent.mkdir(parents=True)
    code.write_text("a = 1\n")
    monkeypatch.setattr(warm_playbook, "FOLDER", tmp_path)
    first = warm_playbook.payloads(tmp_path / "place", [str(tmp_path)])
    assert warm_playbook.payloads(tmp_path / "place", [str(tmp_path)]) == first
    code.write_text("a = 10\n")
    second = warm_playbook.payloads(tmp_path / "place", [str(tmp_path)])
    assert second != first
    # Current runs may still use these two archives. Archives from yesterday can be deleted.
    warm_playbook.remove_payloads()
    assert first.is_dir() and second.is_dir()
    os.utime(first, (1, 1))
    warm_playbook.remove_payloads()
    assert second.is_dir() and not first.exists()
