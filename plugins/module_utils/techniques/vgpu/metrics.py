# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report drift and metrics of tenants. Pure functions."""

from __future__ import annotations

from typing import Mapping, Sequence

from ...layout.types import Layout
from ...model import Gpu, Host
from ...plan.gpu_plan import Plan
from ...plan.metric_family import COUNTER, GAUGE, HISTOGRAM, Family, Sample, labels_of
from .counters import Counters
from .model import MPS, OFFLINE, ONLINE, VgpuSeen, VgpuTenant
from .plan import plan, rooms_of_leases, wanted
from .steps import AddTenant, RemoveTenant


def drift(
    layout: Layout, gpus: Plan, host: Host, seen: Sequence[VgpuSeen], dmem: frozenset[str], library: bool
) -> list[tuple[str, set[str]]]:
    """Return (difference from the layout, UUIDs of its GPUs) for each difference.

    `dmem` has the UUIDs of GPUs whose memory the kernel can limit. `library` is true if the library is installed.
    """
    desired = wanted(layout, gpus, seen, dmem)
    rooms = rooms_of_leases(layout, gpus)
    steps = plan(desired, seen, gpus, host, lambda _name, _gpu: (), rooms=rooms).steps
    differences = []
    for step in steps:
        tenants = [] if isinstance(step, AddTenant) else [step.seen.tenant]
        tenants += [] if isinstance(step, RemoveTenant) else [step.tenant]
        differences.append(("vgpu %s: %s" % (step.name, step), {uuid for tenant in tenants for uuid in tenant.gpus}))
    unheld = {uuid for each in desired if each.tenant.provider != MPS for uuid in each.tenant.gpus}
    if unheld and not library:
        differences.append(("vgpu: install the library that enforces quotas", unheld))
    return differences


def families(
    tenants: Sequence[VgpuSeen], gpus: Mapping[str, Gpu], counters: Mapping[tuple[str, int], Counters]
) -> list[Family]:
    """Return the tenants' metrics.

    `gpus` maps UUIDs to GPUs. `counters` maps (UUID, seat) to a tenant's counters.
    """
    limits, shares, used, denied = [], [], [], []
    for seen in tenants:
        uses = {use.gpu_uuid: use for use in seen.usage.gpus} if seen.usage is not None else {}
        for uuid in seen.tenant.gpus:
            labels = dict(labels_of(uuid, gpus), tenant=seen.tenant.name)
            limits.append(Sample(seen.tenant.memory_bytes, labels))
            shares.append(Sample(seen.tenant.sm_percent / 100, labels))
            if seen.usage is not None:
                # A tenant that never ran has no usage entry.
                use = uses.get(uuid)
                used.append(Sample(use.used_bytes if use is not None else 0, labels))
                denied.append(Sample(use.refused if use is not None else 0, labels))
    return [
        Family(
            "openfleet_tenant_memory_limit_bytes",
            GAUGE,
            "The tenant's quota of memory on the GPU.",
            tuple(limits),
        ),
        Family(
            "openfleet_tenant_memory_used_bytes",
            GAUGE,
            "GPU memory that the tenant's processes use of its quota.",
            tuple(used),
        ),
        Family("openfleet_tenant_sm_limit_ratio", GAUGE, "The tenant's quota of the GPU's SMs, 0 to 1.", tuple(shares)),
        Family(
            "openfleet_tenant_denied_total",
            COUNTER,
            "Allocations that were refused because of the tenant's quota, since the host started.",
            tuple(denied),
        ),
        *_throttle_families([seen.tenant for seen in tenants], gpus, counters),
    ]


def _throttle_families(
    tenants: Sequence[VgpuTenant], gpus: Mapping[str, Gpu], counters: Mapping[tuple[str, int], Counters]
) -> list[Family]:
    """Return metrics of the tenants' GPU time and of colocation."""
    seconds, gave_way, waits = [], [], []
    for tenant in tenants:
        for seat in tenant.seats:
            own = counters.get((seat.gpu_uuid, seat.seat))
            if own is None:
                continue
            labels = dict(labels_of(seat.gpu_uuid, gpus), tenant=tenant.name, latency=tenant.latency or "")
            if tenant.latency is not None or tenant.sm_percent < 100:
                seconds.append(Sample(own.used_ns / 1e9, labels))
            if tenant.latency == OFFLINE:
                gave_way.append(Sample(own.gave_way, labels))
            if tenant.latency == ONLINE:
                waits += _histogram(own, labels)
    return [
        Family(
            "openfleet_tenant_gpu_seconds_total",
            COUNTER,
            "GPU time of the tenant's kernels, as the tenant's programs count it.",
            tuple(seconds),
        ),
        Family(
            "openfleet_tenant_gave_way_total",
            COUNTER,
            "How often an offline tenant began to wait for online work, as its programs count it.",
            tuple(gave_way),
        ),
        Family(
            "openfleet_tenant_wait_seconds",
            HISTOGRAM,
            "Time that online work waits for an offline kernel before it starts, as the tenant's programs estimate it.",
            tuple(waits),
        ),
    ]


def _histogram(own: Counters, labels: Mapping[str, str]) -> list[Sample]:
    """Return the samples for an online tenant's waits."""
    bounds = [("%g" % seconds, own.starts - more) for seconds, more in own.waited_more]
    return [
        *(Sample(max(0, count), dict(labels, le=le), "_bucket") for le, count in [*bounds, ("+Inf", own.starts)]),
        Sample(own.waits_ns / 1e9, labels, "_sum"),
        Sample(own.starts, labels, "_count"),
    ]
