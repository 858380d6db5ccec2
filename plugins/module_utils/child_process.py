# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# ruff: noqa: PTH123, PTH208
"""Start child processes that hold nothing of their parent, and leave those behind that the kernel does not end.

A file system's server may be a user's own and never answer. What waits for it in the kernel is not ended by SIGKILL, and keeps
what it has open: a lock, or the pipe that ends the output of a run. So such a child keeps the descriptors that it is given and no
other. It is not waited for. Its name in /proc tells it, so that later looks start no more of them for the same account.
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

#: How long a process is waited for that was killed. One that hangs in the kernel does not end, and is left.
_REAP_SECONDS = 0.5
#: Between two looks whether it has ended: most do within a fraction of a millisecond. Each pause is twice the one before.
_FIRST_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.0002, 0.01
# Name of a child that reads something of an account: the kind of question, and the account.
_NAME = "%s-%d"
_STATUS = re.compile(r"^(State|Threads|Uid|SigPnd):[ \t]*(\S+)", re.MULTILINE)
_KILLED = 1 << (signal.SIGKILL - 1)
#: Children of this process: killed and not yet ended.
_left: List[int] = []
#: Children of this process that were not given up.
_running: set[int] = set()


def readable(source: Any, deadline: float) -> bool:
    """Wait until `source` has input or has ended; return False at the deadline (seconds of time.monotonic()).

    select.select() refuses descriptors from 1024 on.
    """
    waiting = select.poll()
    waiting.register(source, select.POLLIN)
    return bool(waiting.poll(max(0.0, deadline - time.monotonic()) * 1000))


def start(work: Callable[[], int], keep: Iterable[int], account: int | None = None) -> int:
    """Start a child in a process group of its own that runs `work`, and return its pid. `work` gives its exit status.

    It has the descriptors `keep` and nothing else that is open. `account` is whose files it looks at: see `stuck`.
    """
    _left[:] = [child for child in _left if not has_ended(child)]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            # As the caller's handlers would raise it where nothing expects it.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _close_all(set(keep))
            _running.clear()
            if account is not None:
                mark(account)
            code = work()
        finally:
            os._exit(code)
    # By both, for either may come first.
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
    _running.add(child)
    return child


def running() -> frozenset[int]:
    """Return the children that this process has started and not given up: what they have open is this process's own."""
    return frozenset(_running)


def give_up(child: int) -> bool:
    """Kill a child with all that it started. Return False where it hangs in the kernel and so does not end."""
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
    """Return whether a process with this text in /proc/PID/status was killed and has not ended: it hangs in the kernel."""
    found = re.search(r"^SigPnd:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return found is not None and bool(int(found.group(1), 16) & _KILLED)


def mark(account: int, kind: str = "look") -> None:
    """Give this process the name by which `stuck` finds it: it reads something of this account from here on."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(_NAME % (kind, account))


def stuck(kind: str = "look") -> Counter[int]:
    """Return by account how many children with this kind of question, of this and earlier looks, were killed and have not ended.

    They are root's, or of that account: a user who poses as one has his own things not looked at.
    """
    found: Counter[str] = Counter()
    named = re.compile(kind + r"-(\d+)\n?")
    for name in os.listdir("/proc"):
        called = named.fullmatch(read("/proc/%s/comm" % name)) if name.isdigit() else None
        if called is None:
            continue
        status = dict(_STATUS.findall(read("/proc/%s/status" % name)))
        # A main thread may end before the others.
        ended = status.get("State", "Z") in "ZX" and int(status.get("Threads", "1")) <= 1
        if not ended and status.get("Uid") in ("0", called.group(1)) and int(status.get("SigPnd", "0"), 16) & _KILLED:
            found[called.group(1)] += 1
    told: Counter[int] = Counter()
    for uid, count in found.items():
        # A user who poses as one may do so by subordinate ids too.
        told[account_of_id(int(uid))] += count
    return told


def _close_all(keep: set[int]) -> None:
    """Close what is open but these. Standard input, output and error lead nowhere then."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in {0, 1, 2} - keep:
        os.dup2(nothing, standard)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            # The one that listed them is closed already.
            with contextlib.suppress(OSError):
                os.close(int(name))


def has_ended(child: int) -> bool:
    """Return whether a child of this process has ended. It is reaped then."""
    try:
        return os.waitpid(child, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True
