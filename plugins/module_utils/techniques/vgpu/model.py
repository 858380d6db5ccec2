# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define tenants for `sharing: vgpu` as frozen values.

They describe both the tenants that a layout requests and the tenants of a host.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Iterable, Mapping

from ...frozen import frozen, sortable

#: Key in `gpu_layout`.
KEY = "vgpu"
#: Key of the host's tenants in return values.
NAME = "vgpu_tenants"
#: Folder with the tenants' settings, relative to the host's root.
SETTINGS = "etc/openfleet-gpu/vgpu"
#: Folder with runtime state, relative to the host's root, and its subfolder for tenants.
STATE = "run/openfleet-gpu/vgpu"
TENANTS = STATE + "/tenants"
#: Format version of the files in /run.
REGION_VERSION = 1
#: Format version of a tenant's spec.
SCHEMA = 1
#: Compute mode of GPUs with tenants, whose programs open the GPU themselves or use an MPS daemon.
COMPUTE_MODE = "default"

#: Values of `policy`: when a tenant's share applies.
POLICIES = ("fixed", "contended", "burst", "colocate")
#: The policy under which offline tenants use what online tenants leave, up to the waterline.
COLOCATE = POLICIES[3]
#: Values of `latency`. A tenant's priority is the value's position.
LATENCIES = ONLINE, OFFLINE = ("online", "offline")
#: Default of `waterline_percent`.
WATERLINE_PERCENT = 80
#: Providers that enforce quotas. Only layouts use `auto`. A tenant on a host has one of the other values.
PROVIDERS = AUTO, PRELOAD, MPS, DMEM = ("auto", "preload", "mps", "dmem")

#: The turnstile is a file, which other tenants of the GPU can truncate. This ends the tenant's programs.
NOT_ISOLATED = "none"
#: The turnstile is sealed memory that cannot be truncated. Root in another tenant's container can write to it, and so
#: delay the tenant's programs.
SEALED = "sealed"
#: The turnstile is sealed memory, and other tenants cannot write to the tenant's page.
READ_ONLY = "read_only"

#: The library's maximum number of seats per GPU, and of GPUs per region (turnstile.h and region.h in the role
#: vgpu_limiter).
SEATS, MOST_GPUS = 64, 16

#: Environment variable with another root folder, for tests. The library reads it too.
_ROOT_VARIABLE = "OPENFLEET_VGPU_ROOT"


def priority_of(priority: int, latency: str | None) -> int:
    """Return the priority in a quota file: 0 if online, 1 if offline."""
    return priority if latency is None else LATENCIES.index(latency)


@sortable
@frozen
class VgpuSeat:
    """A GPU of a tenant, and the tenant's seat on the GPU (0 to SEATS - 1)."""

    gpu_uuid: str
    seat: int


@frozen
class VgpuTenant:
    """A tenant and its quota on each of its GPUs.

    All processes of the tenant share the quota of `memory_bytes` and `sm_percent`.
    """

    name: str
    memory_bytes: int
    sm_percent: int
    seats: tuple[VgpuSeat, ...]
    policy: str = "fixed"
    priority: int = 0
    provider: str = PRELOAD
    #: Group whose members may write the tenant's region. None permits every user of the host.
    group: str | None = None
    #: Whether managed memory (cuMemAllocManaged) is exempt from `memory_bytes`.
    oversubscribe_managed: bool = False
    #: The name under which processes are accounted, if it is not `name`. A rename of the tenant does not change it.
    counted_as: str | None = None
    #: Other names of the tenant, which its processes may still use.
    aliases: tuple[str, ...] = ()
    #: The lease and its account, for messages. None for a layout's tenant.
    lease: str | None = None
    #: Offline tenants may use up to this percentage of the GPU (policy `colocate`). None for other policies.
    waterline_percent: int | None = None

    @property
    def latency(self) -> str | None:
        """Return "online" or "offline" with the policy `colocate`, else None."""
        return LATENCIES[min(self.priority, 1)] if self.policy == COLOCATE else None

    @property
    def key(self) -> str:
        """Return the accounting name, which is unique on the host.

        The spec, the files in /run, the slice and the seats have this name.
        """
        return self.counted_as or self.name

    @property
    def names(self) -> tuple[str, ...]:
        """Return all names of the tenant."""
        return (self.name, *self.aliases)

    @property
    def gpus(self) -> tuple[str, ...]:
        """Return the UUIDs of the GPUs, in the order in which processes see them."""
        return tuple(seat.gpu_uuid for seat in self.seats)

    def has_neighbours(self, tenants: Iterable[VgpuTenant]) -> bool:
        """Return whether the library throttles the tenant and the tenant has neighbours.

        Its neighbours are the tenants in `tenants` on one of its GPUs.
        """
        if self.provider == MPS or (self.sm_percent >= 100 and self.policy != COLOCATE):
            return False
        neighbours = (each for each in tenants if each.key != self.key and each.provider != MPS)
        return any(set(self.gpus).intersection(each.gpus) for each in neighbours)


@frozen
class VgpuUse:
    """A tenant's current and peak memory on one GPU, and its refused allocations."""

    gpu_uuid: str
    used_bytes: int
    peak_bytes: int
    refused: int


@frozen
class VgpuUsage:
    """A tenant's number of processes, and its usage of each GPU."""

    processes: int = 0
    gpus: tuple[VgpuUse, ...] = ()


@frozen
class VgpuName:
    """A name of a tenant, and the PIDs of the processes that use it."""

    name: str
    pids: tuple[int, ...]


@frozen
class VgpuSeen:
    """A tenant as observed on a host. `usage` is None if it is unknown."""

    tenant: VgpuTenant
    #: Files that are missing or differ from this release's version.
    outdated: tuple[str, ...] = ()
    usage: VgpuUsage | None = None
    #: How the tenant is protected from writes by the GPU's other tenants. None if it has no neighbour or is not
    #: throttled.
    isolation: str | None = None
    #: Names that processes use. Set only for a tenant with several names.
    names_in_use: tuple[VgpuName, ...] = ()


def folder(name: str) -> str:
    """Return the folder for a name of a tenant."""
    return "%s/%s" % (SETTINGS, name)


def spec_path(key: str) -> str:
    """Return the path of the spec of the tenant with this key.

    The spec is the first of a tenant's files to be written, and the last to be removed. A rename of the tenant does not
    change the path.
    """
    return folder(key) + "/tenant.json"


def applies(private: bool) -> bool:
    """Return whether the host's tenants use the GPUs of an NVML session.

    Returns False if only this process simulates the GPUs (`private`).
    """
    return not private or bool(os.environ.get(_ROOT_VARIABLE))


def root_of_files() -> Path:
    """Return the root folder of the tenants' files."""
    return Path(os.environ.get(_ROOT_VARIABLE) or "/")


def spec_files(root: Path) -> Iterable[Path]:
    """Return the spec files of the host's tenants, including unreadable ones."""
    return root.glob(spec_path("*"))


def to_data(tenant: VgpuTenant) -> dict[str, Any]:
    """Return the tenant's spec.

    The spec of a tenant without rename, lease or colocation has the format of earlier releases.
    """
    optional: dict[str, Any] = {}
    if tenant.counted_as is not None:
        optional["counted_as"] = tenant.counted_as
    if tenant.aliases:
        optional["aliases"] = list(tenant.aliases)
    if tenant.lease is not None:
        optional["lease"] = tenant.lease
    if tenant.waterline_percent is not None:
        optional["waterline_percent"] = tenant.waterline_percent
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
        **optional,
    }


def from_data(data: Mapping[str, Any]) -> VgpuTenant:
    """Return the tenant of a spec.

    Raises KeyError or TypeError if the data is not a spec.
    """
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
        data.get("lease"),
        data.get("waterline_percent"),
    )


def region_path(key: str) -> str:
    """Return the path of the region of the tenant with this key."""
    return "%s/%s/region.%d" % (TENANTS, key, REGION_VERSION)
