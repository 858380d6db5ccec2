# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Export the MPS daemon of a GPU or MIG instance as a part of a layout."""

from __future__ import annotations

from typing import Sequence

from ...model import Gpu, GpuInstance
from .model import DAEMONS, Mps, MpsDaemon, MpsPlace, MpsSeen

MIB = 1 << 20


def export(gpu: Gpu, seen: Sequence[MpsSeen], instance: GpuInstance | None = None) -> Mps | None:
    """Return the part that describes the GPU or its instance.

    Returns None if no daemon serves the GPU or instance.
    """
    place, memory_bytes = MpsPlace(gpu.uuid), gpu.memory_total_bytes
    if instance is not None:
        place = MpsPlace(gpu.uuid, instance.profile, instance.placement.start)
        memory_bytes = {profile.name: profile.memory_mib * MIB for profile in gpu.mig.profiles}[instance.profile]
    served = [one.daemon for one in seen if place in one.daemon.places]
    return _part(served[0], memory_bytes) if served else None


def describe(part: Mps) -> str:
    """Return the daemon as text."""
    return "MPS daemon %s" % part.name


def _part(daemon: MpsDaemon, memory_bytes: int | None) -> Mps:
    limit = daemon.pinned_memory_limit_bytes
    overbooks_memory = memory_bytes is not None and daemon.clients * (limit or 0) > memory_bytes
    return Mps(
        daemon.name,
        daemon.clients,
        daemon.active_thread_percentage,
        limit,
        daemon.clients * daemon.active_thread_percentage > 100 or overbooks_memory,
        DAEMONS[len(daemon.places) > 1],
    )
