# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make histories for sizing tests.

The histories have a sample every five minutes from midnight UTC.
"""

from __future__ import annotations

import numpy as np

from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.model import Fleet

GIB = 2.0**30
STEP = 300
DAY = 86400 // STEP
#: Monday, 2026-11-16 00:00 UTC.
START = 1794787200.0


def fleet(duty, gib, card=None, names=None):
    """Return a fleet from rows of percent and rows of GiB, one for each workload.

    A row is a constant or a sequence. The length is that of the longest sequence.
    """
    length = max(len(row) for row in (*duty, *gib) if np.ndim(row))
    tables = [np.array([np.broadcast_to(np.asarray(row, float), (length,)) for row in table]) for table in (duty, gib)]
    names = names or ["w%02d" % i for i in range(len(duty))]
    times = START + STEP * np.arange(length)
    return Fleet.of(names, times, tables[0], tables[1] * GIB, None if card is None else card * GIB)


def hours(days, *spans, high=80.0, low=0.0):
    """Return a row that has the value `high` in each span of hours, every day."""
    hour = np.arange(round(days * DAY)) * STEP / 3600 % 24
    return np.where(np.any([(hour >= start) & (hour < end) for start, end in spans], axis=0), high, low)


def random_fleet(seed, count, days, low=2.0, high=30.0):
    """Return workloads with random bursts of activity and random changes of memory."""
    chance = np.random.default_rng(seed)
    length = round(days * DAY)
    level = chance.uniform(low, high, (count, 1))
    memory = level * chance.choice([1.0, 1.1, 1.5], (count, length), p=[0.8, 0.15, 0.05])
    duty = np.where(
        chance.random((count, length)) < chance.uniform(0, 0.6, (count, 1)), 100 * chance.random((count, length)), 0
    )
    return fleet(list(duty), list(memory), 80)
