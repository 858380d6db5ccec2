# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe desired and current MPS control daemons as plain frozen values."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Any, Iterable, Mapping, Sequence

from ...frozen import frozen, sortable
from ...model import INTERNAL

#: Value in `gpu_layout`.
KEY = "mps"
#: Name of the daemons of a host in return values.
NAME = "mps_daemons"
#: One daemon for each GPU of an entry, or one for all of them.
DAEMONS = ("gpu", "entry")
#: Clients use the GPU through the daemon, the only process that has it open.
COMPUTE_MODE = "exclusive_process"
#: Below the root of the host: the settings of each daemon.
SETTINGS = "etc/openfleet-gpu/mps"
#: Format version of a daemon's spec.
SCHEMA = 1


@frozen
class Mps:
    """An MPS daemon and the caps of each of its clients. A `pinned_memory_limit_bytes` of None sets no limit."""

    name: str
    clients: int
    active_thread_percentage: int
    pinned_memory_limit_bytes: int | None = None
    oversubscribe: bool = False
    #: One of DAEMONS.
    daemon_per: str = DAEMONS[0]


@sortable
@frozen
class MpsPlace:
    """A GPU or a GPU instance, named by values that survive a reboot: the GPU's UUID, profile and start."""

    gpu_uuid: str
    profile: str | None = None
    start: int | None = None

    @property
    def in_mig(self) -> bool:
        return self.profile is not None


@frozen
class MpsDaemon:
    """One control daemon. It serves one GPU, several whole GPUs, or one MIG device.

    `active_thread_percentage` (1 to 100) and `pinned_memory_limit_bytes` (on each GPU, None for no limit) cap each client.
    `clients` is the planned number of clients. The daemon does not count them.
    """

    name: str
    places: tuple[MpsPlace, ...]
    clients: int
    active_thread_percentage: int
    pinned_memory_limit_bytes: int | None = None


@frozen
class MpsClient:
    """A process that an MPS server reports as its client.

    An answer at a daemon's pipes may name any process. `attested` is true if the kernel shows that the server is the
    daemon's child, and that the process has the server's user and one of its GPUs open.
    """

    pid: int
    server_pid: int
    command: str | None = None
    user: str | None = None
    attested: bool = field(default=True, metadata=INTERNAL)
    #: Start time in the kernel's clock ticks, to distinguish a later process with the same pid.
    started_ticks: int | None = field(default=None, metadata=INTERNAL)


@frozen
class MpsSeen:
    """The current state of a daemon of this collection.

    `daemon` and `devices` (UUIDs of GPUs, or of the one MIG device, in CUDA_VISIBLE_DEVICES) come from its files. The limits
    are the running daemon's answers, or None. The percentage is a server's if that differs from the expected one. A daemon
    that should run and does not answer has a `problem`.
    """

    daemon: MpsDaemon
    devices: tuple[str, ...]
    running: bool
    pid: int | None = None
    server_pids: tuple[int, ...] = ()
    clients: tuple[MpsClient, ...] = ()
    active_thread_percentage: float | None = None
    pinned_memory_limits_bytes: tuple[int | None, ...] = ()
    #: Files that are missing or differ from those of this release.
    outdated: tuple[str, ...] = ()
    problem: str | None = None
    #: Servers that do not answer: they start, end or hang, and may have outdated limits.
    silent_server_pids: tuple[int, ...] = ()
    #: Whether the pipe directory has a file system of limited size. None if the daemon does not run.
    pipe_directory_limited: bool | None = None
    #: Servers that the kernel does not show as the daemon's children. They count as ordinary holders.
    unattested_server_pids: tuple[int, ...] = field(default=(), metadata=INTERNAL)


def unit_of(name: str) -> str:
    """Return the name of the daemon's unit."""
    return "openfleet-mps@%s.service" % name


def spec_files(root: Path) -> Iterable[Path]:
    """Return the spec files of the host's daemons, readable or not."""
    # Only NAME.json: files that are being written end in .new.
    return (root / SETTINGS).glob("*.json")


def spec_path(name: str) -> str:
    """Return the path of the spec. It is the first of the daemon's files to be written and the last to be removed."""
    return "%s/%s.json" % (SETTINGS, name)


def to_data(daemon: MpsDaemon, devices: Sequence[str]) -> dict[str, Any]:
    """Return the spec of a daemon."""
    return {
        "schema": SCHEMA,
        "name": daemon.name,
        "places": [{"gpu_uuid": p.gpu_uuid, "profile": p.profile, "start": p.start} for p in daemon.places],
        "clients": daemon.clients,
        "active_thread_percentage": daemon.active_thread_percentage,
        "pinned_memory_limit_bytes": daemon.pinned_memory_limit_bytes,
        "devices": list(devices),
    }


def from_data(data: Mapping[str, Any]) -> tuple[MpsDaemon, tuple[str, ...]]:
    """Return (daemon, devices) of a spec. Raises KeyError or TypeError if the data is not a spec."""
    daemon = MpsDaemon(
        data["name"],
        tuple(MpsPlace(**place) for place in data["places"]),
        data["clients"],
        data["active_thread_percentage"],
        data["pinned_memory_limit_bytes"],
    )
    return daemon, tuple(data["devices"])
