# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe vGPU tenants to the controller.

A tenant is a workload with a name and with quotas of memory and SMs.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ...module_utils.layout.types import Entry, Selector
from ...module_utils.model import Gpu
from ...module_utils.techniques.vgpu import fit
from ...module_utils.techniques.vgpu.model import (
    AUTO,
    COLOCATE,
    KEY,
    MPS,
    NAME,
    OFFLINE,
    ONLINE,
    POLICIES,
    SEATS,
    WATERLINE_PERCENT,
)
from ...module_utils.techniques.vgpu.part import Tenant, Vgpu, vgpu_of
from ...module_utils.techniques.vgpu.plan import capacity
from .protocol import FleetTechnique, Part, Size

_MIB = 1 << 20
#: Tenant policy in entries that right-sizing writes.
_POLICY = POLICIES[0]


class FleetVgpu(FleetTechnique):
    """Tenants with quotas. `FleetTechnique` documents the members."""

    key = KEY
    title = "tenants with quotas"
    rows = NAME
    row_format: Mapping[str, Any] = {
        "name": "name",
        "aliases": ["name", 64],
        "memory_bytes": "count",
        "sm_percent": "small",
        "policy": "name",
        "priority": "small",
        "provider": "name",
        "oversubscribe_managed": "flag",
        "gpus": [{"uuid!": "gpu_uuid"}, 64],
        "problem": "text",
    }
    row_needs = ("name", "memory_bytes", "sm_percent")
    has_tenants = True
    mixes_histories = False
    proposed = True
    waterline_percent = WATERLINE_PERCENT
    risk = "a quota is not a security boundary, and its programs have to run as the tenant"

    def lease_room(self, gpu: Gpu, entry: Entry | None) -> tuple[int, float, int] | None:
        """Return the room of a GPU without fixed tenants.

        The host decides which GPUs fixed tenants get.
        """
        vgpu = vgpu_of(entry)
        if vgpu is None or vgpu.tenants:
            return None
        room = capacity(gpu, vgpu)
        return room.memory_bytes, room.sm_percent, room.seats

    def quota(self, row: Mapping[str, Any]) -> Size:
        """Return the quota of a tenant. Its memory is rounded up to MiB."""
        return Size(-(-int(row["memory_bytes"]) // _MIB), int(row["sm_percent"]))

    def fixed(self, rows: Sequence[Mapping[str, Any]], entry: Entry | None) -> str:
        """Return the setting that would be lost if right-sizing rewrote the entry."""
        for row in rows:
            if len(row.get("gpus") or ()) > 1:
                return "the tenant %s spans several GPUs" % row["name"]
            if row.get("policy", _POLICY) != _POLICY or row.get("priority"):
                return "the tenant %s has its own policy or priority" % row["name"]
            if row.get("aliases"):
                return "the tenant %s is being renamed (was: %s)" % (row["name"], row["aliases"][0])
            if row.get("oversubscribe_managed"):
                return "the tenant %s may have managed memory beyond its quota" % row["name"]
            if row.get("provider") == MPS:
                return "MPS enforces the quota of the tenant %s" % row["name"]
        part = vgpu_of(entry)
        if part is None:
            return ""
        if (part.oversubscribe_memory_ratio, part.oversubscribe_sm_ratio) != (1.0, 1.0):
            return "its tenants are oversubscribed"
        return "" if part.provider == AUTO else "its layout sets provider: %s" % part.provider

    def tenants(self, part: Vgpu) -> Sequence[Tenant]:
        """Return the tenants of the part."""
        return part.tenants

    def most_parts(self, compute_capability: str | None) -> int | None:
        """Return the number of seats of a GPU."""
        return SEATS

    def holds(self, gpu: Size, parts: Sequence[Size]) -> bool:
        """Return whether the tenants' planner finds a place on the GPU for all of them."""
        demands = [fit.Demand(str(n), part.memory_mib * _MIB, part.sm_percent) for n, part in enumerate(parts)]
        return fit.pack([fit.Bin("gpu", gpu.memory_mib * _MIB, gpu.sm_percent, SEATS)], demands) is not None

    def part(self, parts: Sequence[Part]) -> dict[str, Any]:
        """Return the tenants.

        If the parts are of several GPUs, a tenant with one GPU is pinned to it. The planner places tenants with several
        GPUs.
        """
        several = len({part.gpu_index for part in parts}) > 1
        tenants: dict[str, dict[str, Any]] = {}
        for part in parts:
            tenants[part.name] = tenant = {
                "name": part.name,
                "memory": "%dMiB" % max(1, part.size.memory_mib),
                "sm_percent": max(1, part.size.sm_percent),
            }
            if part.gpus > 1:
                tenant["gpus"] = part.gpus
            elif several:
                tenant["gpu"] = part.gpu_index
        return {"policy": _POLICY, "tenants": list(tenants.values())}

    def colocated_part(self, online_mib: int, offline_mib: Sequence[int]) -> dict[str, Any]:
        """Return tenants with generic names, because workloads' names may be invalid.

        The online tenant gets half of the SMs. The offline tenants divide the other half.
        """
        tenants: list[dict[str, Any]] = [_colocated(ONLINE, online_mib, 50, ONLINE)]
        for number, memory_mib in enumerate(offline_mib, 1):
            tenants.append(_colocated("%s-%d" % (OFFLINE, number), memory_mib, max(1, 50 // len(offline_mib)), OFFLINE))
        return {"policy": COLOCATE, "tenants": tenants}

    def suits(self, isolation: str, latency: str) -> str:
        """Return the reason for a workload that needs no isolation by hardware."""
        return "a quota is enough for it" if isolation == "quota" else ""

    def selectors(self, part: Vgpu) -> tuple[Selector, ...]:
        """Return the GPUs to which tenants are pinned."""
        return tuple(tenant.gpu for tenant in part.tenants if tenant.gpu is not None)


def _colocated(name: str, memory_mib: int, sm_percent: int, latency: str) -> dict[str, Any]:
    return {"name": name, "memory": "%dMiB" % memory_mib, "sm_percent": sm_percent, "latency": latency}
