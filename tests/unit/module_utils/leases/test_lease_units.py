# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that every job that Slurm starts finds room for its quota on a GPU."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.layout.leases import Leases
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.model import Shape
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.units import count, most_units, shape_of, units_of

GIB = 1 << 30
MODELS = Path(__file__).parents[4] / "plugins" / "module_utils" / "models"
LEASES = Leases("slurm", (), 40 * GIB, 50, unit_memory_bytes=8 * GIB, unit_percent=10)
#: The units of each GPU, and the units of the largest job.
CASES = [
    (rooms, most)
    for gpus in (1, 2, 3)
    for rooms in itertools.combinations_with_replacement(range(5), gpus)
    for most in range(1, 5)
]


def refused_after(rooms, most, limit):
    """Return whether a job with up to `most` units is ever refused.

    Jobs start and end in any order, each on any GPU with room, and together have at most `limit` units. So the search
    reaches every set of jobs whose sizes fit on the GPUs.
    """
    reached, new = {(0,) * len(rooms)}, [(0,) * len(rooms)]
    while new:
        used = new.pop()
        for size in range(1, most + 1):
            if sum(used) + size > limit or size > max(rooms, default=0):
                continue
            places = [number for number, room in enumerate(rooms) if used[number] + size <= room]
            if not places:
                return True
            for number in places:
                after = (*used[:number], used[number] + size, *used[number + 1 :])
                if after not in reached:
                    reached.add(after)
                    new.append(after)
        # Any job can end. A larger job ends like several jobs of one unit.
        for number, units in enumerate(used):
            before = (*used[:number], units - 1, *used[number + 1 :])
            if units and before not in reached:
                reached.add(before)
                new.append(before)
    return False


@pytest.mark.parametrize(("rooms", "most"), CASES, ids=str)
def test_admitted_job_is_never_refused_and_no_more_units_are_possible(rooms, most):
    """Try all placements of jobs on the GPUs."""
    limit = count(rooms, most)
    assert not refused_after(rooms, most, limit)
    assert limit == sum(rooms) or refused_after(rooms, most, limit + 1)


def test_one_gpu_and_jobs_of_one_unit_lose_nothing():
    assert count([10], 10) == 10
    assert count([10, 10, 7], 1) == 27
    assert count([10, 10], 5) == 16
    assert count([], 5) == count([0, 0], 5) == 0


def test_units_are_limited_by_memory_sms_and_seats():
    assert units_of(LEASES, 80 * GIB, 100, 64) == 10
    assert units_of(LEASES, 30 * GIB, 100, 64) == 3
    assert units_of(LEASES, 80 * GIB, 45.5, 64) == 4
    assert units_of(LEASES, 80 * GIB, 100, 2) == 2
    assert units_of(LEASES, -GIB, 100, 64) == 0


def test_largest_job_and_its_quota():
    assert most_units(LEASES) == 5
    assert most_units(Leases("slurm", (), None, None, unit_memory_bytes=8 * GIB, unit_percent=30)) == 3
    assert most_units(Leases("slurm", (), 16 * GIB, None, unit_memory_bytes=8 * GIB, unit_percent=10)) == 2
    assert shape_of(LEASES, 3) == Shape(24 * GIB, 30)


# -- MIG instances, which jobs cannot lease ----------------------------------------------------------------------------


def mig_states(profiles):
    """Return all sets of instances that an H100 can have at one time.

    An instance is (profile, start, end).
    """
    places = [
        (name, start, start + profile["placement_size"])
        for name, profile in profiles.items()
        for start in profile["placement_starts"]
    ]
    states = [()]
    for place in places:
        states += [(*state, place) for state in states if is_free(state, place)]
    return states


def is_free(state, place):
    return all(place[2] <= start or end <= place[1] for _name, start, end in state)


def slices_for_slurm(profiles):
    """Return the largest number of slices that Slurm may give out to jobs.

    With this number, each job finds an instance. Jobs end in any order, so every set of instances can occur.
    """

    def never_refuses(limit):
        return all(
            any(
                is_free(state, (name, start, start + profile["placement_size"]))
                for start in profile["placement_starts"]
            )
            for state in mig_states(profiles)
            for name, profile in profiles.items()
            if sum(profiles[each]["compute_slices"] for each, _start, _end in state) + profile["compute_slices"]
            <= limit
        )

    return max(limit for limit in range(8) if never_refuses(limit))


def profiles_of(*names):
    profiles = json.loads((MODELS / "h100-80gb.json").read_text())["profiles"]
    return {each["name"]: each for each in profiles if each["name"] in names}


def test_mig_instances_of_two_sizes_would_leave_slices_unused():
    # Two small instances in the slots 0 and 4 block both places of 3g.40gb. So Slurm could use only four slices.
    assert slices_for_slurm(profiles_of("1g.10gb", "3g.40gb")) == 4
    # With a single size, no slice is lost. But then a fixed layout has the same instances.
    assert slices_for_slurm(profiles_of("1g.10gb")) == 7
