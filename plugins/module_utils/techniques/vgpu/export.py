# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Convert the tenants of GPUs to parts of a layout. Pure functions."""

from __future__ import annotations

import math
from typing import Callable, Sequence

from ...layout.form import Seen
from ...layout.types import Selector
from ...model import Gpu
from .model import AUTO, KEY, MPS, PRELOAD, VgpuTenant
from .part import Tenant, Vgpu

# Tolerance for ratios, because floating point is inexact: 1.15 * 100 is slightly below 115.
_ROUNDING = 1e-9


def export_together(
    gpus: Sequence[Gpu], seen: Seen, pin: Callable[[Gpu], Selector] | None, left_out: list[str]
) -> dict[str, Vgpu | None]:
    """Return the part of each GPU with tenants, by GPU UUID.

    The value is None if a layout cannot express the tenants. GPUs with a common tenant get the same part. With `pin`,
    each tenant on one GPU is pinned to this GPU. Tenants of leases are not part of a layout.
    """
    tenants = [one.tenant for one in seen.get(KEY, ()) if one.tenant.lease is None]
    parts: dict[str, Vgpu | None] = {}
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    for group in _groups(tenants):
        uuids = {uuid for tenant in group for uuid in tenant.gpus}
        names = ", ".join(sorted(tenant.name for tenant in group))
        problem = _problem(group, [by_uuid.get(uuid) for uuid in sorted(uuids)])
        if problem:
            left_out.append("the tenants %s are left out: %s" % (names, problem))
        parts.update(dict.fromkeys(uuids, None if problem else _vgpu(group, by_uuid, pin)))
    return parts


def _groups(tenants: Sequence[VgpuTenant]) -> list[list[VgpuTenant]]:
    """Return groups of tenants that share a GPU, directly or through other tenants."""
    groups: list[list[VgpuTenant]] = []
    for tenant in sorted(tenants, key=lambda each: each.name):
        near = [group for group in groups if any(set(tenant.gpus).intersection(other.gpus) for other in group)]
        groups = [group for group in groups if group not in near]
        groups.append(sorted([*(other for group in near for other in group), tenant], key=lambda each: each.name))
    return groups


def _problem(group: Sequence[VgpuTenant], gpus: Sequence[Gpu | None]) -> str:
    if any(gpu is None for gpu in gpus):
        return "one of their GPUs is missing"
    modes = [gpu.label for gpu in gpus if gpu is not None and (gpu.mig.enabled or gpu.compute_mode != "default")]
    if modes:
        return "%s is not in compute mode default" % " and ".join(modes)
    sizeless = [gpu.label for gpu in gpus if gpu is not None and gpu.memory_total_bytes is None]
    if sizeless:
        return "the driver reports no memory size for %s" % " and ".join(sizeless)
    if len({(tenant.policy, tenant.waterline_percent, tenant.provider == MPS) for tenant in group}) > 1:
        return "they share GPUs, but differ in policy, waterline or provider"
    return ""


def _vgpu(group: Sequence[VgpuTenant], gpus: dict[str, Gpu], pin: Callable[[Gpu], Selector] | None) -> Vgpu:
    memory = sm = 1.0
    for uuid in {uuid for tenant in group for uuid in tenant.gpus}:
        on_gpu = [tenant for tenant in group if uuid in tenant.gpus]
        # The divisor 1 avoids a division by zero. Groups with a GPU of unknown memory size are not exported.
        memory = max(memory, sum(tenant.memory_bytes for tenant in on_gpu) / (gpus[uuid].memory_total_bytes or 1))
        sm = max(sm, sum(tenant.sm_percent for tenant in on_gpu) / 100)
    return Vgpu(
        tuple(_tenant(tenant, gpus, pin) for tenant in group),
        group[0].policy,
        _hundredths(memory),
        _hundredths(sm),
        _provider(group),
        group[0].waterline_percent,
    )


def _provider(group: Sequence[VgpuTenant]) -> str:
    """Return the value of `provider` that keeps the tenants unchanged.

    Returns `preload` instead of `auto` for tenants with `preload`, because `auto` may select a stronger provider.
    """
    providers = {tenant.provider for tenant in group}
    return providers.pop() if providers in ({MPS}, {PRELOAD}) else AUTO


def _hundredths(ratio: float) -> float:
    return math.ceil(ratio * 100 - _ROUNDING) / 100


def _tenant(tenant: VgpuTenant, gpus: dict[str, Gpu], pin: Callable[[Gpu], Selector] | None) -> Tenant:
    alone = pin is not None and len(tenant.gpus) == 1
    return Tenant(
        tenant.name,
        tenant.memory_bytes,
        tenant.sm_percent,
        0 if tenant.latency is not None else tenant.priority,
        len(tenant.gpus),
        pin(gpus[tenant.gpus[0]]) if alone and pin is not None else None,
        tenant.group,
        tenant.oversubscribe_managed,
        # The first alias is the layout's key `was`. All other aliases end with their processes.
        tenant.aliases[0] if tenant.aliases else None,
        tenant.latency,
    )
