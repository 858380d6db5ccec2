# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Offer a node with HAMi 2.10 or with Volcano's vGPU plugin 1.12.

Both plugins read the same node configuration. Both enforce quotas of memory and SMs with HAMi-core, a library in the container.
HAMi: https://github.com/Project-HAMi/HAMi, docs/config.md and docs/device-plugin-config.md.
Volcano: https://github.com/Project-HAMi/volcano-vgpu-device-plugin, README.md and doc/config.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

from ....module_utils.layout.matching import matches
from ....module_utils.model import Gpu
from ....module_utils.techniques.vgpu.part import Tenant, Vgpu, vgpu_of
from ...techniques.access import Turns
from ..model import LeftOut, Node, NodeGpu, Offer, Refusal, Request, by_entry, refusal
from .backend import WITHOUT_MIG_MANAGER

MIB = 1 << 20
# Default number of pods per GPU (docs/config.md, `deviceSplitCount`).
DEFAULT_SPLIT_COUNT = 10
# Values of GPU_CORE_UTILIZATION_POLICY by tenant policy (docs/config.md): `force` always limits, `default` only while
# another container uses the GPU, `disable` never. None of them lends idle SMs, as the tenant policy `burst` does.
_CORE_POLICIES = {"fixed": "force", "contended": "default"}
# Priorities of HAMi: one high and one low (docs/config.md, `resourcePriority`).
_HAMI_PRIORITIES = (0, 1)
# HAMi's webhook in its configuration (charts/hami, templates/scheduler/webhook.yaml of HAMi 2.10).
HAMI_WEBHOOK = "vgpu.hami.io"
# HAMi's annotations of pods with their devices (pkg/util/types.go): "UUID,NVIDIA,MiB,cores:;".
HAMI_ALLOCATED = ("hami.io/vgpu-devices-to-allocate", "hami.io/vgpu-devices-allocated")


@dataclass(frozen=True)
class Plugin:
    """The differences between the plugins.

    `key` is the backend's key. `number`, `memory` and `cores` are resource names.
    """

    key: str
    name: str
    number: str
    memory: str
    cores: str
    #: Resource name of the priority. None if the plugin has no priorities.
    priority: str | None
    #: Annotation that pins a pod to a GPU. None if the plugin has none.
    pin: str | None
    #: Whether memory and SMs are also resources of the node. HAMi's scheduler keeps them in annotations instead.
    counts_all: bool
    labels: dict[str, str]
    #: Whether the plugin lists its GPUs with UUID and memory in a node annotation, which the role compares with the
    #: layout.
    registers: bool = False


def offer(node: Node, plugin: Plugin) -> Offer:
    """Return the plugin's offer of the node's GPUs, or the refused entries."""
    offered = [each for each in node.gpus if _is_offered(each)]
    others = [each for each in node.gpus if not _is_offered(each)]
    refusals = [
        *_refuse_instances(others, plugin),
        *_refuse_tenants(offered, plugin),
        *_refuse_differences(offered, plugin),
        *_refuse_sizeless(offered, plugin),
    ]
    if refusals:
        return Offer(plugin.key, refusals=tuple(refusals))
    left_out = tuple(_left_out(group, plugin) for group in by_entry(others))
    split = _split_count(offered)
    memory_ratio, sm_ratio = _ratios(offered[0]) if offered else (1.0, 1.0)
    config = {
        "name": node.name,
        "operatingmode": "hami-core",
        "devicesplitcount": split,
        "devicememoryscaling": memory_ratio,
        "devicecorescaling": sm_ratio,
        "migstrategy": "none",
        "filterdevices": _filter(others),
    }
    if not offered:
        # Without an entry, HAMi offers all GPUs of a node. The node may have the label from an earlier run.
        config_of_none = {"nodeconfig": [config]} if plugin.registers else {}
        return Offer(plugin.key, config=config_of_none, labels=WITHOUT_MIG_MANAGER, left_out=left_out)
    resources = {plugin.number: len(offered) * split}
    if plugin.counts_all:
        memory_mib = sum((each.gpu.memory_total_bytes or 0) // MIB for each in offered)
        resources[plugin.memory] = int(memory_mib * memory_ratio)
        resources[plugin.cores] = int(100 * len(offered) * sm_ratio)
    requests = [request for group in by_entry(offered) for request in _requests(group, plugin)]
    labels = {**plugin.labels, **WITHOUT_MIG_MANAGER}
    return Offer(
        plugin.key,
        resources,
        {"nodeconfig": [config]},
        labels,
        tuple(requests),
        left_out,
        notes=tuple(_notes(offered)),
        registered=_registered(offered, split, memory_ratio, sm_ratio) if plugin.registers else {},
    )


def _registered(
    offered: Sequence[NodeGpu], split: int, memory_ratio: float, sm_ratio: float
) -> dict[str, dict[str, int]]:
    """Return what the plugin registers for each offered GPU, by UUID.

    The plugin rounds memory down to MiB before and after it applies the ratio
    (pkg/device-plugin/nvidiadevice/nvinternal/plugin/register.go of HAMi 2.10).
    """
    return {
        each.gpu.uuid: {
            "count": split,
            "devmem": int((each.gpu.memory_total_bytes or 0) // MIB * memory_ratio),
            "devcore": int(100 * sm_ratio),
        }
        for each in offered
        if each.has_uuid
    }


def _is_offered(each: NodeGpu) -> bool:
    """Return whether HAMi-core can share the GPU.

    The GPU must have no MIG mode, and allow several processes (compute mode DEFAULT).
    """
    return each.sharing == "shared" or isinstance(each.access, Turns) or vgpu_of(each.entry) is not None


def _refuse_sizeless(offered: Sequence[NodeGpu], plugin: Plugin) -> list[Refusal]:
    problem = "%s counts the memory of GPUs, and the driver does not report this GPU's size" % plugin.name
    return [
        refusal(group, problem, "Choose another sharing or backend.")
        for group in by_entry(offered)
        if any(not each.gpu.memory_total_bytes for each in group)
    ]


def _notes(offered: Sequence[NodeGpu]) -> list[str]:
    unknown = [vgpu_of(each.entry) for each in offered if not each.has_uuid]
    if any(tenant.gpu is not None for vgpu in unknown if vgpu for tenant in vgpu.tenants):
        return ["Tenants are not pinned, because the GPUs' UUIDs are unknown until the driver responds."]
    return []


def _filter(others: Sequence[NodeGpu]) -> dict[str, list[Any]]:
    """Return the GPUs that the plugin must ignore.

    They are listed by UUID, or by index without a driver, when the UUID is unknown.
    """
    return {
        "uuid": [each.gpu.uuid for each in others if each.has_uuid],
        "index": [each.gpu.index for each in others if not each.has_uuid],
    }


def _left_out(group: Sequence[NodeGpu], plugin: Plugin) -> LeftOut:
    here = group[0]
    if here.technique is not None:
        reason = "%s does not use the layout's %s" % (plugin.name, here.technique.server or here.technique.title)
    else:
        reason = {
            "exclusive": "%s would share them, but the compute mode permits one process" % plugin.name,
            "mig": "the MIG mode of %s removes instances that it did not create" % plugin.name,
            "unlisted": "it has no entry",
        }[here.sharing]
    return LeftOut(here.where, tuple(each.gpu.index for each in group), reason)


def _refuse_instances(others: Sequence[NodeGpu], plugin: Plugin) -> list[Refusal]:
    found = []
    for group in by_entry(others):
        shared = next((part.technique for part in group[0].instances or () if part.technique), None)
        if shared is not None:
            found.append(refusal(group, "%s has no %s inside MIG instances" % (plugin.name, shared.title)))
    return found


def _refuse_tenants(offered: Sequence[NodeGpu], plugin: Plugin) -> list[Refusal]:
    found = []
    for group in by_entry(offered):
        vgpu = vgpu_of(group[0].entry)
        if vgpu is not None:
            found += [refusal(group, problem) for problem in _problems(vgpu, plugin)]
    return found


def _problems(vgpu: Vgpu, plugin: Plugin) -> list[str]:
    """Return problems with tenants' settings that the plugin does not support."""
    problems = []
    if vgpu.provider in ("mps", "dmem"):
        text = "provider: %s enforces quotas on the host, but %s enforces them in the container"
        problems.append(text % (vgpu.provider, plugin.name))
    if vgpu.policy not in _CORE_POLICIES:
        problems.append("%s has nothing like the policy %s" % (plugin.name, vgpu.policy))
    if plugin.priority is None and any(tenant.priority for tenant in vgpu.tenants):
        problems.append("%s does not support priorities" % plugin.name)
    elif plugin.priority and any(tenant.priority not in _HAMI_PRIORITIES for tenant in vgpu.tenants):
        problems.append("%s supports only the priorities 0 and 1" % plugin.name)
    if plugin.pin is None and any(tenant.gpu is not None for tenant in vgpu.tenants):
        problems.append("%s cannot pin a tenant to a GPU" % plugin.name)
    grouped = [tenant.name for tenant in vgpu.tenants if tenant.group is not None]
    if grouped:
        problems.append("Kubernetes cannot use the Unix group of tenant %s" % grouped[0])
    renamed = [tenant.name for tenant in vgpu.tenants if tenant.was is not None]
    if renamed:
        problems.append("Kubernetes cannot use the earlier name (was) of tenant %s" % renamed[0])
    beyond = [tenant.name for tenant in vgpu.tenants if tenant.oversubscribe_managed]
    if beyond:
        problems.append("%s has no managed memory beyond the quota, which tenant %s uses" % (plugin.name, beyond[0]))
    return problems


def _refuse_differences(offered: Sequence[NodeGpu], plugin: Plugin) -> list[Refusal]:
    """Refuse entries with different pod counts or oversubscription ratios.

    These settings apply to the whole node (docs/config.md, "Node Configs").
    """
    found = []
    sliced = [each for each in offered if isinstance(each.access, Turns)]
    most = max((_tenants(each) for each in offered), default=0)
    for group in by_entry(sliced):
        replicas = _replicas(group[0])
        if any(_replicas(each) != replicas for each in sliced):
            found.append(refusal(group, "%s supports only one number of replicas for all GPUs of a node" % plugin.name))
        elif most > replicas:
            problem = "%s supports only one number of pods for all GPUs of a node: %d is below the %d tenants of another entry"
            found.append(refusal(group, problem % (plugin.name, replicas, most)))
    ratios = {_ratios(each) for each in offered}
    if len(ratios) > 1:
        for group in by_entry([each for each in offered if _ratios(each) != (1.0, 1.0)]):
            found.append(refusal(group, "%s has one oversubscription for all GPUs of a node" % plugin.name))
    return found


def _replicas(each: NodeGpu) -> int:
    return each.access.pods if isinstance(each.access, Turns) else 0


def _tenants(each: NodeGpu) -> int:
    vgpu = vgpu_of(each.entry)
    return len(vgpu.tenants) if vgpu else 0


def _ratios(each: NodeGpu) -> tuple[float, float]:
    vgpu = vgpu_of(each.entry)
    return (vgpu.oversubscribe_memory_ratio, vgpu.oversubscribe_sm_ratio) if vgpu else (1.0, 1.0)


def _split_count(offered: Sequence[NodeGpu]) -> int:
    """Return the number of pods that may share a GPU.

    This is the number of replicas for time slicing, or else the largest number of tenants on a GPU, but at least the
    default.
    """
    replicas = max((_replicas(each) for each in offered), default=0)
    return replicas or max([DEFAULT_SPLIT_COUNT, *(_tenants(each) for each in offered)])


def _requests(group: Sequence[NodeGpu], plugin: Plugin) -> list[Request]:
    vgpu = vgpu_of(group[0].entry)
    if vgpu is None:
        return []
    return [_request(group, vgpu, tenant, plugin) for tenant in vgpu.tenants]


def _request(group: Sequence[NodeGpu], vgpu: Vgpu, tenant: Tenant, plugin: Plugin) -> Request:
    limits = {
        plugin.number: tenant.gpus,
        plugin.memory: tenant.memory_bytes // MIB,
        plugin.cores: tenant.sm_percent,
    }
    if plugin.priority and any(one.priority for one in vgpu.tenants):
        limits[plugin.priority] = tenant.priority
    pinned = _pinned(tenant, group)
    annotations = {plugin.pin: pinned.uuid} if plugin.pin and pinned else {}
    environment = {"GPU_CORE_UTILIZATION_POLICY": _CORE_POLICIES[vgpu.policy]}
    return Request(group[0].where, tenant.name, limits, annotations, environment)


def _pinned(tenant: Tenant, group: Sequence[NodeGpu]) -> Gpu | None:
    if tenant.gpu is None:
        return None
    return next((each.gpu for each in group if each.has_uuid and matches(tenant.gpu, each.gpu)), None)
