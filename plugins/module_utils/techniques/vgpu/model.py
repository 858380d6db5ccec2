# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tenants of `sharing: vgpu` as plain frozen values: as a layout wants them, and as they were seen on a host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Iterable, Mapping

from ...frozen import frozen, sortable

#: Word in `gpu_layout`.
KEY = "vgpu"
#: Name of the tenants of a host in return values.
NAME = "vgpu_tenants"
#: Below the root of the host: settings of each tenant.
SETTINGS = "etc/openfleet-gpu/vgpu"
#: Below the root of the host: what changes, and of it what each tenant has.
STATE = "run/openfleet-gpu/vgpu"
TENANTS = STATE + "/tenants"
#: Of the layout of the files below /run.
REGION_VERSION = 1
#: Of the spec of a tenant.
SCHEMA = 1
#: The tenants' programs open the GPU, or a daemon that blocks no change.
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

#: A root of its own, for tests: the library heeds it too.
_ROOT_VARIABLE = "OPENFLEET_VGPU_ROOT"


@sortable
@frozen
class VgpuSeat:
    """A GPU of a tenant, and the tenant's place among those of that GPU, 0 to SEATS - 1."""

    gpu_uuid: str
    seat: int


@frozen
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


@frozen
class VgpuUse:
    """What a tenant's processes have on one GPU: `used_bytes` of its quota now and at most, and refused allocations."""

    gpu_uuid: str
    used_bytes: int
    peak_bytes: int
    refused: int


@frozen
class VgpuUsage:
    """What a tenant's processes have in all: how many there are, and what they use."""

    processes: int = 0
    gpus: tuple[VgpuUse, ...] = ()


@frozen
class VgpuName:
    """A name of a tenant, and the processes that have it."""

    name: str
    pids: tuple[int, ...]


@frozen
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


def folder(name: str) -> str:
    """Return the folder of what a name of a tenant has."""
    return "%s/%s" % (SETTINGS, name)


def spec_path(key: str) -> str:
    """Return the file that says which tenant this is, by the tenant's key.

    Of the tenant's files it is written first and removed last. A rename changes what is in it and not its path.
    """
    return folder(key) + "/tenant.json"


def applies(private: bool) -> bool:
    """Whether this host's tenants are of the GPUs that a session sees, which may be `private`."""
    return not private or bool(os.environ.get(_ROOT_VARIABLE))


def root_of_files() -> Path:
    """Return the folder below which this host has the files of tenants."""
    return Path(os.environ.get(_ROOT_VARIABLE) or "/")


def spec_files(root: Path) -> Iterable[Path]:
    """Return the files that say which tenants a host has, readable or not."""
    return root.glob(spec_path("*"))


def to_data(tenant: VgpuTenant) -> dict[str, Any]:
    """Return the tenant's spec. A tenant that never had another name has the same one as in earlier releases."""
    renamed: dict[str, Any] = {}
    if tenant.counted_as is not None:
        renamed["counted_as"] = tenant.counted_as
    if tenant.aliases:
        renamed["aliases"] = list(tenant.aliases)
    return {
        "schema": SCHEMA,
        "name": tenant.name,
        "provider": tenant.provider,
        "group": tenant.group,
        "oversubscribe_managed": tenant.oversubscribe_managed,
        "policy": tenant.policy,
        "priority": tenant.priority,
        "memory_bytes": tenant.memory_bytes,
        "sm_percent": tenant.sm_percent,
        "seats": [{"gpu_uuid": seat.gpu_uuid, "seat": seat.seat} for seat in tenant.seats],
        **renamed,
    }


def from_data(data: Mapping[str, Any]) -> VgpuTenant:
    """The tenant of a spec. Raises KeyError or TypeError for what is none."""
    return VgpuTenant(
        data["name"],
        data["memory_bytes"],
        data["sm_percent"],
        tuple(VgpuSeat(**seat) for seat in data["seats"]),
        data["policy"],
        data["priority"],
        data["provider"],
        data.get("group"),
        data.get("oversubscribe_managed", False),
        data.get("counted_as"),
        tuple(data.get("aliases", ())),
    )


def region_path(key: str) -> str:
    """Return the path of the region of the tenant of this key."""
    return "%s/%s/region.%d" % (TENANTS, key, REGION_VERSION)
