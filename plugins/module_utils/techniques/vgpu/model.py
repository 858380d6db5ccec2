# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define tenants of `sharing: vgpu` as frozen values, as desired by a layout and as observed on a host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Iterable, Mapping

from ...frozen import frozen, sortable

#: Key in `gpu_layout`.
KEY = "vgpu"
#: Key of a host's tenants in return values.
NAME = "vgpu_tenants"
#: Folder of the tenants' settings, below the root of the host.
SETTINGS = "etc/openfleet-gpu/vgpu"
#: Folder of runtime state below the root of the host, and the tenants' part of it.
STATE = "run/openfleet-gpu/vgpu"
TENANTS = STATE + "/tenants"
#: Version of the format of the files below /run.
REGION_VERSION = 1
#: Version of a tenant's spec.
SCHEMA = 1
#: Compute mode of GPUs with tenants, whose programs open the GPU themselves or use an MPS daemon.
COMPUTE_MODE = "default"

#: How shares apply if tenants contend for a GPU.
POLICIES = ("fixed", "contended", "burst")
#: Providers, which enforce quotas. `auto` occurs only in layouts. A tenant has one of the others.
PROVIDERS = AUTO, PRELOAD, MPS, DMEM = ("auto", "preload", "mps", "dmem")

#: The turnstile is a file. Neighbours can truncate it, which ends the tenant's programs.
NOT_ISOLATED = "none"
#: The turnstile is sealed memory. Neighbours cannot truncate it. Root in a container can write it and delay programs.
SEALED = "sealed"
#: Neighbours cannot write it either: each tenant's page is immutable for them.
READ_ONLY = "read_only"

#: Seats per GPU and GPUs per region: limits of the library (turnstile.h and region.h in the role vgpu_limiter).
SEATS, MOST_GPUS = 64, 16

#: Sets a root for tests. The library reads it too.
_ROOT_VARIABLE = "OPENFLEET_VGPU_ROOT"


@sortable
@frozen
class VgpuSeat:
    """A GPU of a tenant, and the tenant's seat on it, 0 to SEATS - 1."""

    gpu_uuid: str
    seat: int


@frozen
class VgpuTenant:
    """A tenant: a quota of `memory_bytes` and `sm_percent` on each of its GPUs, shared by all its processes."""

    name: str
    memory_bytes: int
    sm_percent: int
    seats: tuple[VgpuSeat, ...]
    policy: str = "fixed"
    priority: int = 0
    provider: str = PRELOAD
    #: The Unix group that may write the tenant's region. None allows every user of the host.
    group: str | None = None
    #: Whether managed memory (cuMemAllocManaged) is exempt from memory_bytes.
    oversubscribe_managed: bool = False
    #: The accounting name, if not `name`. A rename does not change it.
    counted_as: str | None = None
    #: Other names. Processes with one of them belong to the tenant.
    aliases: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Unique accounting name on the host, used for the spec, files below /run, the slice and seats."""
        return self.counted_as or self.name

    @property
    def names(self) -> tuple[str, ...]:
        """Return all names of the tenant."""
        return (self.name, *self.aliases)

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of its GPUs, in the order in which its processes see them."""
        return tuple(seat.gpu_uuid for seat in self.seats)

    def has_neighbours(self, tenants: Iterable[VgpuTenant]) -> bool:
        """Return whether the library throttles the tenant and other `tenants` share one of its GPUs."""
        if self.provider == MPS or self.sm_percent >= 100:
            return False
        neighbours = (each for each in tenants if each.key != self.key and each.provider != MPS)
        return any(set(self.gpus).intersection(each.gpus) for each in neighbours)


@frozen
class VgpuUse:
    """A tenant's current and peak memory on one GPU, and the number of refused allocations."""

    gpu_uuid: str
    used_bytes: int
    peak_bytes: int
    refused: int


@frozen
class VgpuUsage:
    """The number of a tenant's processes and their usage by GPU."""

    processes: int = 0
    gpus: tuple[VgpuUse, ...] = ()


@frozen
class VgpuName:
    """A name of a tenant and the PIDs of processes with this name."""

    name: str
    pids: tuple[int, ...]


@frozen
class VgpuSeen:
    """A tenant as observed on a host. `usage` is None if unknown."""

    tenant: VgpuTenant
    #: Files that are missing or differ from this release.
    outdated: tuple[str, ...] = ()
    usage: VgpuUsage | None = None
    #: Protection from neighbours' writes. None if the tenant has no neighbour or is not throttled.
    isolation: str | None = None
    #: Names used by processes, for a tenant with several names.
    names_in_use: tuple[VgpuName, ...] = ()


def folder(name: str) -> str:
    """Return the folder of a tenant's name."""
    return "%s/%s" % (SETTINGS, name)


def spec_path(key: str) -> str:
    """Return the path of the spec of the tenant with this key.

    It is the first file of a tenant to be written and the last to be removed. A rename does not change the path.
    """
    return folder(key) + "/tenant.json"


def applies(private: bool) -> bool:
    """Return whether the host's tenants apply to a session's GPUs, which may be `private`."""
    return not private or bool(os.environ.get(_ROOT_VARIABLE))


def root_of_files() -> Path:
    """Return the root folder of the tenants' files."""
    return Path(os.environ.get(_ROOT_VARIABLE) or "/")


def spec_files(root: Path) -> Iterable[Path]:
    """Return the spec files of a host's tenants, readable or not."""
    return root.glob(spec_path("*"))


def to_data(tenant: VgpuTenant) -> dict[str, Any]:
    """Return the tenant's spec. Without a rename, it has the format of earlier releases."""
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
    """Return the tenant of a spec. Raises KeyError or TypeError if it is invalid."""
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
    """Return the path of the region of the tenant with this key."""
    return "%s/%s/region.%d" % (TENANTS, key, REGION_VERSION)
