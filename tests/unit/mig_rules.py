# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Implement the rules of MIG independently of the planner.

A `Card` applies the steps of a plan the way the driver does. It raises Illegal for each step that the driver would
refuse.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools

from ansible_collections.openfleet.gpu.plugins.module_utils.model import ComputeInstance, Gpu, GpuInstance, Placement
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.mig import steps as mig_steps


class Illegal(AssertionError):
    """Raised for a step that the driver would refuse."""


def units(placement):
    return set(range(placement.start, placement.start + placement.size))


def legal(gpu: Gpu, instances) -> bool:
    """Return whether instances fit on the GPU together.

    Instances are (profile name, Placement) pairs.
    """
    profiles = {p.name: p for p in gpu.mig.profiles}
    for (_, a), (_, b) in itertools.combinations(instances, 2):
        if units(a) & units(b):
            return False
    if not legal_together(gpu, [name for name, _ in instances]):
        return False
    return all(placement in profiles[name].placements for name, placement in instances)


def legal_together(gpu: Gpu, names) -> bool:
    """Return whether the GPU has enough compute slices and media engines for profiles.

    Ignores placements.
    """
    profiles = {p.name: p for p in gpu.mig.profiles}
    chosen = [profiles[name] for name in names]
    if sum(p.compute_slices for p in chosen) > max(p.compute_slices for p in profiles.values()):
        return False
    for kind in ("decoders", "encoders", "jpegs", "ofas"):
        most = max(getattr(p, kind) * p.max_instances for p in profiles.values())
        if sum(getattr(p, kind) for p in chosen) > most:
            return False
    return True


class Card:
    """A GPU that applies the steps of plans."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.enabled = gpu.mig.enabled
        self.mode = gpu.compute_mode
        self.instances = {i.id: i for i in gpu.mig.instances}

    def run(self, steps) -> Card:
        for step in steps:
            getattr(self, "_" + type(step).__name__)(step)
        return self

    def observed(self) -> Gpu:
        mig = dataclasses.replace(
            self.gpu.mig,
            enabled=self.enabled,
            pending=self.enabled,
            instances=tuple(sorted(self.instances.values(), key=lambda i: i.placement)),
        )
        return dataclasses.replace(self.gpu, mig=mig, compute_mode=None if self.enabled else self.mode)

    def pairs(self):
        return [(i.profile, i.placement) for i in self.instances.values()]

    def _SetMigMode(self, step):
        if self.instances:
            raise Illegal("MIG mode changes with instances present")
        self.enabled = step.enabled

    def _SetComputeMode(self, step):
        if self.enabled:
            raise Illegal("compute mode of a GPU in MIG mode")
        self.mode = step.mode

    def _DestroyComputeInstance(self, step):
        instance = self.instances[step.gpu_instance_id]
        left = tuple(c for c in instance.compute_instances if c.id != step.compute_instance_id)
        if len(left) == len(instance.compute_instances):
            raise Illegal("no such compute instance")
        self.instances[instance.id] = dataclasses.replace(instance, compute_instances=left)

    def _DestroyGpuInstance(self, step):
        if self.instances.pop(step.gpu_instance_id).compute_instances:
            raise Illegal("compute instances go before their GPU instance")

    def _CreateGpuInstance(self, step):
        if not self.enabled:
            raise Illegal("MIG mode is off")
        if not legal(self.gpu, [*self.pairs(), (step.profile, step.placement)]):
            raise Illegal("%s does not fit" % step)
        new = next(i for i in itertools.count() if i not in self.instances)
        self.instances[new] = GpuInstance(
            new, step.profile, step.placement, (), (), compute_places(self.gpu, step.profile)
        )

    def _CreateComputeInstance(self, step):
        instance = next(i for i in self.instances.values() if i.placement.start == step.gpu_instance_start)
        taken = (
            set().union(*(units(c.placement) for c in instance.compute_instances))
            if instance.compute_instances
            else set()
        )
        free = [
            p
            for p in dict(instance.compute_placements)[step.compute_slices]
            if not units(p) & taken and step.start in (None, p.start)
        ]
        if not free:
            raise Illegal("%s does not fit" % step)
        new = next(i for i in itertools.count() if i not in {c.id for c in instance.compute_instances})
        compute = (*instance.compute_instances, ComputeInstance(new, step.compute_slices, free[0]))
        self.instances[instance.id] = dataclasses.replace(instance, compute_instances=compute)


def compute_places(gpu, profile):
    """Return the placements of compute instances in a GPU instance.

    Placements are aligned to their size. In 7 slices, an instance of 3 slices may also start at slice 4. In 4 slices,
    no instance of 3 slices is possible.
    """
    total = next(p.compute_slices for p in gpu.mig.profiles if p.name == profile)
    starts = {1: range(total), 2: range(0, total - 1, 2), 3: (0, 4), 4: (0,), 7: (0,)}
    sizes = [n for n in (1, 2, 3, 4, 7) if n <= total and (n, total) != (3, 4)]
    return tuple((n, tuple(Placement(s, n) for s in starts[n] if s + n <= total)) for n in sizes)


def with_instances(gpu: Gpu, pairs, busy=()) -> Gpu:
    """Return the GPU with MIG enabled and these instances.

    `Card` creates the instances, so they are valid. `busy` has the starts of the instances that a process uses.
    """
    card = Card(dataclasses.replace(gpu, mig=dataclasses.replace(gpu.mig, enabled=True, pending=True)))
    ids = {p.name: p.profile_id for p in gpu.mig.profiles}
    slices = {p.name: p.compute_slices for p in gpu.mig.profiles}
    for name, placement in pairs:
        card.run(
            [
                mig_steps.CreateGpuInstance(name, ids[name], placement),
                mig_steps.CreateComputeInstance(name, ids[name], placement.start, slices[name]),
            ]
        )
    observed = card.observed()
    instances = tuple(
        dataclasses.replace(
            i,
            processes=processes(i) if i.placement.start in busy else (),
            compute_instances=tuple(
                dataclasses.replace(c, processes=processes(i) if i.placement.start in busy else ())
                for c in i.compute_instances
            ),
        )
        for i in observed.mig.instances
    )
    return dataclasses.replace(observed, mig=dataclasses.replace(observed.mig, instances=instances))


def processes(instance):
    from ansible_collections.openfleet.gpu.plugins.module_utils.model import Process

    return (Process(1000 + instance.placement.start, "compute", "python3", 1 << 30, instance.id, 0),)


def every_arrangement(gpu: Gpu, names):
    """Yield all valid arrangements of instances of these profiles."""
    profiles = {p.name: p for p in gpu.mig.profiles}
    if not legal_together(gpu, names):
        return

    def place(kinds, taken):
        if not kinds:
            yield []
            return
        (name, count), rest = kinds[0], kinds[1:]
        for chosen in itertools.combinations(profiles[name].placements, count):
            covered = [unit for placement in chosen for unit in units(placement)]
            if len(set(covered)) == len(covered) and not taken.intersection(covered):
                for others in place(rest, taken.union(covered)):
                    yield [(name, placement) for placement in chosen] + others

    yield from place(list(collections.Counter(names).items()), frozenset())


def least_destroyed(gpu: Gpu, names):
    """Return (busy instances destroyed, instances destroyed) of the best arrangement.

    Tries all arrangements.
    """
    standing = {(i.profile, i.placement): bool(i.processes) for i in gpu.mig.instances}

    def cost(pairs):
        lost = set(standing) - set(pairs)
        return sum(standing[pair] for pair in lost), len(lost)

    return min(cost(pairs) for pairs in every_arrangement(gpu, names))
