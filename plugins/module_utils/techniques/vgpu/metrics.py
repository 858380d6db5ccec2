# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report drift and metrics of tenants. Pure functions."""

from __future__ import annotations

from typing import Mapping, Sequence

from ...layout.types import Layout
from ...model import Gpu, Host
from ...plan.gpu_plan import Plan
from ...plan.metric_family import COUNTER, GAUGE, Family, Sample, labels_of
from .model import MPS, VgpuSeen
from .plan import plan, rooms_of_leases, wanted
from .steps import AddTenant, RemoveTenant


def drift(
    layout: Layout, gpus: Plan, host: Host, seen: Sequence[VgpuSeen], dmem: frozenset[str], library: bool
) -> list[tuple[str, set[str]]]:
    """Return (difference from the layout, UUIDs of its GPUs) for each difference.

    `dmem` has the UUIDs of the GPUs whose memory the kernel can limit. `library` is true if the library is installed.
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


def families(tenants: Sequence[VgpuSeen], gpus: Mapping[str, Gpu]) -> list[Family]:
    """Return the metrics of the tenants. `gpus` maps UUIDs to GPUs."""
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
    ]
