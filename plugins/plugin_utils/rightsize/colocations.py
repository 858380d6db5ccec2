# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Propose which offline workloads can use the GPUs of online workloads.

Metrics do not show whether clients wait for a workload. So a workload must have settings in the inventory: `latency:
low` for an online and `latency: batch` for an offline workload, and no isolation by hardware. The proposal is advice,
and not part of the proposed layouts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any, Mapping, Sequence

from ..audit.ledger import HOURS_PER_MONTH
from ..audit.model import Window
from ..audit.prometheus import Prometheus
from ..counted import counted
from ..numerics import np
from ..packing.geometry import geometry
from ..packing.model import WHOLE
from ..sizing.colocate import Colocated, colocate
from ..sizing.model import Fleet, Policy
from ..techniques.registry import COLOCATING
from .model import Colocation, GpuToday, Occupant
from .series import Grid, histories

_MIB, _MEMORY_STEP_MIB = 1 << 20, 256
_WATERLINE_PERCENT = COLOCATING.waterline_percent or 100
#: Maximum number of workloads whose histories are read.
_MOST = 1000


def candidates(gpus: Sequence[GpuToday]) -> dict[str, tuple[GpuToday, Occupant]]:
    """Return the workloads that could be colocated, by name.

    Each of them has a GPU alone.
    """
    found = {}
    for gpu in gpus:
        if gpu.left or len(gpu.occupants) != 1:
            continue
        (one,) = gpu.occupants
        wish = one.wish
        if one.left or one.shape != WHOLE or wish.isolation == "hardware" or wish.latency not in ("low", "batch"):
            continue
        if wish.mode == "auto" and not wish.profile:
            found[one.name] = (gpu, one)
    return found


def colocations(
    server: Prometheus, gpus: Sequence[GpuToday], window: Window, selector: str, reach: str, policy: Policy
) -> tuple[tuple[Colocation, ...], list[str]]:
    """Return the proposals, and the server's warnings. Raises PrometheusError.

    If `reach` is "host", only colocates workloads of one host.
    """
    found = dict(sorted(candidates(gpus).items())[:_MOST])
    if {one.wish.latency for _gpu, one in found.values()} != {"low", "batch"}:
        return (), []
    read, grid, notes = histories(server, [one for _gpu, one in found.values()], window, selector)
    return propose(found, read, grid, reach, policy), notes


def propose(
    found: Mapping[str, tuple[GpuToday, Occupant]],
    read: Mapping[str, Mapping[str, np.ndarray]],
    grid: Grid,
    reach: str,
    policy: Policy,
) -> tuple[Colocation, ...]:
    """Return the proposals for workloads with these histories."""
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, (gpu, _one) in found.items():
        groups[(gpu.model, gpu.host) if reach == "host" else (gpu.model,)].append(name)
    proposals = []
    for key, names in sorted(groups.items()):
        fleet = _fleet(names, found, read, grid)
        online = {name for name in names if found[name][1].wish.latency == "low"}
        card = float(geometry(key[0]).memory_mib * _MIB)
        for one in colocate(fleet, online, card, _WATERLINE_PERCENT / 100, policy):
            proposals.append(_proposal(one, found))
    return tuple(proposals)


def _fleet(names: Sequence[str], found: Mapping[str, Any], read: Mapping[str, Any], grid: Grid) -> Fleet:
    """Return the histories of memory and duty.

    The duty is the share of time in which a kernel runs, or the SM activity if it is higher.
    """
    return Fleet.of(
        names,
        grid.times,
        [np.fmax(read[name]["busy"], read[name]["compute"]) for name in names],
        [read[name]["memory"] for name in names],
        [found[name][1].finding.holding.memory_total_bytes or np.nan for name in names],
    )


def _proposal(one: Colocated, found: Mapping[str, tuple[GpuToday, Occupant]]) -> Colocation:
    gpu = found[one.online][0]
    freed = [found[name][0] for name in one.offline]
    prices = [each.price_per_hour for each in freed if each.price_per_hour is not None]
    return Colocation(
        host=gpu.host,
        gpu_index=gpu.gpu.index,
        online=one.online,
        offline=one.offline,
        freed=tuple("%s gpu %d" % (each.host, each.gpu.index) for each in freed),
        saved_per_month=round(sum(prices) * HOURS_PER_MONTH, 2) if prices else None,
        memory_bytes=one.memory_bytes,
        left_ratio=round(one.left_ratio, 3),
        need_ratio=round(one.need_ratio, 3),
        progress_ratio=round(one.progress_ratio, 3),
        entry=_entry(gpu.gpu.index, one),
        reason=_reason(one),
    )


def _entry(index: int, one: Colocated) -> dict[str, Any]:
    """Return the layout entry, with memory quotas rounded up to a step."""
    online, *offline = (
        max(1, math.ceil(quota / _MIB / _MEMORY_STEP_MIB)) * _MEMORY_STEP_MIB for quota in one.quotas_bytes
    )
    key = COLOCATING.key
    return {"gpus": [index], "sharing": key, key: COLOCATING.colocated_part(online, offline)}


def _reason(one: Colocated) -> str:
    text = (
        "Together they need at most %.1f GiB. %s leaves %.0f %% of the time below the waterline of %d %%, and %s used %.0f %%."
        % (
            one.memory_bytes / 2**30,
            one.online,
            100 * one.left_ratio,
            _WATERLINE_PERCENT,
            counted(len(one.offline), "offline workload"),
            100 * one.need_ratio,
        )
    )
    if one.progress_ratio < 1:
        text += " Offline work gets %.0f %% of its present GPU time." % (100 * one.progress_ratio)
    return text + " A request may wait for the rest of one offline kernel."
