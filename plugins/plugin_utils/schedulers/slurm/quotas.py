# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Count the quotas that jobs can lease on a node.

Slurm counts them without devices (Flags=CountOnly in gres.conf(5)). The Prolog takes the lease on a GPU.
"""

from __future__ import annotations

from typing import Sequence

from ....module_utils.layout.leases import SLURM, Leases
from ....module_utils.leases.units import count, most_units, shape_of, units_of
from ..model import NodeGpu, Refusal, by_entry, online_notes, refusal
from .gres import QUOTA, Gres


def leases_of(each: NodeGpu) -> Leases | None:
    """Return a GPU's leases if Slurm counts them, or None."""
    leases = each.entry.leases if each.entry is not None else None
    return leases if leases is not None and leases.by == SLURM else None


def without_leases(gpus: Sequence[NodeGpu]) -> tuple[NodeGpu, ...]:
    """Return the GPUs whose devices Slurm allocates."""
    return tuple(each for each in gpus if leases_of(each) is None)


def quota_gres(gpus: Sequence[NodeGpu]) -> list[Gres]:
    """Return the units that Slurm may give out."""
    units = sum(_count(group) for group in _groups(gpus))
    return [Gres(QUOTA, "", units)] if units else []


def refuse_quotas(gpus: Sequence[NodeGpu]) -> list[Refusal]:
    """Refuse entries whose quotas Slurm cannot count exactly."""
    groups = _groups(gpus)
    refusals = [
        refusal(
            group, "Slurm counts one kind of quota on a node, and several entries have leases", "Combine the entries."
        )
        for group in groups[1:]
    ]
    for group in groups:
        if group[0].technique is not None and group[0].technique.lease_room(group[0].gpu, group[0].entry) is None:
            refusals.append(
                refusal(group, "it has fixed tenants beside leases of Slurm", "Move the tenants to another entry.")
            )
        elif all(each.gpu.memory_total_bytes for each in group) and not _count(group):
            refusals.append(refusal(group, "no unit of its leases fits on a GPU", "Make `unit` smaller."))
    return refusals


def quota_notes(gpus: Sequence[NodeGpu]) -> list[str]:
    """Return what jobs can request."""
    notes = []
    for group in _groups(gpus):
        leases = leases_of(group[0])
        if leases is not None:
            rooms = _rooms(group, leases)
            largest = min(most_units(leases), max(rooms))
            notes.append(
                "gres/%s counts %s of a GPU. A job can request up to %d. Slurm gets %d of %d, so that each job fits on a GPU."
                % (QUOTA, shape_of(leases, 1), largest, _count(group), sum(rooms))
            )
            notes += online_notes(leases, "jobs in the partition")
    return notes


def _groups(gpus: Sequence[NodeGpu]) -> list[list[NodeGpu]]:
    return [group for group in by_entry(gpus) if leases_of(group[0]) is not None]


def _count(group: Sequence[NodeGpu]) -> int:
    leases = leases_of(group[0])
    return count(_rooms(group, leases), most_units(leases)) if leases is not None else 0


def _rooms(group: Sequence[NodeGpu], leases: Leases) -> list[int]:
    rooms = [each.technique.lease_room(each.gpu, each.entry) for each in group if each.technique is not None]
    return [units_of(leases, *room) for room in rooms if room is not None]
