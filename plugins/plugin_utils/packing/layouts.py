# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Convert a result to the `gpu_layout` of each host (docs/gpu_layout.md). Pure."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ansible_collections.openfleet.gpu.plugins.module_utils.layout.profile_name import parse_profile_name

from .check import by_gpu
from .model import Packing, Problem, Standing


def layouts(problem: Problem, packing: Packing) -> dict[str, list[dict[str, Any]]]:
    """Return `gpu_layout` by host, as values for YAML.

    GPUs with equal layouts share an entry.

    A freed GPU becomes exclusive, so that its instances are removed. A GPU that is empty before and after has no entry, and is
    not changed. Entries contain no placements: the planner chooses them and keeps current instances.
    """
    then, today = by_gpu(packing.standing), by_gpu(problem.today)
    gpus = {workload.name: workload.gpus for workload in problem.workloads}
    tied = _tied(packing, gpus)
    by_host: dict[str, list[dict[str, Any]]] = {}
    for gpu in sorted(problem.gpus, key=lambda gpu: gpu.key):
        entries = by_host.setdefault(gpu.host, [])
        standing = then.get(gpu.key, [])
        if gpu.key in tied:
            keys = tied[gpu.key]
            if gpu.key == keys[0]:
                part = _vgpu([tenant for key in keys for tenant in then[key]], gpus, len(keys) > 1)
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
    return {host: entries for host, entries in by_host.items() if entries}


def _tied(packing: Packing, gpus: Mapping[str, int]) -> dict[tuple[str, int], list[tuple[str, int]]]:
    """Return a mapping from each GPU with tenants to all GPUs of its layout entry.

    GPUs that belong to the same tenant are in the same entry.
    """
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
    """Return the layout entry for the tenants of a GPU.

    If tenants use several GPUs, the entry is for all of these GPUs. Such tenants are not pinned to GPUs, because the planner
    places them.
    """
    tenants: dict[str, dict[str, Any]] = {}
    for part in sorted(standing, key=lambda s: s.workload or ""):
        tenants[str(part.workload)] = tenant = {
            "name": part.workload,
            "memory": "%dMiB" % max(1, part.shape.memory_mib),
            "sm_percent": max(1, part.shape.sm_percent),
        }
        if gpus[str(part.workload)] > 1:
            tenant["gpus"] = gpus[str(part.workload)]
        elif several:
            tenant["gpu"] = part.index
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
    """Return the layout of the MPS daemon of a GPU.

    The limits are those of the largest client. geometry.py has checked that they fit.
    """
    memory, percent = max(s.shape.memory_mib for s in standing), max(1, *(s.shape.sm_percent for s in standing))
    daemon: dict[str, Any] = {"name": "gpu%d" % index, "clients": len(standing), "active_thread_percentage": percent}
    if memory:
        daemon["pinned_memory_limit"] = "%dMiB" % memory
    return daemon


def _largest_first(name: str) -> tuple:
    profile = parse_profile_name(name)
    return (-profile.gpu_slices, -profile.memory_gb, profile.attribute)
