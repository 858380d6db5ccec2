# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""MPS control daemons as plain frozen values: as a layout wants them, and as they were seen on a host."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Any, Iterable, Mapping, Sequence

from ...frozen import frozen, sortable
from ...model import INTERNAL

#: Word in `gpu_layout`.
KEY = "mps"
#: Name of the daemons of a host in return values.
NAME = "mps_daemons"
#: What a layout can ask for: a daemon for each GPU of an entry, or one for all of them.
DAEMONS = ("gpu", "entry")
#: A client opens the GPU through its daemon, which is the one process that has it.
COMPUTE_MODE = "exclusive_process"
#: Below the root of the host: the settings of each daemon.
SETTINGS = "etc/openfleet-gpu/mps"
#: Of the spec of a daemon.
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
    """A GPU, or one GPU instance of it, named by what outlives a reboot: the UUID of the GPU, profile and start."""

    gpu_uuid: str
    profile: str | None = None
    start: int | None = None

    @property
    def in_mig(self) -> bool:
        return self.profile is not None


@frozen
class MpsDaemon:
    """One control daemon. It serves one GPU, several whole GPUs, or one MIG device.

    `active_thread_percentage` (1 to 100) and `pinned_memory_limit_bytes` (on each GPU; None sets no limit) cap each of its
    clients. `clients` is how many it is meant for; the daemon itself does not count them.
    """

    name: str
    places: tuple[MpsPlace, ...]
    clients: int
    active_thread_percentage: int
    pinned_memory_limit_bytes: int | None = None


@frozen
class MpsClient:
    """A process that an MPS server says it serves.

    What answers at a daemon's pipes may name any process. `attested` says what the kernel shows: the server is the daemon's
    child, and the process is of its user and has a GPU open that the server has open.
    """

    pid: int
    server_pid: int
    command: str | None = None
    user: str | None = None
    attested: bool = field(default=True, metadata=INTERNAL)
    #: When it began, in the kernel's count: a later process with its pid is another one.
    started_ticks: int | None = field(default=None, metadata=INTERNAL)


@frozen
class MpsSeen:
    """A daemon of this collection, as a host has it.

    `daemon` and `devices` (UUIDs of GPUs, or of the one MIG device, in CUDA_VISIBLE_DEVICES) are what its files say. The
    limits are what the running daemon answers, None where it does not run or does not tell; the percentage is that of one of
    its servers where that has another one than it should. A daemon that is to run and does not answer has a `problem`.
    """

    daemon: MpsDaemon
    devices: tuple[str, ...]
    running: bool
    pid: int | None = None
    server_pids: tuple[int, ...] = ()
    clients: tuple[MpsClient, ...] = ()
    active_thread_percentage: float | None = None
    pinned_memory_limits_bytes: tuple[int | None, ...] = ()
    #: Files that are missing, or that this release would write otherwise.
    outdated: tuple[str, ...] = ()
    problem: str | None = None
    #: Servers that do not answer: they start, end, or hang, and then may have limits of before.
    silent_server_pids: tuple[int, ...] = ()
    #: Whether the pipe directory has a file system of limited size; None where the daemon does not run.
    pipe_directory_limited: bool | None = None
    #: Servers that the kernel does not show to be the daemon's: they hold their GPUs as any process does.
    unattested_server_pids: tuple[int, ...] = field(default=(), metadata=INTERNAL)


def unit_of(name: str) -> str:
    """Return the name of the daemon's unit."""
    return "openfleet-mps@%s.service" % name


def spec_files(root: Path) -> Iterable[Path]:
    """Return the files that say which daemons a host has, readable or not."""
    # NAME.json only: what is written meanwhile ends in .new.
    return (root / SETTINGS).glob("*.json")


def spec_path(name: str) -> str:
    """The file that says which daemon this is. Of the daemon's files it is written first and removed last."""
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
    """(daemon, devices) of a spec. Raises KeyError or TypeError for what is none."""
    daemon = MpsDaemon(
        data["name"],
        tuple(MpsPlace(**place) for place in data["places"]),
        data["clients"],
        data["active_thread_percentage"],
        data["pinned_memory_limit_bytes"],
    )
    return daemon, tuple(data["devices"])
