# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the kubelet's policies with the requested policy. Pure.

https://kubernetes.io/docs/tasks/administer-cluster/topology-manager/
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ...host_values import text

POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
_STRICT = ("restricted", "single-numa-node")


def problems(policy: str, kubelet: Mapping[str, Any], node: str) -> list[str]:
    """Return why the kubelet does not align CPUs and GPUs as requested.

    `kubelet` is a result of kubelet_info.
    """
    if not kubelet.get("running"):
        problem = (
            "node %s: the host has no kubelet process of root, so its topologyManagerPolicy is unknown. Start the "
            "kubelet, or remove gpu_kubernetes_topology_policy. Nothing was changed."
        )
        return [problem % node]
    current = text(str(kubelet.get("topology_policy")), 63)
    cpus = text(str(kubelet.get("cpu_policy")), 63)
    folder, file = (text(str(kubelet.get(key) or ""), 255) for key in ("config_dir", "config"))
    place = "the last file of %s" % folder if folder else file or "its options"
    cure = "Set it in %s, drain the node, delete /var/lib/kubelet/cpu_manager_state and restart the kubelet" % place
    wrong = []
    if current != policy:
        wrong.append(
            "node %s: the kubelet has topologyManagerPolicy %s, and gpu_kubernetes_topology_policy is %s. %s. "
            "Nothing was changed." % (node, current, policy, cure)
        )
    if policy != "none" and cpus != "static":
        wrong.append(
            "node %s: the kubelet has cpuManagerPolicy %s, so no pod gets exclusive CPUs close to its GPU. The policy %s "
            "needs static. %s. Nothing was changed." % (node, cpus, policy, cure)
        )
    return wrong


def lines(policy: str, gpus: Sequence[Mapping[str, Any]], uses_claims: bool, node: str) -> list[str]:
    """Return the policy's effects on the node's GPUs, as lines of a plan.

    `gpus` are gpu_info's. `uses_claims` is true if pods request GPUs with claims.
    """
    if policy == "none":
        return []
    if uses_claims:
        return ["node %s: the kubelet's TopologyManager ignores GPUs of claims, and aligns only CPUs and memory" % node]
    by_numa: dict[int, list[int]] = {}
    unknown = []
    for gpu in gpus:
        numa, index = gpu.get("numa_node"), gpu.get("index")
        if not isinstance(index, int):
            continue
        if isinstance(numa, int) and numa >= 0:
            by_numa.setdefault(numa, []).append(index)
        else:
            unknown.append("gpu %d (%s)" % (index, text(str(gpu.get("uuid")), 64)))
    found = []
    if unknown:
        found.append("node %s: not aligned, because the kernel reports no NUMA node: %s" % (node, ", ".join(unknown)))
    if len(by_numa) > 1 and policy in _STRICT:
        largest = max(map(len, by_numa.values()))
        places = ", ".join("NUMA node %d: %s" % (numa, _indexes(by_numa[numa])) for numa in sorted(by_numa))
        effect = "rejected" if policy == "single-numa-node" else "rejected if fewer NUMA nodes could hold its GPUs"
        found.append(
            "node %s: %s. A container with more GPUs than one NUMA node has (%d) is %s"
            % (node, places, largest, effect)
        )
    return found


def _indexes(numbers: Sequence[int]) -> str:
    return "gpu%s %s" % ("s" if len(numbers) > 1 else "", ", ".join(map(str, numbers)))
