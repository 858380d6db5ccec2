# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what a host's GPUs are to the layout that says so: how an existing fleet is adopted. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Iterable, Sequence

from .export_vgpu import entries_of_tenants
from .layout_types import MPS_DAEMONS, Entry, Layout, MigInstance, Mps, Selector
from .model import Gpu, GpuInstance
from .mps_model import MpsDaemon, MpsPlace
from .techniques.protocol import Technique
from .techniques.registry import TECHNIQUES
from .vgpu_model import VgpuTenant

MIB = 1 << 20

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
    daemons: Sequence[MpsDaemon] = (),
    tenants: Sequence[VgpuTenant] = (),
) -> Exported:
    """The layout of these GPUs; GPUs that are alike share an entry. `select_by` is index, uuid or pci.

    Applied to the same GPUs, with the same MPS `daemons` and `tenants` on them, it changes nothing, but for what `left_out`
    names.
    """
    left_out: list[str] = []
    alike: dict[Entry, list[Gpu]] = {}
    pin = (lambda gpu: _selector(gpu, select_by)) if pin_placements else None
    shared = entries_of_tenants(gpus, tenants, pin, left_out)
    for gpu in gpus:
        entry = shared[gpu.uuid] if gpu.uuid in shared else _entry(gpu, pin_placements, daemons, left_out)
        if entry is not None:
            alike.setdefault(entry, []).append(gpu)
    every = not left_out and len(alike) == 1 and select_by == "index"
    entries = []
    for number, (entry, members) in enumerate(alike.items()):
        selectors = (Selector("all"),) if every else tuple(_selector(gpu, select_by) for gpu in members)
        entries.append(dataclasses.replace(entry, index=number, selectors=selectors))
    return Exported(Layout(tuple(entries)), tuple(left_out))


def _entry(gpu: Gpu, pin_placements: bool, daemons: Sequence[MpsDaemon], left_out: list[str]) -> Entry | None:
    """What a layout says of this GPU, without a number and selectors."""
    if gpu.mig.enabled != gpu.mig.pending:
        left_out.append("%s is left out: a change of its MIG mode is pending until a reset" % gpu.label)
        return None
    if gpu.mig.enabled:
        return Entry(0, (), "mig", tuple(_instances(gpu, pin_placements, daemons, left_out)))
    sharing = _SHARINGS.get(gpu.compute_mode or "")
    technique, part = _set_by(gpu)
    served = [daemon for daemon in daemons if MpsPlace(gpu.uuid) in daemon.places]
    misset = technique is not None and technique.compute_mode != gpu.compute_mode
    if sharing is None or misset or (served and sharing != "exclusive"):
        mode = gpu.compute_mode or "not told"
        mode += ", %s" % technique.observer.describe(gpu) if technique is not None else ""
        mode += ", MPS daemon %s" % served[0].name if served else ""
        left_out.append("%s is left out: no sharing means its compute mode (%s)" % (gpu.label, mode))
        return None
    if served:
        return Entry(0, (), "mps", _mps(served[0], gpu.memory_total_bytes))
    if technique is not None:
        return Entry(0, (), technique.key, part)
    return Entry(0, (), sharing)


def _set_by(gpu: Gpu) -> tuple[Technique | None, Any]:
    """Return the technique by whose setting the GPU is shared, and its part of an entry."""
    for technique in TECHNIQUES:
        part = technique.export(gpu)
        if part is not None:
            return technique, part
    return None, None


def _mps(daemon: MpsDaemon, memory_bytes: int) -> Mps:
    limit = daemon.pinned_memory_limit_bytes
    return Mps(
        daemon.name,
        daemon.clients,
        daemon.active_thread_percentage,
        limit,
        daemon.clients * daemon.active_thread_percentage > 100 or daemon.clients * (limit or 0) > memory_bytes,
        MPS_DAEMONS[len(daemon.places) > 1],
    )


def _selector(gpu: Gpu, by: str) -> Selector:
    return Selector(by, {"index": gpu.index, "uuid": gpu.uuid, "pci": gpu.pci_address}[by])


def _instances(
    gpu: Gpu, pin_placements: bool, daemons: Sequence[MpsDaemon], left_out: list[str]
) -> Iterable[MigInstance]:
    """The instances in the order of their placements; equal ones that are not pinned are counted."""
    counts: dict[MigInstance, int] = {}
    slices = {profile.name: profile.compute_slices for profile in gpu.mig.profiles}
    memory = {profile.name: profile.memory_mib * MIB for profile in gpu.mig.profiles}
    served = {place: daemon for daemon in daemons for place in daemon.places}
    for instance in gpu.mig.instances:
        if not instance.compute_instances:
            left_out.append(
                "%s: %s@%d has no compute instance, and a layout gives it one"
                % (gpu.label, instance.profile, instance.placement.start)
            )
        split = _split(instance, slices[instance.profile])
        start = instance.placement.start
        daemon = served.get(MpsPlace(gpu.uuid, instance.profile, start))
        one = MigInstance(
            instance.profile,
            placement=start if pin_placements else None,
            compute_instances=split,
            mps=None if daemon is None else _mps(daemon, memory[instance.profile]),
        )
        counts[one] = counts.get(one, 0) + 1
    return [dataclasses.replace(i, count=n) for i, n in counts.items()]


def _split(instance: GpuInstance, slices: int) -> tuple[str, ...]:
    """The names of the compute instances; none where one spans the GPU instance, or there is none."""
    parts = sorted((compute.compute_slices for compute in instance.compute_instances), reverse=True)
    return () if parts in ([], [slices]) else tuple("%dc.%s" % (n, instance.profile) for n in parts)
