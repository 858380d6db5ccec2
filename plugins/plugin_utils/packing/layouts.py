# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Convert a result to the `gpu_layout` of each host (docs/gpu_layout.md). Pure."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from ansible_collections.openfleet.gpu.plugins.module_utils.layout.profile_name import parse_profile_name

from ..techniques.protocol import Part, Size
from .check import by_gpu
from .model import Packing, Problem, Standing


def layouts(
    problem: Problem, packing: Packing, tenant_name: Callable[[str], str] = str
) -> dict[str, list[dict[str, Any]]]:
    """Return `gpu_layout` by host, as values for YAML.

    GPUs with equal layouts share an entry. `tenant_name` returns a workload's name in the layout.

    A freed GPU becomes exclusive, so that its instances are removed. A GPU that is empty before and after has no entry
    and does not change. Entries have no placements: the planner chooses them and keeps current instances.
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
                part = _part([tenant for key in keys for tenant in then[key]], gpus, tenant_name)
                entries.append({"gpus": [index for _host, index in keys], **part})
            continue
        if not standing and gpu.key not in today:
            continue
        part = _part(standing, gpus, tenant_name)
        twin = next((e for e in entries if {k: v for k, v in e.items() if k != "gpus"} == part), None)
        if twin is not None:
            twin["gpus"].append(gpu.index)
        else:
            entries.append({"gpus": [gpu.index], **part})
    return {host: entries for host, entries in by_host.items() if entries}


def _tied(packing: Packing, gpus: Mapping[str, int]) -> dict[tuple[str, int], list[tuple[str, int]]]:
    """Return all GPUs in the layout entry of each GPU with tenants.

    All of a tenant's GPUs are in one entry.
    """
    tied: dict[tuple[str, int], list[tuple[str, int]]] = {}
    owners: dict[str, tuple[str, int]] = {}
    for standing in packing.standing:
        if not standing.shape.is_tenant or standing.workload is None:
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


def _part(standing: Sequence[Standing], gpus: Mapping[str, int], tenant_name: Callable[[str], str]) -> dict[str, Any]:
    """Return a GPU's layout entry, without its selectors.

    If tenants use several GPUs, the entry is for all of these. `gpus` has each workload's number of GPUs.
    """
    if not standing or standing[0].shape.kind == "whole":
        return {"sharing": "exclusive"}
    if standing[0].shape.kind == "mig":
        counts: dict[str, int] = {}
        for name in sorted((s.shape.profile for s in standing), key=_largest_first):
            counts[name] = counts.get(name, 0) + 1
        instances = [{"profile": name, **({"count": n} if n > 1 else {})} for name, n in counts.items()]
        return {"sharing": "mig", "mig": instances}
    technique = standing[0].shape.technique
    if technique is None:
        raise AssertionError("a shared GPU without a technique")
    parts = [
        Part(tenant_name(name), s.index, Size(s.shape.memory_mib, s.shape.sm_percent), gpus.get(name, 1))
        for s in sorted(standing, key=lambda s: s.workload or "")
        for name in (str(s.workload),)
    ]
    return {"sharing": technique.key, technique.key: technique.part(parts)}


def _largest_first(name: str) -> tuple:
    profile = parse_profile_name(name)
    return (-profile.gpu_slices, -profile.memory_gb, profile.attribute)
