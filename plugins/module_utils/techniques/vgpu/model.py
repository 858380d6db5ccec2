# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tenants of `sharing: vgpu` as plain frozen values: as a layout wants them, and as they were seen on a host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable

#: Word in `gpu_layout`.
KEY = "vgpu"
#: The tenants' programs open the GPU, or a daemon that is in nobody's way.
COMPUTE_MODE = "default"

#: Who gets the GPU where tenants contend for it.
POLICIES = ("fixed", "contended", "burst")
#: What holds tenants to their quotas. `auto` is for layouts: a tenant has one of the others.
PROVIDERS = AUTO, PRELOAD, MPS, DMEM = ("auto", "preload", "mps", "dmem")

#: The turnstile that a tenant shares with its neighbours is a file: they can truncate it, which ends its programs.
NOT_ISOLATED = "none"
#: It is sealed memory of the agent: they cannot truncate it. Root in a container can write it, which delays its programs.
SEALED = "sealed"
#: They cannot write it either: each tenant writes a page of its own, which is immutable for the others.
READ_ONLY = "read_only"

#: Tenants that a GPU has seats for, and GPUs that a tenant's region has room for: the library's own (its turnstile.h and
#: region.h, in the role vgpu_limiter).
SEATS, MOST_GPUS = 64, 16


@dataclass(frozen=True, order=True)
class VgpuSeat:
    """A GPU of a tenant, and the tenant's place among those of that GPU, 0 to SEATS - 1."""

    gpu_uuid: str
    seat: int


@dataclass(frozen=True)
class VgpuTenant:
    """One tenant: a quota of `memory_bytes` and `sm_percent` on each GPU that it has a seat on, for all its processes."""

    name: str
    memory_bytes: int
    sm_percent: int
    seats: tuple[VgpuSeat, ...]
    policy: str = "fixed"
    priority: int = 0
    provider: str = PRELOAD
    #: The Unix group that may write the tenant's region. None: every user of the host may.
    group: str | None = None
    #: Managed memory (cuMemAllocManaged) does not count against memory_bytes.
    oversubscribe_managed: bool = False
    #: The name under which its processes are counted, where it is not `name`: it stays when the tenant is renamed.
    counted_as: str | None = None
    #: Its other names. Processes that have one of them are its processes.
    aliases: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name of its spec, of its files below /run, of its slice and on its seats. No other tenant of the host has it."""
        return self.counted_as or self.name

    @property
    def names(self) -> tuple[str, ...]:
        """All names that its processes may have."""
        return (self.name, *self.aliases)

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of its GPUs, in the order in which its processes see them."""
        return tuple(seat.gpu_uuid for seat in self.seats)

    def has_neighbours(self, tenants: Iterable[VgpuTenant]) -> bool:
        """Return whether the library holds its launches back and other `tenants` can write what it goes by."""
        if self.provider == MPS or self.sm_percent >= 100:
            return False
        others = (each for each in tenants if each.key != self.key and each.provider != MPS)
        return any(set(self.gpus).intersection(each.gpus) for each in others)


@dataclass(frozen=True)
class VgpuUse:
    """What a tenant's processes have on one GPU: `used_bytes` of its quota now and at most, and refused allocations."""

    gpu_uuid: str
    used_bytes: int
    peak_bytes: int
    refused: int


@dataclass(frozen=True)
class VgpuUsage:
    """What a tenant's processes have in all: how many there are, and what they use."""

    processes: int = 0
    gpus: tuple[VgpuUse, ...] = ()


@dataclass(frozen=True)
class VgpuName:
    """A name of a tenant, and the processes that have it."""

    name: str
    pids: tuple[int, ...]


@dataclass(frozen=True)
class VgpuSeen:
    """A tenant of this collection, as a host has it. `usage` is None where nothing tells it."""

    tenant: VgpuTenant
    #: Files that are missing, or that this release would write otherwise.
    outdated: tuple[str, ...] = ()
    usage: VgpuUsage | None = None
    #: How the tenant is protected from its neighbours' writes. None: there is no neighbour, or nothing holds the tenant back.
    isolation: str | None = None
    #: The names that processes have, for a tenant with several names.
    names_in_use: tuple[VgpuName, ...] = ()
