# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that functions with limits return results and errors, and leave no process."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.module_utils.processes.bounded import bounded

#: A duration in seconds that no test reaches.
LONG = 300.0


def test_result_of_the_work_is_returned():
    assert bounded(lambda: "Zürich " * 100000, "here", LONG, 10**6) == "Zürich " * 100000


def test_error_of_the_work_is_raised():
    def work():
        raise FleetError("gpu 0", "it is lost", "Look at its cable.")

    with pytest.raises(FleetError) as error:
        bounded(work, "here", LONG, 1000)
    assert (error.value.where, error.value.problem, error.value.cure) == ("gpu 0", "it is lost", "Look at its cable.")


@pytest.mark.parametrize("end", [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: os._exit(0), lambda: 1 / 0])
def test_dying_work_is_an_error(end):
    with pytest.raises(FleetError, match="ended without a result"):
        bounded(end, "here", LONG, 1000)


def test_too_large_result_is_an_error():
    with pytest.raises(FleetError, match="larger than 1000 bytes"):
        bounded(lambda: "x" * 1000, "here", LONG, 1000)
    assert bounded(lambda: "x" * 999, "here", LONG, 1000) == "x" * 999


def test_timeout_ends_the_work_and_its_children():
    reading, writing = os.pipe()

    def work():
        # A tool that hangs keeps its end of the pipe open until it ends.
        os.set_inheritable(writing, True)
        subprocess.run(["sleep", "infinity"], close_fds=False, check=False)
        return ""

    started = time.monotonic()
    with pytest.raises(FleetError, match="takes too long"):
        bounded(work, "here", 0.1, 1000, keep=[writing])
    os.close(writing)
    # Reading returns the end of the pipe only when the last process that has the other end open exits.
    ready, _, _ = select.select([reading], [], [], LONG)
    assert ready and os.read(reading, 1) == b""
    os.close(reading)
    assert time.monotonic() - started < LONG


def test_no_child_is_left():
    bounded(lambda: "", "here", LONG, 1000)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_child_inherits_no_descriptors(tmp_path):
    """A child that cannot be killed must not hold a lock or the controller's pipe."""
    with (tmp_path / "lock").open("w"):
        opened = bounded(
            lambda: " ".join(map(os.readlink, map("/proc/self/fd/{}".format, (0, 1, 2)))), "here", LONG, 1000
        )
        held = bounded(lambda: "\n".join(_opened()), "here", LONG, 1000)
    assert opened == " ".join(3 * [os.devnull]) and str(tmp_path) not in held
    assert "/dev/null\n/dev/null\n/dev/null\n" in held and held.count("pipe:") == 1


def _opened():
    for path in sorted(Path("/proc/self/fd").iterdir(), key=lambda path: int(path.name)):
        with contextlib.suppress(FileNotFoundError):
            yield str(path.readlink())
