# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report the tenants of a host as return values of modules."""

from __future__ import annotations

from typing import Any

from ...errors import FleetError
from .host import VgpuHost, applies
from .model import VgpuSeen

#: What is told where the tenants cannot be looked at.
_NO_TENANT = {
    "name": None,
    "aliases": [],
    "memory_bytes": None,
    "sm_percent": None,
    "policy": None,
    "priority": None,
    "provider": None,
    "group": None,
    "oversubscribe_managed": None,
    "gpus": [],
    "processes": None,
}


def report(private: bool) -> list[dict[str, Any]]:
    """Return the collection's tenants on this host; none where the GPUs are simulated for this process alone.

    Where they cannot be looked at, one entry has nothing but the `problem`: that is told, and fails nobody.
    """
    if not applies(private):
        return []
    try:
        observed = VgpuHost().observe()
    except FleetError as error:
        return [dict(_NO_TENANT, problem=str(error))]
    return [told_of(seen) for seen in observed]


def told_of(seen: VgpuSeen) -> dict[str, Any]:
    """A tenant as modules return it."""
    tenant = seen.tenant
    usage = seen.usage
    used = {each.gpu_uuid: each.used_bytes for each in usage.gpus} if usage is not None else {}
    none = None if usage is None else 0
    return {
        "name": tenant.name,
        "aliases": list(tenant.aliases),
        "memory_bytes": tenant.memory_bytes,
        "sm_percent": tenant.sm_percent,
        "policy": tenant.policy,
        "priority": tenant.priority,
        "provider": tenant.provider,
        "group": tenant.group,
        "oversubscribe_managed": tenant.oversubscribe_managed,
        "gpus": [
            {"uuid": seat.gpu_uuid, "seat": seat.seat, "used_bytes": used.get(seat.gpu_uuid, none)}
            for seat in tenant.seats
        ],
        "processes": None if usage is None else usage.processes,
        "problem": None,
    }
