# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Look at the tenants of a host, and report them as return values of modules.

Light: modules that only look carry it. `host` also changes tenants, and knows which of their files are outdated.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Iterator

from ... import durable
from ...errors import FleetError
from . import region as vgpu_region
from .model import MPS, SCHEMA, VgpuSeen, VgpuTenant, from_data, spec_path

#: A root of its own, for tests: the library heeds it too.
ROOT_VARIABLE = "OPENFLEET_VGPU_ROOT"

#: What is told of a tenant as its spec has it; and where the tenants cannot be looked at.
_OF_TENANT = ("name", "memory_bytes", "sm_percent", "policy", "priority", "provider", "group", "oversubscribe_managed")
_NO_TENANT = {**dict.fromkeys((*_OF_TENANT, "processes")), "aliases": [], "gpus": []}


def applies(private: bool) -> bool:
    """Whether this host's tenants are of the GPUs that a session sees, which may be `private`."""
    return not private or bool(os.environ.get(ROOT_VARIABLE))


class Tenants:
    """The tenants of this host. `root` is where its files are."""

    def __init__(self, root: str | None = None) -> None:
        self._root = Path(root or os.environ.get(ROOT_VARIABLE) or "/")

    def tenants(self) -> list[VgpuTenant]:
        """Return the tenants of this host, by name. Raises ApplyError for files that cannot be read."""
        return sorted(self._tenants(), key=lambda tenant: tenant.name)

    def _tenants(self) -> Iterator[VgpuTenant]:
        for path in sorted(self._root.glob(spec_path("*"))):
            data = durable.read(path, SCHEMA)
            if data is not None:
                try:
                    tenant = from_data(data)
                except (KeyError, TypeError):
                    raise durable.damaged(path) from None
                if tenant.key != path.parent.name:
                    raise durable.damaged(path, 'tells of the tenant "%s"' % tenant.key)
                yield tenant

    def look(self, tenant: VgpuTenant) -> VgpuSeen:
        """Return the tenant with what its processes use."""
        # Tenants of MPS have no library that would count.
        counted = tenant.provider != MPS
        usage = vgpu_region.read(self._root / vgpu_region.region_path(tenant.key)) if counted else None
        return VgpuSeen(tenant, usage=usage)


def look(private: bool) -> tuple[VgpuSeen, ...]:
    """Return the tenants; none where the GPUs are simulated for this process alone. Raises ApplyError."""
    host = Tenants()
    return tuple(map(host.look, host.tenants())) if applies(private) else ()


def report(private: bool) -> list[dict[str, Any]]:
    """Return the collection's tenants on this host; none where the GPUs are simulated for this process alone.

    Where they cannot be looked at, one entry has nothing but the `problem`: that is told, and fails nobody.
    """
    try:
        observed = look(private)
    except FleetError as error:
        return [dict(_NO_TENANT, problem=str(error))]
    return [_told_of(seen) for seen in observed]


def _told_of(seen: VgpuSeen) -> dict[str, Any]:
    """Return a tenant as modules return it."""
    tenant, usage = seen.tenant, seen.usage
    used = {each.gpu_uuid: each.used_bytes for each in usage.gpus} if usage is not None else {}
    none = None if usage is None else 0
    return {
        **{name: getattr(tenant, name) for name in _OF_TENANT},
        "aliases": list(tenant.aliases),
        "gpus": [
            {"uuid": seat.gpu_uuid, "seat": seat.seat, "used_bytes": used.get(seat.gpu_uuid, none)}
            for seat in tenant.seats
        ],
        "processes": None if usage is None else usage.processes,
        "problem": None,
    }
