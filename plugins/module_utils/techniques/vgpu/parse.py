# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse and write the part `vgpu` of an entry in `gpu_layout`.

The parser reports errors that do not depend on the host's GPUs, such as wrong pins and excessive shares.
"""

from __future__ import annotations

from typing import Any, Sequence

from ...layout.fields import Names, PartContext, group_name, percent, size_bytes
from ...layout.reader import Key, Node
from ...layout.selectors import parse_single_gpu, selector_to_data
from ...layout.types import MOST_CLIENTS, MOST_GPUS, MOST_RATIO, Selector
from ...sizes import format_size
from .model import AUTO, COLOCATE, LATENCIES, MPS, POLICIES, PROVIDERS, WATERLINE_PERCENT
from .part import Tenant, Vgpu

#: Kind of the tenants' names. Objects of other kinds may have the same names.
_KIND = "tenant"
# Tolerance for ratios, because floating point is inexact: 1.15 * 100 is slightly below 115.
_ROUNDING_PERCENT = 1e-6

_EXAMPLE = "{name: notebook-a, memory: 8GiB, sm_percent: 30}"
KEYS = {
    "provider": Key("provider: auto"),
    "policy": Key("policy: fixed"),
    "waterline_percent": Key("waterline_percent: 80"),
    "oversubscribe": Key("oversubscribe: {memory: 1.5, sm: 2.0}"),
    "tenants": Key("tenants: [%s]" % _EXAMPLE, required=True),
}
#: Only an entry with leases can do without tenants.
_KEYS_WITH_LEASES = {**KEYS, "tenants": Key(KEYS["tenants"].example)}
_OVERSUBSCRIBE = {"memory": Key("memory: 1.5"), "sm": Key("sm: 2.0")}
_TENANT = {
    "name": Key("name: notebook-a", required=True),
    "memory": Key("memory: 8GiB", required=True),
    "sm_percent": Key("sm_percent: 30", required=True),
    "priority": Key("priority: 0"),
    "latency": Key("latency: offline"),
    "gpus": Key("gpus: 2"),
    "gpu": Key("gpu: 6"),
    "group": Key("group: researchers"),
    "oversubscribe_managed": Key("oversubscribe_managed: true"),
    "was": Key("was: notebook-a"),
}


def parse(node: Node, context: PartContext) -> Vgpu | None:
    """Return the part, or None after reporting an error."""
    fields = node.fields(_KEYS_WITH_LEASES if context.leases else KEYS)
    if fields is None:
        return None
    memory_ratio, sm_ratio = fields.read("oversubscribe", _oversubscribe, (1.0, 1.0))
    nodes = fields.read("tenants", lambda field: field.items(int(not context.leases), MOST_CLIENTS)) or []
    policy = fields.read("policy", lambda field: field.choice(POLICIES), POLICIES[0])
    tenants = [_tenant(each, context.names, policy) for each in nodes]
    _check_tenants(node, nodes, tenants, context.selectors, sm_ratio)
    provider = fields.read("provider", lambda field: field.choice(PROVIDERS), AUTO)
    if context.leases and provider == MPS:
        fields["provider"].report(
            "leases cannot use mps, because a new lease would restart the daemon", "Use auto, preload or dmem."
        )
    if policy == COLOCATE and provider == MPS:
        fields["provider"].report(
            "an MPS daemon does not know online and offline tenants", "Use auto, preload or dmem, or another policy."
        )
    waterline = fields.read("waterline_percent", percent, WATERLINE_PERCENT if policy == COLOCATE else None)
    if policy != COLOCATE and "waterline_percent" in fields:
        fields["waterline_percent"].report(
            "only the policy colocate has a waterline", "Set policy: colocate, or remove waterline_percent."
        )
    if policy not in (COLOCATE, None) and context.online_leases:
        node.report("the key online of leases requires the policy colocate", "Set policy: colocate, or remove online.")
    return Vgpu(tuple(tenants), policy, memory_ratio, sm_ratio, provider, waterline)


def to_data(vgpu: Vgpu) -> dict[str, Any]:
    """Return the part in its canonical form."""
    data: dict[str, Any] = {}
    if vgpu.provider != AUTO:
        data["provider"] = vgpu.provider
    if vgpu.policy != POLICIES[0]:
        data["policy"] = vgpu.policy
    if vgpu.waterline_percent not in (None, WATERLINE_PERCENT):
        data["waterline_percent"] = vgpu.waterline_percent
    ratios = {"memory": vgpu.oversubscribe_memory_ratio, "sm": vgpu.oversubscribe_sm_ratio}
    if set(ratios.values()) != {1.0}:
        data["oversubscribe"] = {key: ratio for key, ratio in ratios.items() if ratio != 1.0}
    if vgpu.tenants:
        data["tenants"] = [_tenant_to_data(tenant) for tenant in vgpu.tenants]
    return data


def _tenant_to_data(tenant: Tenant) -> dict[str, Any]:
    data: dict[str, Any] = {
        "name": tenant.name,
        "memory": format_size(tenant.memory_bytes),
        "sm_percent": tenant.sm_percent,
    }
    if tenant.priority:
        data["priority"] = tenant.priority
    if tenant.latency is not None:
        data["latency"] = tenant.latency
    if tenant.gpus != 1:
        data["gpus"] = tenant.gpus
    if tenant.gpu is not None:
        data["gpu"] = selector_to_data(tenant.gpu)
    if tenant.group is not None:
        data["group"] = tenant.group
    if tenant.oversubscribe_managed:
        data["oversubscribe_managed"] = True
    if tenant.was is not None:
        data["was"] = tenant.was
    return data


def _tenant(node: Node, names: Names, policy: str | None) -> Tenant | None:
    fields = node.fields(_TENANT)
    if fields is None:
        return None
    if policy == COLOCATE and "priority" in fields:
        fields["priority"].report("with the policy colocate, latency takes the place of priority", "Remove priority.")
    if policy == COLOCATE and "latency" not in fields:
        node.report("the policy colocate requires latency", "Add latency: online or latency: offline.")
    if policy not in (COLOCATE, None) and "latency" in fields:
        fields["latency"].report("latency requires the policy colocate", "Set policy: colocate, or remove latency.")
    return Tenant(
        fields.read("name", lambda field: names.read(field, _KIND)),
        fields.read("memory", size_bytes),
        fields.read("sm_percent", percent),
        fields.read("priority", lambda field: field.integer(0, 1000), 0),
        fields.read("gpus", lambda field: field.integer(1, MOST_GPUS), 1),
        fields.read("gpu", parse_single_gpu),
        fields.read("group", group_name),
        fields.read("oversubscribe_managed", Node.boolean, False),
        fields.read("was", lambda field: names.read_former(field, _KIND)),
        fields.read("latency", lambda field: field.choice(LATENCIES)),
    )


def _oversubscribe(node: Node) -> tuple[float | None, float | None]:
    fields = node.fields(_OVERSUBSCRIBE)
    if fields is None:
        return None, None
    return (
        fields.read("memory", lambda field: field.ratio(1.0, MOST_RATIO), 1.0),
        fields.read("sm", lambda field: field.ratio(1.0, MOST_RATIO), 1.0),
    )


def _check_tenants(
    node: Node,
    tenant_nodes: Sequence[Node],
    tenants: Sequence[Tenant | None],
    selectors: Sequence[Selector | None],
    sm_ratio: float | None,
) -> None:
    """Report tenants that contradict themselves or their entry.

    Skips values that already have an error.
    """
    pairs = [(each, tenant) for each, tenant in zip(tenant_nodes, tenants) if tenant is not None]
    for each, tenant in pairs:
        _check_pin(each, tenant, selectors)
    if sm_ratio is not None:
        _check_percent(node, [tenant for _unused, tenant in pairs], selectors, sm_ratio)


def _check_pin(node: Node, tenant: Tenant, selectors: Sequence[Selector | None]) -> None:
    if tenant.gpu is None:
        if tenant.gpus is not None and _counted(selectors) and tenant.gpus > len(selectors):
            node.report(
                "the tenant spans %d GPUs, but its entry has %d" % (tenant.gpus, len(selectors)),
                "Lower gpus, or add GPUs to the entry.",
            )
        return
    if tenant.gpus is not None and tenant.gpus > 1:
        node.report("a tenant that spans %d GPUs cannot be pinned to one" % tenant.gpus, "Remove gpu or gpus.")
    # The parser does not know the host's GPUs, so it only compares selectors of the same kind.
    same_kind = selectors and all(each is not None and each.kind == tenant.gpu.kind for each in selectors)
    if same_kind and tenant.gpu not in selectors:
        node.report(
            "the tenant is pinned to %s, which is not in its entry" % tenant.gpu,
            "Pin it to one of the entry's GPUs: %s." % ", ".join(str(each.value) for each in selectors),
        )


def _check_percent(node: Node, tenants: list[Tenant], selectors: Sequence[Selector | None], sm_ratio: float) -> None:
    known = [tenant for tenant in tenants if tenant.sm_percent is not None and tenant.gpus is not None]
    pinned: dict[Selector, int] = {}
    for tenant in known:
        if tenant.gpu is not None:
            pinned[tenant.gpu] = pinned.get(tenant.gpu, 0) + tenant.sm_percent
    for gpu, share in pinned.items():
        _report_excess(node, "the tenants pinned to %s" % gpu, share, 100 * sm_ratio)
    if _counted(selectors):
        share = sum(tenant.sm_percent * tenant.gpus for tenant in known)
        _report_excess(node, "the tenants", share, 100 * sm_ratio * len(selectors))


def _report_excess(node: Node, who: str, share: int, limit_percent: float) -> None:
    if share > limit_percent + _ROUNDING_PERCENT:
        node.report(
            "%s request %d percent of the SMs, but the limit is %g" % (who, share, limit_percent),
            "Lower sm_percent, move tenants, or raise oversubscribe: {sm: ...}.",
        )


def _counted(selectors: Sequence[Selector | None]) -> bool:
    """Return whether the number of selected GPUs is known.

    It is known if each of the entry's selectors selects exactly one GPU.
    """
    return bool(selectors) and all(selector is not None and selector.names_one_gpu for selector in selectors)
