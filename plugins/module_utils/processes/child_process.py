# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# ruff: noqa: PTH123, PTH208
"""Start child processes without open files, and abandon those that hang.

A user can mount a file system that never answers. A process that waits for it in the kernel does not even end on
SIGKILL, and keeps its files open, such as a lock or a run's output pipe. So a child only gets the descriptors that it
needs, and no caller waits for it forever. The child's name in /proc tells later scans to start no more children for the
same account.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import time
from collections import Counter
from typing import Any, Callable, Iterable, List

from .accounts import account_of_id
from .proc_files import read

#: Seconds for a killed process to end. After that, it hangs in the kernel and is abandoned.
_REAP_SECONDS = 0.5
#: First and longest interval between polls, which doubles each time. Most processes end within a fraction of a
#: millisecond.
_FIRST_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.0002, 0.01
# Name of a child process: the kind of query, and the account that owns the files.
_NAME = "%s-%d"
_STATUS = re.compile(r"^(State|Threads|Uid|SigPnd):[ \t]*(\S+)", re.MULTILINE)
_KILLED = 1 << (signal.SIGKILL - 1)
#: Children that were killed but have not ended.
_left: List[int] = []
#: Children that were started and not yet given up.
_running: set[int] = set()


def readable(source: Any, deadline: float) -> bool:
    """Wait until `source` has input or is closed. Return False at the deadline.

    select.select() is no option, because it refuses descriptors above 1023.
    """
    waiting = select.poll()
    waiting.register(source, select.POLLIN)
    return bool(waiting.poll(max(0.0, deadline - time.monotonic()) * 1000))


def start(work: Callable[[], int], keep: Iterable[int], account: int | None = None) -> int:
    """Run `work` in a child with its own process group, and return its PID.

    `work` returns the exit status. The child has only the descriptors in `keep`. `account` owns the files that the
    child reads (see `stuck`).
    """
    _left[:] = [child for child in _left if not has_ended(child)]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            # The caller's signal handler could raise an exception in code that does not expect it.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _close_all(set(keep))
            _running.clear()
            if account is not None:
                mark(account)
            code = work()
        finally:
            os._exit(code)
    # Both the parent and the child set the process group, because either may run first.
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
    _running.add(child)
    return child


def running() -> frozenset[int]:
    """Return the children of this process that were not given up."""
    return frozenset(_running)


def give_up(child: int) -> bool:
    """Kill a child and its process group. Return False if it hangs in the kernel."""
    _running.discard(child)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    deadline, pause = time.monotonic() + _REAP_SECONDS, _FIRST_POLL_SECONDS
    while not has_ended(child):
        if time.monotonic() >= deadline:
            _left.append(child)
            return False
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_POLL_SECONDS)
    return True


def was_killed(status: str) -> bool:
    """Return whether a process got SIGKILL but has not ended.

    Such a process hangs in the kernel. `status` is the content of /proc/PID/status.
    """
    pending = re.search(r"^SigPnd:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return pending is not None and bool(int(pending.group(1), 16) & _KILLED)


def mark(account: int, kind: str = "look") -> None:
    """Rename this process so that `stuck` counts it for the account."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(_NAME % (kind, account))


def stuck(kind: str = "look") -> Counter[int]:
    """Count the killed children that have not ended, by account.

    Includes children of earlier scans. A child must run as root or as the account itself. So a user who gives a process
    such a name only affects reads of the same user's processes.
    """
    by_uid: Counter[str] = Counter()
    named = re.compile(kind + r"-(\d+)\n?")
    for name in os.listdir("/proc"):
        called = named.fullmatch(read("/proc/%s/comm" % name)) if name.isdigit() else None
        if called is None:
            continue
        status = dict(_STATUS.findall(read("/proc/%s/status" % name)))
        # The main thread may end before other threads do.
        ended = status.get("State", "Z") in "ZX" and int(status.get("Threads", "1")) <= 1
        if not ended and status.get("Uid") in ("0", called.group(1)) and int(status.get("SigPnd", "0"), 16) & _KILLED:
            by_uid[called.group(1)] += 1
    by_account: Counter[int] = Counter()
    for uid, count in by_uid.items():
        # A process with a subordinate id can also give itself such a name.
        by_account[account_of_id(int(uid))] += count
    return by_account


def _close_all(keep: set[int]) -> None:
    """Close all descriptors except those in `keep`.

    Standard input, output and error are connected to /dev/null.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in {0, 1, 2} - keep:
        os.dup2(nothing, standard)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            # The descriptor with which the directory was listed is already closed.
            with contextlib.suppress(OSError):
                os.close(int(name))


def has_ended(child: int) -> bool:
    """Return whether a child of this process has ended. If so, reap it."""
    try:
        return os.waitpid(child, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True
