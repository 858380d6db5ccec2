# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What modules and the command tell of a host's state: GPUs with their holders, MPS daemons, tenants. Free of Ansible."""

from __future__ import annotations

from typing import Any, Iterable

from .errors import FleetError
from .holders import blocking
from .model import Holder, Host, to_data
from .mps_host import MpsHost
from .nvml import Session
from .vgpu_host import VgpuHost, applies
from .vgpu_model import VgpuSeen

#: What is told where the daemons cannot be looked at.
_NO_DAEMON = {
    "name": None,
    "places": [],
    "devices": [],
    "clients": None,
    "active_thread_percentage": None,
    "pinned_memory_limits_bytes": [],
    "running": None,
    "pid": None,
    "server_pids": [],
    "silent_server_pids": [],
    "client_processes": [],
}
_NO_TENANT = {
    "name": None,
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


def gpus(host: Host, holders: Iterable[Holder] | None, profiles: bool = False) -> list[dict[str, Any]]:
    """Return the GPUs and their instances as data, each with its holders; None for these where nobody looked."""
    seen = None if holders is None else tuple(holders)
    data: list[dict[str, Any]] = to_data(host.gpus)
    for gpu in data:
        gpu["holders"] = None if seen is None else to_data(blocking(seen, gpu["uuid"]))
        if not profiles:
            del gpu["mig"]["profiles"]
        for instance in gpu["mig"]["instances"]:
            in_the_way = None if seen is None else to_data(blocking(seen, gpu["uuid"], instance["id"]))
            instance["holders"] = in_the_way
    return data


def vgpu_tenants(session: Session) -> list[dict[str, Any]]:
    """The collection's tenants on this host, as return values; none where the session's GPUs are this process's own.

    Where they cannot be looked at, one entry has nothing but the `problem`: that is told, and fails nobody.
    """
    if not applies(session.private):
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


def mps_daemons(session: Session) -> list[dict[str, Any]]:
    """The collection's MPS daemons on this host, as return values; none where the session's GPUs are this process's own.

    Where they cannot be looked at, one entry has nothing but the `problem`: that is told, and fails nobody.
    """
    if session.private:
        return []
    try:
        observed = MpsHost().observe()
    except FleetError as error:
        return [dict(_NO_DAEMON, problem=str(error))]
    return [
        {
            "name": seen.daemon.name,
            "places": to_data(seen.daemon.places),
            "devices": list(seen.devices),
            "clients": seen.daemon.clients,
            "active_thread_percentage": seen.active_thread_percentage,
            "pinned_memory_limits_bytes": list(seen.pinned_memory_limits_bytes),
            "running": seen.running,
            "pid": seen.pid,
            "server_pids": list(seen.server_pids),
            "silent_server_pids": list(seen.silent_server_pids),
            "client_processes": to_data(seen.clients),
            "problem": seen.problem,
        }
        for seen in observed
    ]
