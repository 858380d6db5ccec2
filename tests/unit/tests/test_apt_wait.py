# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that tests/lab/apt waits while another process has a lock of apt or dpkg.

The tests run the real apt-get on temporary folders.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.patience import PATIENCE_SECONDS, wait_until

APT = Path(__file__).parents[2] / "lab" / "apt"
HOLD = """
import fcntl, sys
held = open(sys.argv[1], "a")
fcntl.lockf(held, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="runs apt-get as root"),
    pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt-get"),
]


@pytest.fixture
def environment(tmp_path):
    """Make folders for an apt that has no repositories and no packages.

    Returns the environment with which apt uses these folders.
    """
    for name in ("lists/partial", "cache/archives/partial", "dpkg", "parts"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("dpkg/status", "list"):
        (tmp_path / name).touch()
    options = {
        "Dir::State": tmp_path,
        "Dir::State::lists": tmp_path / "lists",
        "Dir::State::status": tmp_path / "dpkg" / "status",
        "Dir::Cache": tmp_path / "cache",
        "Dir::Etc::sourcelist": tmp_path / "list",
        "Dir::Etc::sourceparts": tmp_path / "parts",
    }
    (tmp_path / "apt.conf").write_text("".join('%s "%s";\n' % option for option in options.items()))
    return {**os.environ, "APT_CONFIG": str(tmp_path / "apt.conf")}


def holding(lock: Path) -> subprocess.Popen:
    """Start a process that holds the lock until its standard input is closed."""
    command = [sys.executable, "-c", HOLD, str(lock)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize(
    ("lock", "arguments"),
    [("lists/lock", ["update"]), ("dpkg/lock-frontend", ["install", "-y"]), ("dpkg/lock", ["install", "-y"])],
)
def test_held_lock_is_named_and_awaited(tmp_path, environment, lock, arguments):
    log, output = tmp_path / "log", tmp_path / "output"
    holder = holding(tmp_path / lock)
    try:
        with output.open("w") as out:
            run = subprocess.Popen([str(APT), str(log), *arguments], env=environment, stdout=out, stderr=out)
        wait_until(lambda: run.poll() is not None or "waiting" in output.read_text(), "the message")
        told = output.read_text()
        assert run.poll() is None, told + log.read_text()
        assert "could not get lock %s" % (tmp_path / lock) in told and "process %d" % holder.pid in told
    finally:
        holder.communicate("", PATIENCE_SECONDS)
    assert run.wait(PATIENCE_SECONDS) == 0, log.read_text()
    # However many attempts there are, the wait is reported once.
    assert output.read_text().count("waiting") == 1


def test_the_wait_ends_with_the_holder_named(tmp_path, environment):
    holder = holding(tmp_path / "lists" / "lock")
    try:
        done = subprocess.run(
            [str(APT), str(tmp_path / "log"), "update"],
            env={**environment, "APT_WAIT_SECONDS": "1"}, capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        holder.communicate("", PATIENCE_SECONDS)
    assert done.returncode != 0 and "gave up after 1 s" in done.stderr and "process %d" % holder.pid in done.stderr


def test_other_failures_are_not_awaited(tmp_path, environment):
    command = [str(APT), str(tmp_path / "log"), "install", "-y", "no-such-package-anywhere"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and done.stdout == ""
    assert "Unable to locate package" in (tmp_path / "log").read_text()
