# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe desired and current MPS control daemons as frozen values."""

# `frozen` makes dataclasses.
# pylint: disable=invalid-field-call
from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Any, Iterable, Mapping, Sequence

from ...frozen import frozen, sortable
from ...model import INTERNAL

#: Value in `gpu_layout`.
KEY = "mps"
#: Key of the host's daemons in return values.
NAME = "mps_daemons"
#: Values of `daemon_per`: one daemon for each GPU of an entry, or one daemon for all its GPUs.
DAEMONS = ("gpu", "entry")
#: Compute mode for GPUs with daemons: only the daemon's server opens the GPU, and clients use it through the server.
COMPUTE_MODE = "exclusive_process"
#: Folder with the daemons' settings, relative to the host's root.
SETTINGS = "etc/openfleet-gpu/mps"
#: Format version of a daemon's spec file.
SCHEMA = 1


@frozen
class Mps:
    """The part `mps` of a layout: an MPS daemon and each client's limits.

    Memory is not limited if `pinned_memory_limit_bytes` is None.
    """

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
    """A GPU or a GPU instance, identified by values that survive a reboot.

    These are the GPU's UUID, and an instance's profile and start.
    """

    gpu_uuid: str
    profile: str | None = None
    start: int | None = None

    @property
    def in_mig(self) -> bool:
        return self.profile is not None


@frozen
class MpsDaemon:
    """A control daemon for one GPU, several whole GPUs, or one MIG device.

    `active_thread_percentage` (1 to 100) and `pinned_memory_limit_bytes` are the limits of each client. The memory limit
    applies to each GPU, and None means no limit. `clients` is the planned number of clients, which the daemon does not
    enforce.
    """

    name: str
    places: tuple[MpsPlace, ...]
    clients: int
    active_thread_percentage: int
    pinned_memory_limit_bytes: int | None = None


@frozen
class MpsClient:
    """A process that an MPS server reports as its client.

    A process that answers in place of the daemon may name any process. So `attested` is true only if the kernel
    confirms three facts: the server is a child of the daemon, the server may serve the process's user, and the process
    has one of the server's GPUs open.
    """

    pid: int
    server_pid: int
    command: str | None = None
    user: str | None = None
    attested: bool = field(default=True, metadata=INTERNAL)
    #: Start time of the process in the kernel's clock ticks, which distinguishes it from a later process with the same
    #: PID.
    started_ticks: int | None = field(default=None, metadata=INTERNAL)


@frozen
class MpsSeen:
    """The current state of a daemon of this collection.

    `daemon` and `devices` are read from the daemon's files. `devices` has the UUIDs in CUDA_VISIBLE_DEVICES: UUIDs of
    GPUs, or the UUID of one MIG device. The limits are those that the running daemon reports, or None if it does not
    answer. If a server's percentage differs from the daemon's, `active_thread_percentage` is the server's. `problem`
    has the reason if the daemon should run but does not answer.
    """

    daemon: MpsDaemon
    devices: tuple[str, ...]
    running: bool
    pid: int | None = None
    server_pids: tuple[int, ...] = ()
    clients: tuple[MpsClient, ...] = ()
    active_thread_percentage: float | None = None
    pinned_memory_limits_bytes: tuple[int | None, ...] = ()
    #: Files that are missing or differ from this release's version.
    outdated: tuple[str, ...] = ()
    problem: str | None = None
    #: PIDs of servers that do not answer because they start, end or hang. Their limits may be outdated.
    silent_server_pids: tuple[int, ...] = ()
    #: Whether the pipe directory's file system has a limited size. None if the daemon is not running.
    pipe_directory_limited: bool | None = None
    #: PIDs that the daemon reports as servers, but that the kernel does not list as its children. They count as
    #: ordinary holders.
    unattested_server_pids: tuple[int, ...] = field(default=(), metadata=INTERNAL)


def unit_of(name: str) -> str:
    """Return the name of the daemon's unit."""
    return "openfleet-mps@%s.service" % name


def spec_files(root: Path) -> Iterable[Path]:
    """Return the spec files of the host's daemons, including unreadable ones."""
    # Match only NAME.json: files that are being written end in ".new".
    return (root / SETTINGS).glob("*.json")


def spec_path(name: str) -> str:
    """Return the path of a daemon's spec file.

    The spec is the first of a daemon's files to be written, and the last to be removed.
    """
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
    """Return (daemon, devices) from a spec.

    Raises KeyError or TypeError if the data is not a spec.
    """
    daemon = MpsDaemon(
        data["name"],
        tuple(MpsPlace(**place) for place in data["places"]),
        data["clients"],
        data["active_thread_percentage"],
        data["pinned_memory_limit_bytes"],
    )
    return daemon, tuple(data["devices"])
