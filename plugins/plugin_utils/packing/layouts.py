# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An answer as `gpu_layout` of each host: docs/gpu_layout.md. Pure."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ansible_collections.openfleet.gpu.plugins.module_utils.layout.profile_name import parse_profile_name

from .check import by_gpu
from .model import Packing, Problem, Standing


def layouts(problem: Problem, packing: Packing) -> dict[str, list[dict[str, Any]]]:
    """By host its `gpu_layout`, fit for YAML: what is asked of each GPU, GPUs with the same side by side in one entry.

    A GPU that comes free is given back whole (exclusive), which takes its instances away. One that is empty today and stays
    so is not named, and so left as it is. Placements are left to the planner, which keeps what stands.
    """
    then, today = by_gpu(packing.standing), by_gpu(problem.today)
    gpus = {workload.name: workload.gpus for workload in problem.workloads}
    tied = _tied(packing, gpus)
    found: dict[str, list[dict[str, Any]]] = {}
    for gpu in sorted(problem.gpus, key=lambda gpu: gpu.key):
        entries = found.setdefault(gpu.host, [])
        standing = then.get(gpu.key, [])
        if gpu.key in tied:
            keys = tied[gpu.key]
            if gpu.key == keys[0]:
                part = _vgpu([each for key in keys for each in then[key]], gpus, len(keys) > 1)
                entries.append({"gpus": [index for _host, index in keys], **part})
            continue
        if not standing and gpu.key not in today:
            continue
        part = _part(gpu.index, standing)
        twin = next((e for e in entries if {k: v for k, v in e.items() if k != "gpus"} == part), None)
        if twin is not None and part["sharing"] in ("exclusive", "mig", "time_slicing"):
            twin["gpus"].append(gpu.index)
        else:
            entries.append({"gpus": [gpu.index], **part})
    return {host: entries for host, entries in found.items() if entries}


def _tied(packing: Packing, gpus: Mapping[str, int]) -> dict[tuple[str, int], list[tuple[str, int]]]:
    """By GPU with tenants all GPUs of its entry: those that a tenant spans are in one."""
    tied: dict[tuple[str, int], list[tuple[str, int]]] = {}
    owners: dict[str, tuple[str, int]] = {}
    for standing in packing.standing:
        if standing.shape.kind != "vgpu" or standing.workload is None:
            continue
        mine = tied.setdefault(standing.key, [standing.key])
        first = owners.setdefault(standing.workload, standing.key)
        if tied[first] is not mine:
            tied[first] += mine
            for key in mine:
                tied[key] = tied[first]
    for keys in tied.values():
        keys.sort()
    return tied


def _vgpu(standing: Sequence[Standing], gpus: Mapping[str, int], several: bool) -> dict[str, Any]:
    """Tenants of one GPU, or of several that are tied. One that spans GPUs is not pinned: the planner finds it the same room."""
    tenants: dict[str, dict[str, Any]] = {}
    for each in sorted(standing, key=lambda s: s.workload or ""):
        tenants[str(each.workload)] = tenant = {
            "name": each.workload,
            "memory": "%dMiB" % max(1, each.shape.memory_mib),
            "sm_percent": max(1, each.shape.sm_percent),
        }
        if gpus[str(each.workload)] > 1:
            tenant["gpus"] = gpus[str(each.workload)]
        elif several:
            tenant["gpu"] = each.index
    return {"sharing": "vgpu", "vgpu": {"policy": "fixed", "tenants": list(tenants.values())}}


def _part(index: int, standing: Sequence[Standing]) -> dict[str, Any]:
    kind = standing[0].shape.kind if standing else "whole"
    if kind == "whole":
        return {"sharing": "exclusive"}
    if kind == "mig":
        counts: dict[str, int] = {}
        for name in sorted((s.shape.profile for s in standing), key=_largest_first):
            counts[name] = counts.get(name, 0) + 1
        instances = [{"profile": name, **({"count": n} if n > 1 else {})} for name, n in counts.items()]
        return {"sharing": "mig", "mig": instances}
    if kind == "time_slicing":
        return {"sharing": "time_slicing", "time_slicing": {"slice": "default", "replicas": len(standing)}}
    return {"sharing": "mps", "mps": _mps(index, standing)}


def _mps(index: int, standing: Sequence[Standing]) -> dict[str, Any]:
    """A daemon holds all its clients to the same caps: those of the largest, for which there is room (geometry.py)."""
    memory, percent = max(s.shape.memory_mib for s in standing), max(1, *(s.shape.sm_percent for s in standing))
    found: dict[str, Any] = {"name": "gpu%d" % index, "clients": len(standing), "active_thread_percentage": percent}
    if memory:
        found["pinned_memory_limit"] = "%dMiB" % memory
    return found


def _largest_first(name: str) -> tuple:
    found = parse_profile_name(name)
    return (-found.gpu_slices, -found.memory_gb, found.attribute)
