# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that GPU time in which launches overlap is counted only once."""

from __future__ import annotations

import random
from ctypes import byref

from tests.limiter.turnstile_lab import Covered


def test_overlapping_stretches_are_counted_once(library):
    covered = Covered()
    steps = [
        ((0, 10), 10),
        ((5, 12), 2),  # Half of this interval is already counted.
        ((6, 11), 0),  # All of this interval is already counted.
        ((20, 30), 10),  # This interval starts after a gap.
        ((15, 25), 5),  # This interval starts in the gap.
        # This interval contains the previous one. It adds the rest of the gap, and the time after the last interval.
        ((10, 40), 3 + 10),
        ((0, 12), 0),  # This interval is entirely in the past.
    ]
    for (start, end), added in steps:
        assert library.busy_cover(byref(covered), start, end) == added, f"{start} to {end}"


def test_stretches_in_the_order_of_their_launches_sum_to_their_union(library):
    """Start launches of several streams nearly in order.

    The sum must equal the number of marked nanoseconds.
    """
    for case in range(200):
        choose = random.Random(case)
        marked, total, covered, begin = set(), 0, Covered(), 0
        for _ in range(40):
            begin += choose.randint(0, 8)
            end = begin + choose.randint(1, 12)
            total += library.busy_cover(byref(covered), begin, end)
            marked.update(range(begin, end))
        assert total == len(marked), f"case {case}"
