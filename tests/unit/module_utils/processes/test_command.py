# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test host commands, and the parser for `systemctl show`.

tests/adversary tests hostile tools.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils import systemd
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import CommandTimeoutError
from ansible_collections.openfleet.gpu.plugins.module_utils.processes import command as commands
from ansible_collections.openfleet.gpu.plugins.module_utils.processes.command import (
    ask,
    program,
    run_to_end,
    run_tool,
    search_path,
    seconds_for,
)

RUNNERS = pytest.mark.parametrize("run", [run_tool, run_to_end])
ENVIRONMENT = [sys.executable, "-c", "import os; print(*(os.environ[n] for n in ('LC_ALL', 'LANG', 'PATH', 'MORE')))"]


@RUNNERS
def test_every_runner_has_the_same_environment(run, monkeypatch):
    monkeypatch.setenv("PATH", "/opt/bin")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    said = run(ENVIRONMENT, env={"MORE": "more"}).stdout
    assert said == "C C /opt/bin:/usr/local/sbin:/usr/sbin:/sbin more\n"


@RUNNERS
def test_program_is_never_taken_from_the_current_folder(run, monkeypatch, tmp_path):
    (tmp_path / "semodule").write_text("#!/bin/sh\necho taken\n")
    (tmp_path / "semodule").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for path in ("", ":/nowhere", None):
        monkeypatch.delenv("PATH") if path is None else monkeypatch.setenv("PATH", path)
        assert "" not in search_path().split(os.pathsep)
        found = program("semodule")
        assert found is None or Path(found).is_absolute()
        try:
            assert run(["semodule", "-l"]).stdout != "taken\n"
        except FileNotFoundError:
            assert run is run_tool


def test_missing_command_has_status_127_or_raises():
    done = run_to_end(["openfleet-none"])
    assert (done.returncode, done.stderr) == (127, "openfleet-none is not installed")
    assert program("openfleet-none") is None and program("sh")
    with pytest.raises(FileNotFoundError):
        run_tool(["openfleet-none"])


@RUNNERS
def test_command_gets_its_input_and_returns_its_status(run):
    done = run(["sh", "-c", "cat; echo wrong >&2; exit 3"], input="given")
    assert (done.returncode, done.stdout, done.stderr) == (3, "given", "wrong\n")
    assert run(["cat"]).stdout == ""


# --- Limits

QUESTIONS = [
    ["nvidia-ctk", "runtime", "configure"],
    ["visudo", "-cf", "/tmp/x"],
    ["/usr/sbin/visudo", "-cf", "/tmp/x"],
    ["gpgv", "file"],
    ["docker", "info", "--format", "{{json .}}"],
    ["dpkg-query", "-W"],
    ["apt-cache", "policy", "x"],
    ["modinfo", "nvidia"],
    ["getsebool", "container_use_devices"],
    ["ldd", "/bin/sh"],
    ["journalctl", "--no-pager"],
]
LONG_QUESTIONS = [
    ["rpm", "-q", "x"],
    ["rpm", "-e", "--test", "x"],
    ["dnf", "--quiet", "repoquery", "x"],
    ["dnf", "--quiet", "history", "list"],
    ["apt-get", "check", "--quiet"],
    ["apt-get", "-y", "--simulate", "install", "x"],
    ["dpkg", "--audit"],
]
STARTS = [
    ["systemctl", "restart", "docker.service"],
    ["modprobe", "nvidia"],
    ["docker", "run", "--rm", "x"],
    ["podman", "import", "x"],
    ["nvidia-smi", "-L"],
]
NEVER_INTERRUPTED = [
    ["apt-get", "-y", "install", "x"],
    ["dpkg", "--configure", "--pending"],
    ["dnf", "-y", "remove", "x"],
    ["rpm", "-e", "x"],
    ["dkms", "autoinstall"],
    ["dracut", "--force"],
    ["update-initramfs", "-u"],
    ["sh", "/tmp/NVIDIA.run", "--silent"],
    ["nvidia-uninstall", "--silent"],
    [sys.executable, "-m", "pip", "install", "x"],
    ["make", "-s"],
]


@pytest.mark.parametrize("command", [*QUESTIONS, *LONG_QUESTIONS, *STARTS, *NEVER_INTERRUPTED], ids=" ".join)
def test_every_command_has_the_timeout_of_its_kind(command):
    expected = commands.QUESTION_SECONDS if command in QUESTIONS else commands.CHANGE_SECONDS
    assert seconds_for(command) == (None if command in NEVER_INTERRUPTED else expected)


@pytest.fixture(name="hanging")
def of_programs_that_do_not_end(monkeypatch, tmp_path):
    """Return a function that installs a program, which writes its pid and sleeps."""
    monkeypatch.setenv("PATH", "%s:%s" % (tmp_path, os.environ["PATH"]))
    monkeypatch.setattr(commands, "QUESTION_SECONDS", 2)
    monkeypatch.setattr(commands, "CHANGE_SECONDS", 2)

    def install(name):
        (tmp_path / name).write_text("#!/bin/sh\necho $$ >%s/pid\nexec sleep 600\n" % tmp_path)
        (tmp_path / name).chmod(0o755)
        return tmp_path / "pid"

    return install


def has_ended(pid_file) -> bool:
    return not Path("/proc", pid_file.read_text().strip()).exists()


def test_hanging_query_times_out(hanging):
    pid = hanging("nvidia-ctk")
    with pytest.raises(CommandTimeoutError) as raised:
        run_to_end(["nvidia-ctk", "runtime", "configure"])
    assert raised.value.host_fault
    assert str(raised.value).startswith("this host: nvidia-ctk runtime configure did not end within 2 s. ")
    assert has_ended(pid)


def test_hanging_start_fails(hanging):
    pid = hanging("systemctl")
    done = run_to_end(["systemctl", "restart", "docker.service"])
    assert (done.returncode, done.stderr) == (124, "systemctl restart docker.service did not end within 2 s")
    assert has_ended(pid)


# --- systemctl show


def shown(text: str, status: int = 0):
    return lambda command, **options: subprocess.CompletedProcess(command, status, text, "Failed to connect to bus")


TWO = "Id=a.service\nLoadState=loaded\nExecStart=x=y\n\nLoadState=not-found\nId=b.service\n"


def test_systemctl_show_is_read_unit_by_unit():
    units = systemd.show(shown(TWO), ["a", "b"], ("Id", "ExecStart"))
    assert units == [{"Id": "a.service", "ExecStart": "x=y"}, {"Id": "b.service", "ExecStart": ""}]
    assert list(systemd.loaded(shown(TWO), ["a", "b"], ("ExecStart",))) == ["a.service"]


@pytest.mark.parametrize("answer", [shown("", 1), shown(TWO)], ids=["failed", "units left out"])
def test_invalid_answer_names_no_unit(answer):
    with pytest.raises(systemd.NoAnswerError):
        systemd.show(answer, ["a", "b", "c"], ("Id",))
    assert systemd.loaded(answer, ["a", "b", "c"], ()) == {}


def test_a_host_without_systemctl_has_no_units(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for run in (run_tool, run_to_end):
        assert systemd.loaded(run, ["a"], ()) == {}


def test_hanging_tool_is_named_by_its_command():
    def hang(command, **_options):
        raise subprocess.TimeoutExpired(command, 10)

    with pytest.raises(subprocess.TimeoutExpired, match=r"^sleep 60 timed out after 0 s$"):
        run_tool(["sleep", "60"], timeout_seconds=0.05)
    assert ask(hang, ["nvidia-cuda-mps-control", "-d"]) == (None, "nvidia-cuda-mps-control -d timed out after 10 s")
