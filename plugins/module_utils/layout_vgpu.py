# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can be said of an entry's tenants without looking at the GPUs: pins, and promises that cannot be kept."""

from __future__ import annotations

from typing import Sequence

from .layout_reader import Node
from .layout_types import Selector, Tenant

# Ratios are binary fractions: 1.15 * 100 is a hair below 115.
_ROUNDING_PERCENT = 1e-6


def check_tenants(
    node: Node,
    tenant_nodes: Sequence[Node],
    tenants: Sequence[Tenant | None],
    selectors: Sequence[Selector | None],
    sm_ratio: float | None,
) -> None:
    """Reports tenants that contradict themselves or their entry. Skips what an earlier problem left unknown."""
    pairs = [(each, tenant) for each, tenant in zip(tenant_nodes, tenants) if tenant is not None]
    for each, tenant in pairs:
        _check_pin(each, tenant, selectors)
    if sm_ratio is not None:
        _check_percent(node, [tenant for _, tenant in pairs], selectors, sm_ratio)


def _check_pin(node: Node, tenant: Tenant, selectors: Sequence[Selector | None]) -> None:
    if tenant.gpu is None:
        if tenant.gpus is not None and _counted(selectors) and tenant.gpus > len(selectors):
            node.report(
                "the tenant spans %d GPUs, its entry names %d" % (tenant.gpus, len(selectors)),
                "Lower gpus, or name more GPUs in the entry.",
            )
        return
    if tenant.gpus is not None and tenant.gpus > 1:
        node.report("a tenant that spans %d GPUs cannot be pinned to one" % tenant.gpus, "Take gpu or gpus away.")
    # Only selectors of the pin's own kind can be compared before the GPUs are known.
    same_kind = selectors and all(each is not None and each.kind == tenant.gpu.kind for each in selectors)
    if same_kind and tenant.gpu not in selectors:
        node.report(
            "the tenant is pinned to %s, which its entry does not name" % tenant.gpu,
            "Pin it to one of the entry's GPUs: %s." % ", ".join(str(each.value) for each in selectors),
        )


def _check_percent(node: Node, tenants: list[Tenant], selectors: Sequence[Selector | None], sm_ratio: float) -> None:
    known = [tenant for tenant in tenants if tenant.sm_percent is not None and tenant.gpus is not None]
    pinned: dict[Selector, int] = {}
    for tenant in known:
        if tenant.gpu is not None:
            pinned[tenant.gpu] = pinned.get(tenant.gpu, 0) + tenant.sm_percent
    for gpu, percent in pinned.items():
        _report_excess(node, "the tenants pinned to %s" % gpu, percent, 100 * sm_ratio)
    if _counted(selectors):
        percent = sum(tenant.sm_percent * tenant.gpus for tenant in known)
        _report_excess(node, "the tenants", percent, 100 * sm_ratio * len(selectors))


def _report_excess(node: Node, who: str, percent: int, limit_percent: float) -> None:
    if percent > limit_percent + _ROUNDING_PERCENT:
        node.report(
            "%s ask for %d percent of the SMs, there are %g" % (who, percent, limit_percent),
            "Lower sm_percent, move tenants, or raise oversubscribe: {sm: ...}.",
        )


def _counted(selectors: Sequence[Selector | None]) -> bool:
    """Whether the number of GPUs is known: each selector names one."""
    return bool(selectors) and all(selector is not None and selector.names_one_gpu for selector in selectors)
