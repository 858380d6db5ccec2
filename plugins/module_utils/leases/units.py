# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Count the units of quota that a scheduler may give out without knowing the GPUs.

Pure functions. Slurm counts one number of units for each node, but a job needs all its units on one GPU. If Slurm
counted every unit, a node's free units could be spread over GPUs so that a job fits on none of them. So Slurm gets
fewer units: every job that it starts fits on a GPU, wherever the earlier jobs are.
"""

from __future__ import annotations

from typing import Sequence

from ..layout.leases import Leases
from .model import Shape


def units_of(leases: Leases, memory_bytes: int, sm_percent: float, seats: int) -> int:
    """Return how many of the entry's units fit into this room on a GPU."""
    return max(0, min(memory_bytes // leases.unit_memory_bytes, int(sm_percent // leases.unit_percent), seats))


def most_units(leases: Leases) -> int:
    """Return the number of units that one job may have."""
    by_memory = (leases.memory_bytes or leases.unit_memory_bytes * 100) // leases.unit_memory_bytes
    return min(by_memory, (leases.sm_percent or 100) // leases.unit_percent)


def shape_of(leases: Leases, units: int) -> Shape:
    """Return the quota of a job with this many units."""
    return Shape(units * leases.unit_memory_bytes, units * leases.unit_percent)


def count(rooms: Sequence[int], most: int) -> int:
    """Return how many units a scheduler may give out so that each job fits.

    A job has at most `most` units. `rooms` has the units of each GPU. A job of `size` units fits nowhere only if every GPU has
    less than `size` free units.
    The other jobs then have at least sum(room - size + 1) units, so the job is the first one beyond this number and its own
    size. The smallest of these numbers is the limit for all sizes.
    """
    largest = min(most, max(rooms, default=0))
    blocked = (sum(max(0, room - size + 1) for room in rooms) + size - 1 for size in range(1, largest + 1))
    return min(blocked, default=0)
