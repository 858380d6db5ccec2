# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test child processes that scan other processes, and how killed ones are awaited."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import time
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.holders import processes
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.devices import Devices
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Host
from ansible_collections.openfleet.gpu.plugins.module_utils.processes import child_process

PLUGINS = Path(__file__).parents[4] / "plugins"
NO_DEVICES = Devices(Host("", "", None, False, ()))


@pytest.fixture
def pauses(monkeypatch):
    """Return the list of recorded pauses, and let simulated sleeps take no time."""
    made = []
    monkeypatch.setattr(child_process.time, "sleep", made.append)
    return made


def idle_child() -> int:
    """Start a child that does nothing until a signal ends it, and return its pid."""
    return child_process.start(lambda: signal.pause() or 0, [])


def test_pauses_grow_up_to_a_maximum(pauses, monkeypatch):
    answers = iter([False] * 10 + [True])
    monkeypatch.setattr(child_process, "has_ended", lambda child: next(answers))
    child = idle_child()
    child_process.give_up(child)
    os.waitpid(child, 0)
    first, longest = pauses[0], pauses[-1]
    assert len(pauses) == 10
    assert first * 10 < longest
    assert pauses == [min(first * 2**count, longest) for count in range(10)]


def test_hanging_child_is_kept_for_later(pauses, monkeypatch):
    seconds = iter(range(1000))
    monkeypatch.setattr(child_process.time, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(child_process, "has_ended", lambda child: False)
    monkeypatch.setattr(child_process, "_left", [])
    child = idle_child()
    child_process.give_up(child)
    assert child_process._left == [child]
    os.waitpid(child, 0)


def test_scan_ignores_own_children_until_they_are_abandoned(monkeypatch):
    """A child that calls the driver has GPUs open on behalf of this process.

    If the child hangs, it counts as a holder of the GPUs.
    """
    monkeypatch.setattr(child_process, "_left", [])
    child = idle_child()
    try:
        assert child in child_process.running()
        assert child not in processes.scan(NO_DEVICES).seen
        with monkeypatch.context() as patched:
            # Simulate a child that hangs in the driver, and that no signal ends.
            patched.setattr(child_process.os, "killpg", lambda child, signal: None)
            patched.setattr(child_process, "_REAP_SECONDS", 0.0)
            child_process.give_up(child)
        assert child not in child_process.running()
        assert child in processes.scan(NO_DEVICES).seen
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_child_does_not_inherit_its_parents_children():
    first = idle_child()
    reading, writing = os.pipe()

    def tell() -> int:
        os.write(writing, repr(sorted(child_process.running())).encode())
        return 0

    second = child_process.start(tell, [writing])
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "[]"
    child_process.give_up(first)
    child_process.give_up(second)


def test_large_descriptor_numbers_work():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    first, second = os.pipe()
    try:
        reading = fcntl.fcntl(first, fcntl.F_DUPFD, 1024)
        assert not child_process.readable(reading, time.monotonic())
        os.write(second, b"x")
        assert child_process.readable(reading, time.monotonic() + 60)
        assert os.read(reading, 1) == b"x"
        os.close(second)
        assert child_process.readable(reading, time.monotonic() + 60)
        os.close(reading)
    finally:
        os.close(first)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_no_module_uses_select():
    found = [path for path in sorted(PLUGINS.rglob("*.py")) if "select.select(" in path.read_text().replace("`", "")]
    assert [path.name for path in found if path.name != "child_process.py"] == []
