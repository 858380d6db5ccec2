# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What to do where something that a plan would end is in use: refuse, wait for it to end, or end it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from typing import Callable, Iterable, Sequence, TypeVar

from .command_line import shown
from .disturbance import Disturbance
from .errors import ApplyError, BusyError
from .holders_model import CONTAINER, UNKNOWN
from .model import Holder, Process

T = TypeVar("T")

FAIL, WAIT, FORCE = POLICIES = ("fail", "wait", "force")

_LOOK_SECONDS = 5.0
_POLL_SECONDS = 0.05
#: How often those in the way are ended before it is said that they come back.
_ROUNDS = 3
#: What was sent SIGKILL is gone as soon as the kernel let go of its devices, which takes it a moment.
_KILL_SECONDS = 10.0


@dataclass(frozen=True)
class OnBusy:
    """A policy, how long to wait under WAIT, and how long a process has to end by itself under FORCE.

    `tell` is called with who is waited for, whenever that changes.
    """

    policy: str = FAIL
    timeout_seconds: float = 0.0
    grace_seconds: float = 30.0
    tell: Callable[[str], None] = lambda text: None


REFUSE = OnBusy()


def patiently(attempt: Callable[[], T], on_busy: OnBusy) -> T:
    """The attempt's result; under WAIT it is made again while it raises BusyError, until the time is over.

    Nothing is held in between, neither lock nor driver: others may work on the host, and what waits is in nobody's way.
    """
    deadline = time.monotonic() + on_busy.timeout_seconds
    told = None
    while True:
        try:
            return attempt()
        except BusyError as error:
            left = deadline - time.monotonic()
            if on_busy.policy != WAIT or left <= 0:
                raise
            if error.where != told:
                told = error.where
                on_busy.tell("waiting: %s" % told)
        time.sleep(min(_LOOK_SECONDS, left))


def make_way(look: Callable[[], Sequence[Disturbance]], clear: Callable[[Sequence[Disturbance]], bool] | None) -> None:
    """Look whom a step would disturb, right before it, and refuse, or end them where there is leave to.

    Returns with somebody left only where `clear` finds nobody whom it could end. Raises BusyError.
    """
    for rounds_left in range(_ROUNDS, -1, -1):
        disturbs = look()
        if not disturbs:
            return
        if clear is None:
            raise BusyError(disturbs, "it came into use while the run went on", "Run again.")
        if rounds_left and not clear(disturbs):
            return
    raise BusyError(disturbs, "it was ended and came back", "Stop the service that starts it (gpu_drain_services).")


def can_be_ended(holder: Holder | Process) -> bool:
    """Whether it is a process that uses the GPU itself, and not an allocation, a device that was given, or a guess."""
    return bool(holder.pid) and holder.kind not in (CONTAINER, UNKNOWN)


def end_holders(disturbs: Iterable[Disturbance], grace_seconds: float) -> tuple[str, ...]:
    """End the processes among the holders, SIGTERM first, and name them; empty where there is none (`can_be_ended`).

    Raises ApplyError where a process does not go, or is one that must not be ended.
    """
    # By now a pid may be another process's.
    found = {h.pid: str(h) for d in disturbs for h in d.who if can_be_ended(h) and _is_still(h)}
    spared = [who for pid, who in found.items() if pid in _never()]
    if spared:
        raise ApplyError(
            "; ".join(spared),
            "it is this run itself, or what the host lives by, and is not ended",
            "Let go of the GPU there and run again.",
            outcome="old",
        )
    started = {pid: begun for pid in found for begun in [_started(pid)] if begun is not None}
    for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, _KILL_SECONDS)):
        started = _signal(started, number, seconds)
    if started:
        raise ApplyError(
            "; ".join(found[pid] for pid in started),
            "it does not end, not even by SIGKILL",
            "It hangs in the driver: look at the kernel log; a reboot of the host ends it.",
            outcome="old",
        )
    return tuple(found.values())


def _signal(started: dict[int, str], number: int, seconds: float) -> dict[int, str]:
    """Send the signal to all and wait until they are gone; those that are not."""
    for pid in _alive(started):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    deadline = time.monotonic() + seconds
    while True:
        started = _alive(started)
        if not started or time.monotonic() >= deadline:
            return started
        time.sleep(_POLL_SECONDS)


def _is_still(holder: Holder | Process) -> bool:
    """Whether the pid has the command line that the holder was found with."""
    command = holder.command if isinstance(holder, Holder) else None
    if not command or command.startswith("["):
        return True
    try:
        with open("/proc/%d/cmdline" % (holder.pid or 0), errors="replace") as file:  # noqa: PTH123
            return shown([word for word in file.read().split("\0") if word]) == command
    except OSError:
        return False


def _alive(started: dict[int, str]) -> dict[int, str]:
    return {pid: begun for pid, begun in started.items() if _started(pid) == begun}


def _started(pid: int) -> str | None:
    """When the process began, in the kernel's count: a pid alone may be another process by now. None: it is gone."""
    try:
        with open("/proc/%d/stat" % pid) as file:  # noqa: PTH123
            # The name may have blanks and brackets in it (proc(5)).
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _never() -> Sequence[int]:
    """PID 1, this process and those above it."""
    above, pid = [1], os.getpid()
    while pid > 1:
        above.append(pid)
        try:
            with open("/proc/%d/stat" % pid) as file:  # noqa: PTH123
                pid = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            break
    return above
