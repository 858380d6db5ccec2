# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Time that is counted once, though launches overlap."""

from __future__ import annotations

import random
from ctypes import byref

from turnstile_lab import Covered


def test_overlapping_stretches_are_counted_once(library):
    covered = Covered()
    steps = [
        ((0, 10), 10),
        ((5, 12), 2),  # half of it was counted
        ((6, 11), 0),  # all of it
        ((20, 30), 10),  # behind a gap
        ((15, 25), 5),  # begins in the gap
        ((10, 40), 3 + 10),  # all round the last stretch: the rest of the gap, and beyond
        ((0, 12), 0),  # long past
    ]
    for (start, end), added in steps:
        assert library.busy_cover(byref(covered), start, end) == added, f"{start} to {end}"


def test_stretches_in_the_order_of_their_launches_sum_to_their_union(library):
    """Several streams: launches begin in order or nearly so; the sum must be that of the marked nanoseconds."""
    for case in range(200):
        choose = random.Random(case)
        marked, total, covered, begin = set(), 0, Covered(), 0
        for _ in range(40):
            begin += choose.randint(0, 8)
            end = begin + choose.randint(1, 12)
            total += library.busy_cover(byref(covered), begin, end)
            marked.update(range(begin, end))
        assert total == len(marked), f"case {case}"
