# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the programs of leases in transient scopes of the system's systemd.

A scope's control group belongs to root, so no user can leave it or change it. A user's process becomes the scope's
first process, and keeps its environment, terminal and limits.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Iterable

from ..holders.cgroup import parse_cgroup
from ..holders.peer_owner import own_container
from ..leases.grant import Grant
from ..leases.model import LeaseError
from ..leases.names import unit_name
from ..processes import peer
from ..processes.command import Run, ask, run_tool
from ..processes.proc_files import read
from ..systemd import NoAnswerError, show

#: The slice for an account's leases that have no slice of their own. The role gpu_layout installs its parent.
_SLICE = "openfleet-gpu-leases-%d.slice"
#: Folder with systemd's files of transient units.
TRANSIENT = Path("/run/systemd/transient")
#: Seconds between SIGTERM and SIGKILL when a lease ends.
STOP_SECONDS = 30
#: Time limit in seconds for systemd to move a process.
_START_SECONDS = 10.0
_POLL_SECONDS = 0.02
_MANAGER = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")


def start(pid: int, uid: int, grant: Grant, account: str, run: Run = run_tool) -> None:
    """Move a user's process into a new scope for its lease.

    Raises LeaseError if the process has ended or systemd refuses. The process then stays in its old unit.
    """
    where = "lease %d" % grant.number
    unit = unit_name(grant.number)
    with peer.looking_at(pid) as process:
        if process is None or process.uids != {uid}:
            raise LeaseError(where, "the requesting process has ended", "Run `gpu-layout lease` again.")
        text, problem = ask(run, _start_command(pid, uid, unit, grant, account))
        if text is None:
            raise LeaseError(where, "systemd did not start its unit: %s" % problem, "See `journalctl -u %s`." % unit)
        deadline = time.monotonic() + _START_SECONDS
        # systemd has only queued the start. `process` refers to the same process even if another process gets its PID.
        while parse_cgroup(process.read("cgroup"), own_container()).unit_or_container != unit:
            if not process.read("cgroup"):
                raise LeaseError(where, "the requesting process has ended", "Run `gpu-layout lease` again.")
            if time.monotonic() > deadline:
                stop(grant.number, run)
                raise LeaseError(where, "systemd did not move the process", "See `journalctl -u %s`." % unit)
            time.sleep(_POLL_SECONDS)


def _start_command(pid: int, uid: int, unit: str, grant: Grant, account: str) -> list[str]:
    """Return the command that calls StartTransientUnit (org.freedesktop.systemd1(5)).

    systemd-run can only start a scope for itself.
    """
    allowed = allowed_devices(grant.devices, read("%s/devices" % peer.PROC))
    properties: list[tuple[str, ...]] = [
        ("PIDs", "au", "1", str(pid)),
        ("Description", "s", "GPU lease %d of %s" % (grant.number, account)),
        ("Slice", "s", grant.slice or _SLICE % uid),
        # A failed scope disappears too, so that it leaves no lease behind.
        ("CollectMode", "s", "inactive-or-failed"),
        ("TimeoutStopUSec", "t", str(STOP_SECONDS * 1000000)),
        ("DevicePolicy", "s", "closed"),
        ("DeviceAllow", "a(ss)", str(len(allowed)), *(word for pair in allowed for word in pair)),
    ]
    words = [word for each in properties for word in each]
    return [
        *("busctl", "call", *_MANAGER, "StartTransientUnit", "ssa(sv)a(sa(sv))"),
        *(unit, "fail", str(len(properties)), *words, "0"),
    ]


def allowed_devices(devices: Iterable[str], kernel_devices: str) -> list[tuple[str, str]]:
    """Return the entries of DeviceAllow= for a lease: (path or group, access).

    Programs keep all devices except GPUs, for example terminals and InfiniBand. `kernel_devices` is the content of
    /proc/devices.
    """
    names = []
    for line in kernel_devices.partition("Block devices:")[0].splitlines():
        number, _space, name = line.strip().partition(" ")
        if number.isdigit() and not name.startswith("nvidia"):
            names.append("char-" + name)
    return [*((path, "rw") for path in devices), *((name, "rw") for name in dict.fromkeys(names))]


def seems_alive(number: int) -> bool:
    """Return whether systemd has a unit for the lease, without asking systemd."""
    return (TRANSIENT / unit_name(number)).exists()


def living(numbers: Iterable[int], run: Run = run_tool) -> set[int]:
    """Return the leases whose unit still runs.

    Raises LeaseError if systemd does not answer.
    """
    wanted = list(numbers)
    if not wanted:
        return set()
    try:
        units = show(run, [unit_name(number) for number in wanted], ("ActiveState",))
    except (NoAnswerError, FileNotFoundError) as error:
        raise LeaseError("this host", "systemd does not answer: %s" % error, "Check systemd, and try again.") from None
    return {number for number, unit in zip(wanted, units) if unit["ActiveState"] not in ("inactive", "failed")}


def stop(number: int, run: Run = run_tool) -> None:
    """Tell systemd to end a lease's programs. Does not wait."""
    ask(run, ["systemctl", "stop", "--no-block", "--", unit_name(number)])
