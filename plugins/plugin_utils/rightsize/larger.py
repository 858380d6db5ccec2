# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say what would help a saturated workload. Pure."""

from __future__ import annotations

from typing import Collection, Sequence

from ..packing.geometry import geometry
from ..packing.model import mig
from .model import GpuToday, Occupant


def remedy(one: Occupant, gpu: GpuToday, gpus: Sequence[GpuToday], used_then: Collection[tuple[str, int]]) -> str:
    """Return what would help, or "" if the workload is not saturated.

    `used_then` has the GPUs that the proposal uses.
    """
    if one.finding.verdict.word != "saturated" or not gpu.model:
        return ""
    free = [each.gpu.index for each in gpus if each.host == gpu.host and each.key not in used_then]
    room = (
        "With the proposal, gpu %s of the host is free." % ", ".join(map(str, free))
        if free
        else "No GPU of the host is free: move it, or a neighbour, to another host."
    )
    if one.shape.kind == "mig":
        larger = next_profile(gpu.model, one.shape.profile)
        if larger:
            return "It needs more: the next larger instance is %s. %s" % (larger, room)
    elif one.shape.is_tenant:
        return "It needs more: raise its quota, now %d MiB and %d %% of the SMs. %s" % (
            one.shape.memory_mib,
            one.shape.sm_percent,
            room,
        )
    return "It uses a whole GPU: only a second GPU or a larger model helps. %s" % room


def next_profile(model: str, profile: str) -> str:
    """Return the smallest profile with more memory and no less compute, or ""."""
    whole = geometry(model)
    mine = whole.shares(mig(profile))[0]
    found = [
        (whole.shares(mig(one.name))[0], one.compute_slices, one.name)
        for one in whole.gpu.mig.profiles
        if one.name.endswith("gb")
    ]
    compute = next((slices for _memory, slices, name in found if name == profile), 0)
    larger = [each for each in found if each[0] > mine and each[1] >= compute]
    return min(larger)[2] if larger else ""
