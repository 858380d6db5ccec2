# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what a host's GPUs are to the layout that says so: how an existing fleet is adopted. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Sequence

from .layout_types import Entry, Layout, MigInstance, Selector
from .model import Gpu, GpuInstance

#: The sharing that a compute mode means, MIG off.
_SHARINGS = {"default": "shared", "exclusive_process": "exclusive"}


@dataclass(frozen=True)
class Exported:
    """The layout, and a sentence for each GPU or instance that no layout can express."""

    layout: Layout
    left_out: tuple[str, ...]


def exported(gpus: Sequence[Gpu], pin_placements: bool = False, select_by: str = "index") -> Exported:
    """The layout of these GPUs; GPUs that are alike share an entry. `select_by` is index, uuid or pci.

    Applied to the same GPUs it changes nothing, but for what `left_out` names.
    """
    left_out: list[str] = []
    alike: dict[tuple[str, tuple[MigInstance, ...] | None], list[Gpu]] = {}
    for gpu in gpus:
        if gpu.mig.enabled != gpu.mig.pending:
            left_out.append("%s is left out: a change of its MIG mode is pending until a reset" % gpu.label)
        elif gpu.mig.enabled:
            alike.setdefault(("mig", tuple(_instances(gpu, pin_placements, left_out))), []).append(gpu)
        elif gpu.compute_mode in _SHARINGS:
            alike.setdefault((_SHARINGS[gpu.compute_mode], None), []).append(gpu)
        else:
            left_out.append(
                "%s is left out: no sharing means its compute mode (%s)" % (gpu.label, gpu.compute_mode or "not told")
            )
    every = not left_out and len(alike) == 1 and select_by == "index"
    entries = []
    for number, ((sharing, mig), members) in enumerate(alike.items()):
        selectors = (Selector("all"),) if every else tuple(_selector(gpu, select_by) for gpu in members)
        entries.append(Entry(number, selectors, sharing, mig=mig))
    return Exported(Layout(tuple(entries)), tuple(left_out))


def _selector(gpu: Gpu, by: str) -> Selector:
    return Selector(by, {"index": gpu.index, "uuid": gpu.uuid, "pci": gpu.pci_address}[by])


def _instances(gpu: Gpu, pin_placements: bool, left_out: list[str]) -> Iterable[MigInstance]:
    """The instances in the order of their placements; equal ones that are not pinned are counted."""
    counts: dict[MigInstance, int] = {}
    slices = {profile.name: profile.compute_slices for profile in gpu.mig.profiles}
    for instance in gpu.mig.instances:
        if not instance.compute_instances:
            left_out.append(
                "%s: %s@%d has no compute instance, and a layout gives it one"
                % (gpu.label, instance.profile, instance.placement.start)
            )
        split = _split(instance, slices[instance.profile])
        one = MigInstance(
            instance.profile, placement=instance.placement.start if pin_placements else None, compute_instances=split
        )
        counts[one] = counts.get(one, 0) + 1
    return [MigInstance(i.profile, n, i.placement, i.compute_instances) for i, n in counts.items()]


def _split(instance: GpuInstance, slices: int) -> tuple[str, ...]:
    """The names of the compute instances; none where one spans the GPU instance, or there is none."""
    parts = sorted((compute.compute_slices for compute in instance.compute_instances), reverse=True)
    return () if parts in ([], [slices]) else tuple("%dc.%s" % (n, instance.profile) for n in parts)
