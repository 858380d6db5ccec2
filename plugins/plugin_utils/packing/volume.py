# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute a lower bound for the number of GPUs from the workloads' sizes.

Pure. A GPU has one kind of sharing, so the kinds' bounds are added. Workloads with options of several kinds are not
counted.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from math import ceil
from typing import Iterable, Sequence

from .case import Case
from .model import Workload

#: Maximum number of thresholds to try for each resource.
MOST_THRESHOLDS = 200


def least_gpus(case: Case) -> int:
    """Return a lower bound of the number of GPUs that hold all workloads."""
    sizes: dict[str, list[tuple[Fraction, ...]]] = defaultdict(list)
    for workload in case.problem.workloads:
        kinds = {shape.kind for shape in workload.options}
        size = _size(case, workload) if len(kinds) == 1 else None
        if size is not None:
            sizes[kinds.pop()] += [size] * workload.gpus
    return sum(max(_bound(resource) for resource in zip(*each)) for each in sizes.values())


def _size(case: Case, workload: Workload) -> tuple[Fraction, ...] | None:
    """Return the smallest share of each resource that the workload can need.

    Returns None if it fits nowhere.
    """
    shares = [
        geometry.shares(shape)
        for shape in workload.options
        for geometry in map(case.geometry_of, case.models())
        if geometry.can_hold(shape)
    ]
    return tuple(map(min, zip(*shares))) if shares else None


def _bound(sizes: Sequence[Fraction]) -> int:
    """Return a lower bound for one resource (L2 of Martello and Toth, 1990).

    Let k be a threshold of at most 1/2. A part larger than 1 - k cannot share a GPU with a part of size k or more, so
    it counts as a whole GPU. A part of size k to 1 - k counts with its size. Smaller parts do not count.
    """
    whole = ceil(sum(sizes))
    thresholds = sorted({size for size in sizes if 0 < 2 * size <= 1})
    return max(
        [whole, *(_with(sizes, k) for k in thresholds[:: 1 + len(thresholds) // MOST_THRESHOLDS]), _halves(sizes)]
    )


def _with(sizes: Iterable[Fraction], threshold: Fraction) -> int:
    return ceil(sum((1 if size > 1 - threshold else size) for size in sizes if size >= threshold))


def _halves(sizes: Iterable[Fraction]) -> int:
    """Return the number of parts larger than half a GPU."""
    return sum(2 * size > 1 for size in sizes)
