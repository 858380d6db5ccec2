# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Calculate the ledger with the proposal applied. Pure.

The classes are those of the audit. A workload that becomes smaller keeps the part that it uses. Unchanged GPUs keep
their rows, so rows add up to the same total before and after.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import Collection, Iterator, Mapping, Sequence

from ..audit.ledger import apportion
from ..audit.ledger_model import FREE, GPU_UNITS, IN_USE, RESIZABLE, UNASSIGNED, UNKNOWN, Ledger, Row
from ..packing.geometry import geometry
from ..packing.model import Shape, Standing
from .model import GpuToday, Occupant

#: A smaller remainder of a GPU is a rounding error.
_LEAST = 0.001


def after(
    book: Ledger,
    gpus: Sequence[GpuToday],
    then: Mapping[str, Sequence[Standing]],
    changed: Collection[tuple[str, int]],
) -> Ledger:
    """Return the ledger with the proposal. GPU hours are 0.

    `then` has workloads' new places by name. `changed` has the GPUs whose workloads change.
    """
    by_place = {(gpu.host, gpu.gpu.uuid): gpu for gpu in gpus if gpu.key in changed}
    today: dict[str, list[Row]] = defaultdict(list)
    of_gpu: dict[tuple[str, str], list[Row]] = defaultdict(list)
    rows = []
    for row in book.rows:
        today[row.finding].append(row)
        if (row.host, row.gpu_uuid) in by_place:
            of_gpu[(row.host, row.gpu_uuid)].append(row)
        else:
            rows.append(replace(row, gpu_hours=0.0))
    places = _places(gpus, then)
    for place, gpu in by_place.items():
        known = of_gpu.get(place, ())
        parts = [
            part
            for one, standing in places.get(gpu.key, ())
            for part in _parts(today[one.finding.id], _size(gpu, standing.shape, len(places[gpu.key])))
        ]
        rows += _rows(gpu, known, parts)
    return Ledger(tuple(rows))


def _places(
    gpus: Sequence[GpuToday], then: Mapping[str, Sequence[Standing]]
) -> dict[tuple[str, int], list[tuple[Occupant, Standing]]]:
    """Return the workloads of each GPU with the proposal."""
    found: dict[tuple[str, int], list[tuple[Occupant, Standing]]] = defaultdict(list)
    for gpu in gpus:
        for one in gpu.occupants:
            for standing in then.get(one.name) or (one.standing,):
                found[standing.key].append((one, standing))
    return found


def _size(gpu: GpuToday, shape: Shape, workloads: int) -> float:
    """Return the share of the GPU's memory that a workload has."""
    if shape.kind == "whole":
        return 1.0
    if shape.kind == "mig":
        return float(geometry(gpu.model).shares(shape)[0])
    if not shape.memory_mib or (shape.technique and shape.technique.takes_turns):
        # The workloads take turns.
        return 1 / workloads
    return shape.memory_mib / geometry(gpu.model).memory_mib


def _parts(rows: Sequence[Row], size: float) -> list[tuple[str, str, float]]:
    """Return (finding, class, part of a GPU) for a workload with a new size."""
    now: dict[str, float] = defaultdict(float)
    for row in rows:
        now[row.word] += row.gpus
    if not any(now.values()):
        return [("", UNKNOWN, size)]
    name = rows[0].finding
    if {word for word, part in now.items() if part} <= {IN_USE, RESIZABLE}:
        used = min(size, now[IN_USE])
        return [(name, IN_USE, used), (name, RESIZABLE, size - used)]
    # An idle workload stays idle with any size.
    return [(name, max(now, key=lambda word: now[word]), size)]


def _rows(gpu: GpuToday, today: Sequence[Row], parts: Sequence[tuple[str, str, float]]) -> Iterator[Row]:
    """Return a GPU's rows, which add up to its GPUs and costs of today."""
    whole = sum(round(row.gpus * GPU_UNITS) for row in today)
    costs = [row.cost_per_month for row in today if row.cost_per_month is not None]
    used = math.fsum(part for _name, _word, part in parts)
    cells = [(name, word, part / max(used, 1.0)) for name, word, part in parts]
    if not parts:
        cells = [("", FREE, 1.0)]
    elif 1 - used > _LEAST:
        cells.append(("", UNASSIGNED, 1 - used))
    weights = [part for _name, _word, part in cells]
    money = apportion(round(math.fsum(costs)), weights)
    for (name, word, _part), units, cost in zip(cells, apportion(whole, weights), money):
        if units or cost:
            price = float(cost) if costs else None
            yield Row(gpu.host, gpu.gpu.uuid, str(gpu.gpu.index), "", "", name, word, units / GPU_UNITS, 0.0, price)
