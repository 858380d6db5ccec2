# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Export the instances of GPUs as parts of a layout. Pure functions."""

from __future__ import annotations

import dataclasses
from typing import Callable, Iterable, Sequence

from ...layout.form import Form, Seen, export_parts
from ...layout.types import MigInstance, Selector
from ...model import Gpu, GpuInstance


def export_together(
    gpus: Sequence[Gpu],
    seen: Seen,
    pin: Callable[[Gpu], Selector] | None,
    left_out: list[str],
    inside: Sequence[Form],
) -> dict[str, tuple[MigInstance, ...] | None]:
    """Return the instances of each GPU in MIG mode, by GPU UUID.

    The value is None while a change of the GPU's MIG mode is pending. If `pin` is true, each instance has its
    placement.
    """
    found: dict[str, tuple[MigInstance, ...] | None] = {}
    for gpu in gpus:
        if gpu.mig.enabled != gpu.mig.pending:
            left_out.append("%s is left out: a change of its MIG mode is pending until a reset" % gpu.label)
            found[gpu.uuid] = None
        elif gpu.mig.enabled:
            found[gpu.uuid] = tuple(_instances(gpu, pin is not None, seen, left_out, inside))
    return found


def _instances(
    gpu: Gpu, pin_placements: bool, seen: Seen, left_out: list[str], inside: Sequence[Form]
) -> Iterable[MigInstance]:
    """Return a GPU's instances in the order of their placements.

    Equal instances without a pinned placement become one item with a count.
    """
    counts: dict[MigInstance, int] = {}
    slices = {profile.name: profile.compute_slices for profile in gpu.mig.profiles}
    for instance in gpu.mig.instances:
        if not instance.compute_instances:
            left_out.append(
                "%s: %s@%d has no compute instance. A layout cannot express this, and would create one"
                % (gpu.label, instance.profile, instance.placement.start)
            )
        split = _split(instance, slices[instance.profile])
        start = instance.placement.start
        one = MigInstance(instance.profile, placement=start if pin_placements else None, compute_instances=split)
        for form, part in export_parts(inside, gpu, seen, instance):
            one = dataclasses.replace(one, sharing=form.key, part=part)
        counts[one] = counts.get(one, 0) + 1
    return [dataclasses.replace(i, count=n) for i, n in counts.items()]


def _split(instance: GpuInstance, slices: int) -> tuple[str, ...]:
    """Return the names of the compute instances in a GPU instance.

    Returns an empty tuple if the GPU instance has no compute instance, or one that spans the whole GPU instance.
    """
    parts = sorted((compute.compute_slices for compute in instance.compute_instances), reverse=True)
    return () if parts in ([], [slices]) else tuple("%dc.%s" % (n, instance.profile) for n in parts)
