# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""End the processes that block a plan, and no other processes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Iterable, Sequence

from ..errors import ApplyError
from ..holders.bare_handles import has_open, may_be_handed
from ..holders.essential_units import is_essential, is_on_bus
from ..holders.model import DEVICE_HANDLE
from ..holders.processes import started_ticks_of
from ..leases.names import lease_of, unit_name
from ..model import Holder, Process
from ..plan.busy import can_be_ended
from ..plan.disturbance import Disturbance
from ..processes.command import Run, ask, run_to_end
from ..processes.file_worker import one_look

_POLL_SECONDS = 0.05
#: Time for the kernel to close the devices of a killed process.
_KILL_SECONDS = 10.0


def end_holders(disturbs: Iterable[Disturbance], grace_seconds: float) -> tuple[str, ...]:
    """End the processes among the holders, and return their descriptions.

    Raises ApplyError if a process must not be ended or does not end.
    """
    named = {h.pid: h for d in disturbs for h in d.who if can_be_ended(h)}
    targets = {pid: _Target(pid) for pid in named}
    try:
        # Check the processes again now that the pidfds are open, because a PID may have been reused.
        with one_look():
            texts = {pid: str(holder) for pid, holder in named.items() if _is_still(holder)}
            handed = [who for pid, who in texts.items() if may_be_handed(named[pid])]
        never = _never()
        spared = [who for pid, who in texts.items() if pid in never or _is_essential(named[pid])]
        if spared:
            raise ApplyError(
                "; ".join(spared),
                "it is part of this run, or essential for the host, and is not ended",
                "Release the GPU there and run again. A user may have passed the open file to a service.",
                outcome="old",
            )
        if handed:
            raise ApplyError(
                "; ".join(handed),
                "it is a system process that has the GPU open without using it, and is not ended: a user may have passed it "
                "the open file",
                "End the users' processes that are connected to it, or restart it by hand, and run again.",
                outcome="old",
            )
        left = [target for pid, target in targets.items() if pid in texts]
        for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, _KILL_SECONDS)):
            left = _signal(left, number, seconds)
        if left:
            raise ApplyError(
                "; ".join(texts[target.pid] for target in left),
                "it does not end, not even by SIGKILL",
                "It hangs in the driver: see the kernel log. A reboot of the host ends it.",
                outcome="old",
            )
    finally:
        for target in targets.values():
            target.close()
    return tuple(texts.values())


def end_leases(leases: Iterable[str], run: Run = run_to_end) -> tuple[str, ...]:
    """Stop the units of these leases, and return the leases.

    If a unit does not stop, `end_holders` ends its processes, which still hold the GPU.
    """
    leases = tuple(leases)
    units = [unit_name(lease[0]) for lease in map(lease_of, leases) if lease is not None]
    if units:
        with contextlib.suppress(FileNotFoundError):
            ask(run, ["systemctl", "stop", "--", *units])
    return leases


class _Target:
    """A process to signal by its pidfd, so that no other process can get the signal.

    Without pidfd (Python before 3.9 or Linux before 5.3), the process's start time is compared right before each
    signal.
    """

    def __init__(self, pid: int) -> None:
        self.pid, self._descriptor = pid, None
        with contextlib.suppress(AttributeError, OSError):
            self._descriptor = os.pidfd_open(pid)
        self._begun = started_ticks_of(pid)

    @property
    def alive(self) -> bool:
        # A process holds the GPU until its last thread has ended.
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
    """Send a signal to the living targets and wait until they end.

    Returns the targets that still live after `seconds`.
    """
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
    """Return whether this PID is still the same process, with the GPU open.

    Does not compare the process's name, because a process can change its name.
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
    """Return the PIDs that are never ended: PID 1, this process and its ancestors."""
    above, pid = [1], os.getpid()
    while pid > 1:
        above.append(pid)
        try:
            with open("/proc/%d/stat" % pid, errors="replace", newline="\n") as file:  # noqa: PTH123
                pid = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            break
    return above
