# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the tenants of leases, with pure functions.

A lease's tenant differs from a layout's tenant only in its key `lease`.
"""

from __future__ import annotations

import dataclasses
from typing import Sequence

from ...layout.types import Entry
from ...leases.model import Booking, Shape, Use
from ...leases.names import lease_text, tenant_name
from ...model import Gpu
from .lease_card import QuotaCard
from .model import COLOCATE, OFFLINE, ONLINE, VgpuTenant, priority_of
from .part import Vgpu
from .plan import capacity, free_seats, provider_of, remaining, taken_seats


def card(gpu: Gpu, vgpu: Vgpu, tenants: Sequence[VgpuTenant]) -> QuotaCard:
    """Return the card of a GPU whose entry has leases.

    `tenants` are all tenants of the host.
    """
    room = remaining(capacity(gpu, vgpu), [tenant for tenant in tenants if tenant.lease is None])
    return QuotaCard(room, gpu.label, "gpu %d" % gpu.index)


def uses(uuid: str, tenants: Sequence[VgpuTenant], without: str) -> list[Use]:
    """Return the quotas of all leases on a GPU, except one.

    `without` is the name of that lease's tenant.
    """
    return [
        Use(Shape(tenant.memory_bytes, tenant.sm_percent), 0)
        for tenant in tenants
        if tenant.lease is not None and tenant.name != without and uuid in tenant.gpus
    ]


def tenant_of(
    booking: Booking,
    entry: Entry,
    gpus: Sequence[Gpu],
    current: Sequence[VgpuTenant],
    dmem: frozenset[str],
    group: str | None,
) -> VgpuTenant:
    """Return a lease's tenant, with free seats on its GPUs.

    `current` has all tenants of the host. `dmem` has the UUIDs of GPUs whose memory the kernel can limit. Members of
    `group` may run the lease's programs. Raises PlanError if the entry's provider is not possible.
    """
    vgpu: Vgpu = entry.part
    request, uuids = booking.request, [place.gpu_uuid for place in booking.places]
    taken = taken_seats(gpus, current, {tenant.key: set(tenant.gpus) for tenant in current})
    provider, _why = provider_of(vgpu.provider, uuids, dmem, "%s.vgpu.provider" % entry.where)
    return VgpuTenant(
        tenant_name(request.number),
        request.shape.memory_bytes,
        request.shape.sm_percent,
        free_seats(uuids, taken, None),
        vgpu.policy,
        priority_of(0, _latency(vgpu, request.online or entry.leases.online is None)),
        provider,
        group=group,
        lease=lease_text(request.number, request.account),
        waterline_percent=vgpu.waterline_percent,
    )


def _latency(vgpu: Vgpu, is_online: bool) -> str | None:
    """Return the latency of a lease, or None without the policy colocate."""
    if vgpu.policy != COLOCATE:
        return None
    return ONLINE if is_online else OFFLINE


def resized(tenant: VgpuTenant, shape: Shape) -> VgpuTenant:
    """Return the tenant with another quota."""
    return dataclasses.replace(tenant, memory_bytes=shape.memory_bytes, sm_percent=shape.sm_percent)
