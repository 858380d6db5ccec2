# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""End the processes that are in the way of a plan, and no others."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Iterable, Sequence

from .bare_handles import has_open, may_be_handed
from .busy import can_be_ended
from .disturbance import Disturbance
from .errors import ApplyError
from .essential_units import is_essential, is_on_bus
from .file_worker import one_look
from .holders.model import DEVICE_HANDLE
from .holders.processes import started_ticks_of
from .model import Holder, Process

_POLL_SECONDS = 0.05
#: What was sent SIGKILL is gone as soon as the kernel let go of its devices, which takes it a moment.
_KILL_SECONDS = 10.0


def end_holders(disturbs: Iterable[Disturbance], grace_seconds: float) -> tuple[str, ...]:
    """End the processes among the holders, SIGTERM first, and name them; empty where there is none (`can_be_ended`).

    Raises ApplyError where a process does not go, or is one that must not be ended.
    """
    named = {h.pid: h for d in disturbs for h in d.who if can_be_ended(h)}
    targets = {pid: _Target(pid) for pid in named}
    try:
        # A pid may be another process's by now: what is looked at from here on is the process behind the descriptor.
        with one_look():
            found = {pid: str(holder) for pid, holder in named.items() if _is_still(holder)}
            handed = [who for pid, who in found.items() if may_be_handed(named[pid])]
        never = _never()
        spared = [who for pid, who in found.items() if pid in never or _is_essential(named[pid])]
        if spared:
            raise ApplyError(
                "; ".join(spared),
                "it is this run itself, or what the host lives by, and is not ended",
                "Let go of the GPU there and run again. A service that takes open files from users may have it from one of them.",
                outcome="old",
            )
        if handed:
            raise ApplyError(
                "; ".join(handed),
                "it is a process of the system that has the GPU open and does not use it, and is not ended: a user may have "
                "handed it the open file",
                "End the processes of users that are connected to it, or restart it by hand, and run again.",
                outcome="old",
            )
        left = [target for pid, target in targets.items() if pid in found]
        for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, _KILL_SECONDS)):
            left = _signal(left, number, seconds)
        if left:
            raise ApplyError(
                "; ".join(found[target.pid] for target in left),
                "it does not end, not even by SIGKILL",
                "It hangs in the driver: look at the kernel log; a reboot of the host ends it.",
                outcome="old",
            )
    finally:
        for target in targets.values():
            target.close()
    return tuple(found.values())


class _Target:
    """A process that may be signalled, held by a pidfd (pidfd_open(2)), so that no other process gets its signals.

    Python before 3.9 and Linux before 5.3 have none; there its start time is compared right before each signal.
    """

    def __init__(self, pid: int) -> None:
        self.pid, self._descriptor = pid, None
        with contextlib.suppress(AttributeError, OSError):
            self._descriptor = os.pidfd_open(pid)
        self._begun = started_ticks_of(pid)

    @property
    def alive(self) -> bool:
        # It holds the GPU until its last thread has ended.
        return self._begun is not None and started_ticks_of(self.pid) == self._begun

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._descriptor is None:
                os.kill(self.pid, number)
            else:
                signal.pidfd_send_signal(self._descriptor, number)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


def _signal(targets: Sequence[_Target], number: int, seconds: float) -> list[_Target]:
    """Send the signal to all that live and wait until they are gone; return those that are not."""
    for target in targets:
        if target.alive:
            target.send(number)
    deadline = time.monotonic() + seconds
    while True:
        left = [target for target in targets if target.alive]
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(_POLL_SECONDS)


def _is_essential(holder: Holder | Process) -> bool:
    if not isinstance(holder, Holder):
        return False
    return is_essential(holder.unit_or_container) or is_on_bus(holder.unit_or_container)


def _is_still(holder: Holder | Process) -> bool:
    """Whether the pid is the process that was seen, and it still has open what it was seen with.

    It may have become another program, which lets go of nothing by that. What it calls itself is its own to change at any time.
    """
    if not isinstance(holder, Holder):
        return True
    pid = holder.pid or 0
    if holder.started_ticks is not None and started_ticks_of(pid) != holder.started_ticks:
        return False
    if holder.kind != DEVICE_HANDLE:
        return True
    return has_open(pid)


def _never() -> Sequence[int]:
    """PID 1, this process and those above it."""
    above, pid = [1], os.getpid()
    while pid > 1:
        above.append(pid)
        try:
            with open("/proc/%d/stat" % pid, errors="replace", newline="\n") as file:  # noqa: PTH123
                pid = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            break
    return above
