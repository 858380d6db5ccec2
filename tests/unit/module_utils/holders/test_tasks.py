# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test threads of real processes: shared descriptors, equal files, and ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.holders.hidden_files import may_be_node, registered
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.processes import start_ticks, started_ticks_of
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.tasks import (
    can_compare,
    distinct,
    folder_of,
    live_task,
    other_tasks,
)

#: This program ends its main thread. Its other thread ends when a line arrives on standard input.
MAIN_ENDS = """
import ctypes, os, sys, threading
def wait():
    os.write(1, b"runs\\n")
    os.read(0, 1)
    os._exit(0)
threading.Thread(target=wait).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""
LIMIT_SECONDS = 60


def wait_for(condition):
    limit = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.fixture
def main_ended():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", MAIN_ENDS], **pipes) as process:
        assert process.stdout.readline() == b"runs\n"
        wait_for(lambda: stat(process.pid).rpartition(")")[2].split()[0] == "Z")
        yield process
        process.kill()


def stat(pid):
    return Path("/proc/%d/stat" % pid).read_text()


def opened(folder):
    return list(Path(folder, "fd").iterdir())


def test_a_process_ends_with_its_last_thread(main_ended):
    pid = main_ended.pid
    started = started_ticks_of(pid)
    assert started is not None and start_ticks(stat(pid)) == started
    main_ended.stdin.write(b"\n")
    main_ended.stdin.flush()
    # The test does not reap the ended process, so its state stays Z.
    wait_for(lambda: start_ticks(stat(pid)) is None)
    assert started_ticks_of(pid) is None


def test_running_thread_is_read_if_the_main_thread_ended(main_ended):
    pid = main_ended.pid
    task = live_task("/proc", pid)
    assert [task] == other_tasks("/proc", pid)
    assert opened("/proc/%d" % pid) == [] and opened(folder_of("/proc", pid, task)) != []
    assert live_task("/proc", os.getpid()) is None
    main_ended.kill()
    wait_for(lambda: start_ticks(stat(pid)) is None)
    assert live_task("/proc", pid) is None


def test_ended_process_has_no_tasks():
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert other_tasks("/proc", process.pid) == [] and live_task("/proc", process.pid) is None


@pytest.mark.skipif(not can_compare(), reason="this kernel has no kcmp(2), or a filter forbids it")
def test_descriptors_of_one_open_file_count_once(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with path.open() as one, path.open() as other:
        again = os.dup(one.fileno())
        child = os.fork()
        if child == 0:
            # The child process has the descriptors of its parent.
            time.sleep(LIMIT_SECONDS)
            os._exit(0)
        try:
            numbers = [one.fileno(), other.fileno(), again]
            files = [(pid, number) for pid in (os.getpid(), child) for number in numbers]
            assert len(distinct(files, lambda file: file)) == 2
            assert len(distinct([*files, (child, 1 << 15)], lambda file: file)) == 3
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)
            os.close(again)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("SqThread:\t-1\nUserFiles:\t0\nUserBufs:\t0\n", []),
        # Linux 5.10 to 6.9 prints only the last component of the path. Linux 6.10 and later print the whole path, and
        # omit empty slots.
        (
            "UserFiles:\t3\n    0: nvidia0\n    1: <none>\n    2: a: b\nUserBufs:\t1\n    0: 0x7f/4\n",
            ["nvidia0", "a: b"],
        ),
        ("UserFiles:\t2\n    1: /dev/nvidia0\nUserBufs:\t0\nPollList:\n  op=6, task_works=0\n", ["/dev/nvidia0"]),
        # The lock of the io_uring is held, so the kernel does not list its files.
        ("UserFiles:\t2\nUserBufs:\t1\n", None),
        ("SqMask:\t0x3\n", None),
        ("", None),
    ],
)
def test_files_of_a_ring_are_from_the_kernel(text, names):
    assert registered(text) == names


def test_only_files_of_file_systems_can_be_nodes():
    assert not any(map(may_be_node, ["socket:[4711]", "pipe:[1]", "anon_inode:[eventfd]"]))
    assert all(
        map(may_be_node, ["/dev/nvidia0", "nvidia0", "/home/a/socket:[1]", "x", "", "socket:[1] (deleted)", "/"])
    )
