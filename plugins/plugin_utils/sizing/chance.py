# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Calculate probability distributions of memory and duty at one moment. Pure.

A distribution mixes the workload's samples with the fleet's. The shorter the workload's history is, the more weight the
fleet's samples have. The combined histories of the workloads on a card show which peaks occurred at the same time. The
distributions show how likely other combinations of peaks are.
"""

from __future__ import annotations

from typing import Sequence

from ..numerics import np
from .evidence import Evidence, drift
from .model import Fleet, Policy

MIB = 2**20
#: Size of a memory bin in bytes. Memory is rounded up to whole bins.
BIN_BYTES = 256 * MIB
#: Number of quantiles that represent the fleet's pooled samples.
_QUANTILES = 4096
#: Minimum number of samples with work for a workload to contribute to the fleet's distribution of work.
_LEAST_WORKING = 5
_HOUR_SECONDS = 3600.0


def _thinned(values: np.ndarray) -> np.ndarray:
    values = np.sort(values, axis=None)
    return values[np.linspace(0, values.size - 1, min(values.size, _QUANTILES)).astype(int)]


def memory_chances(fleet: Fleet, evidence: Sequence[Evidence], policy: Policy) -> np.ndarray:
    """Return (n, bins): the probabilities of memory use, in bins of BIN_BYTES.

    Row i has the probabilities that workload i uses 0, 1, 2, … bins at a moment. They mix the workload's samples with
    the fleet's. To make the fleet's samples comparable, each is divided by its own workload's median and multiplied by
    that of workload i. The weight of the workload's own samples is days / (days + `prior_days`). The drift is added to
    all samples. No sample exceeds the memory of the workload's current card.
    """
    memory = fleet.whole_memory()
    median = np.median(memory, axis=1)
    rises = drift(memory)
    ratios = _thinned(memory[median > 0] / median[median > 0][:, None]) if np.any(median > 0) else np.ones(1)
    highest = np.maximum(memory.max(axis=1) + rises, median * ratios[-1] + rises)
    limit = np.ceil(np.fmin(highest, fleet.card) / BIN_BYTES).astype(int)
    limit = np.maximum(limit, np.ceil(memory.max(axis=1) / BIN_BYTES).astype(int))
    bins = int(limit.max(initial=0)) + 1
    chances = np.zeros((len(memory), bins))
    for i, known in enumerate(evidence):
        own = np.minimum(np.ceil((memory[i] + rises[i]) / BIN_BYTES).astype(int), limit[i])
        theirs = np.minimum(np.ceil((median[i] * ratios + rises[i]) / BIN_BYTES).astype(int), limit[i])
        weight = known.days / (known.days + policy.prior_days) if known.days else 0.0
        chances[i] = weight * np.bincount(own, minlength=bins) / own.size
        chances[i] += (1 - weight) * np.bincount(theirs, minlength=bins) / theirs.size
    return chances


def busiest_hour(working: np.ndarray, samples: int) -> np.ndarray:
    """Return (n,): the share of work in the busiest hour of each workload.

    `working` (n, t) is true for samples with work. An hour has `samples` consecutive samples.
    """
    length = working.shape[1]
    window = max(1, min(samples, length))
    total = np.concatenate([np.zeros((len(working), 1)), np.cumsum(working, axis=1)], axis=1)
    return ((total[:, window:] - total[:, :-window]) / window).max(axis=1)


def duty_chances(fleet: Fleet, evidence: Sequence[Evidence], policy: Policy) -> np.ndarray:
    """Return (n, 101): the probabilities of a duty of 0 to 100 percent.

    Row i has the probabilities for workload i at a moment of the next hours. The duty is rounded up.

    The duty during work hardly depends on the hour of the day. It is estimated from the samples with work. The fewer of
    them a workload has, the more weight the fleet's samples have. The share of time with work does depend on the hour
    of the day. It is the observed share, if the history has all hours of the day. Otherwise, the difference between
    `busy_hour_ratio` and the share in the workload's busiest hour is added.
    """
    duty = fleet.whole_duty()
    working = duty >= policy.working_percent
    count = working.sum(axis=1)
    total = np.where(working, duty, 0).sum(axis=1)
    fleet_level = total.sum() / count.sum() if count.sum() else 100.0
    level = (total + policy.level_samples * fleet_level) / np.maximum(count + policy.level_samples, 1e-9)
    typical = [i for i in range(len(duty)) if count[i] >= _LEAST_WORKING]
    pooled = [duty[i][working[i]] * count[i] / total[i] for i in typical]
    ratios = _thinned(np.concatenate(pooled)) if pooled else np.ones(1)
    busiest = busiest_hour(working, round(_HOUR_SECONDS / fleet.step) if fleet.step else 1)
    chances = np.zeros((len(duty), 101))
    for i, known in enumerate(evidence):
        own = np.bincount(np.ceil(duty[i][working[i]]).astype(int), minlength=101)
        theirs = np.bincount(np.minimum(np.ceil(ratios * level[i]), 100).astype(int), minlength=101) / ratios.size
        shape = (own + policy.shape_samples * theirs) / (count[i] + policy.shape_samples)
        # Add the assumed difference only if the history does not have all hours of the day.
        guessed = max(0.0, policy.busy_hour_ratio - busiest[i]) if known.day_ratio < 1 else 0.0
        share = min(1.0, count[i] / duty.shape[1] + guessed)
        chances[i] = share * shape
        chances[i][0] += 1 - share
    return chances
