# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what a host's GPUs are to the layout that says so: how an existing fleet is adopted. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Iterable, Mapping, Sequence

from .layout_types import Entry, Layout, MigInstance, Selector
from .model import Gpu, GpuInstance
from .techniques.form import Form
from .techniques.forms import FORMS

#: What the service of each technique sees, by key.
Seen = Mapping[str, Sequence[Any]]

#: The sharing that a compute mode means, MIG off.
_SHARINGS = {"default": "shared", "exclusive_process": "exclusive"}


@dataclass(frozen=True)
class Exported:
    """The layout, and a sentence for each GPU or instance that no layout can express."""

    layout: Layout
    left_out: tuple[str, ...]


def exported(
    gpus: Sequence[Gpu],
    pin_placements: bool = False,
    select_by: str = "index",
    seen: Seen | None = None,
) -> Exported:
    """The layout of these GPUs; GPUs that are alike share an entry. `select_by` is index, uuid or pci.

    Applied to the same GPUs, with what is `seen` beside them, it changes nothing, except what `left_out` names.
    """
    left_out: list[str] = []
    alike: dict[Entry, list[Gpu]] = {}
    pin = (lambda gpu: _selector(gpu, select_by)) if pin_placements else None
    seen = seen or {}
    shared: dict[str, Entry | None] = {}
    for form in FORMS:
        parts = form.export_together(gpus, seen.get(form.key, ()), pin, left_out)
        shared.update((uuid, part and Entry(0, (), form.key, part)) for uuid, part in parts.items())
    for gpu in gpus:
        entry = shared[gpu.uuid] if gpu.uuid in shared else _entry(gpu, pin_placements, seen, left_out)
        if entry is not None:
            alike.setdefault(entry, []).append(gpu)
    every = not left_out and len(alike) == 1 and select_by == "index"
    entries = []
    for number, (entry, members) in enumerate(alike.items()):
        selectors = (Selector("all"),) if every else tuple(_selector(gpu, select_by) for gpu in members)
        entries.append(dataclasses.replace(entry, index=number, selectors=selectors))
    return Exported(Layout(tuple(entries)), tuple(left_out))


def _entry(gpu: Gpu, pin_placements: bool, seen: Seen, left_out: list[str]) -> Entry | None:
    """What a layout says of this GPU, without a number and selectors."""
    if gpu.mig.enabled != gpu.mig.pending:
        left_out.append("%s is left out: a change of its MIG mode is pending until a reset" % gpu.label)
        return None
    if gpu.mig.enabled:
        return Entry(0, (), "mig", tuple(_instances(gpu, pin_placements, seen, left_out)))
    sharing = _SHARINGS.get(gpu.compute_mode or "")
    parts = _parts(gpu, seen)
    if sharing is None or any(form.compute_mode != gpu.compute_mode for form, _part in parts):
        words = [gpu.compute_mode or "not told", *(form.describe(part) for form, part in parts)]
        left_out.append("%s is left out: no sharing means its compute mode (%s)" % (gpu.label, ", ".join(words)))
        return None
    if parts:
        form, part = parts[-1]
        return Entry(0, (), form.key, part)
    return Entry(0, (), sharing)


def _parts(gpu: Gpu, seen: Seen, instance: GpuInstance | None = None) -> list[tuple[Form, Any]]:
    """Return the techniques that share the GPU or its instance, each with its part."""
    asked = [each for each in FORMS if each.inside_mig or instance is None]
    parts = [(each, each.export(gpu, seen.get(each.key, ()), instance)) for each in asked]
    return [(form, part) for form, part in parts if part is not None]


def _selector(gpu: Gpu, by: str) -> Selector:
    return Selector(by, {"index": gpu.index, "uuid": gpu.uuid, "pci": gpu.pci_address}[by])


def _instances(gpu: Gpu, pin_placements: bool, seen: Seen, left_out: list[str]) -> Iterable[MigInstance]:
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
        start = instance.placement.start
        one = MigInstance(instance.profile, placement=start if pin_placements else None, compute_instances=split)
        for form, part in _parts(gpu, seen, instance):
            one = dataclasses.replace(one, sharing=form.key, part=part)
        counts[one] = counts.get(one, 0) + 1
    return [dataclasses.replace(i, count=n) for i, n in counts.items()]


def _split(instance: GpuInstance, slices: int) -> tuple[str, ...]:
    """The names of the compute instances; none where one spans the GPU instance, or there is none."""
    parts = sorted((compute.compute_slices for compute in instance.compute_instances), reverse=True)
    return () if parts in ([], [slices]) else tuple("%dc.%s" % (n, instance.profile) for n in parts)
