# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find places for leased instances on a GPU. Pure functions."""

from __future__ import annotations

import dataclasses
from typing import Sequence

from ....frozen import frozen
from ....leases.model import Shape, Use
from ....model import Gpu, GpuInstance, Placement
from .fit import Capacity


@frozen
class MigCard:
    """A GPU in MIG mode with leases. `leases.model.Card` documents the members.

    `profiles` are on offer. `fixed` are the instances that belong to no lease, and `idle` the existing instances that
    no lease uses. An idle instance takes no place, because it is removed if a lease needs the place.
    """

    gpu: Gpu
    profiles: tuple[str, ...]
    fixed: tuple[GpuInstance, ...] = ()
    idle: tuple[GpuInstance, ...] = ()
    capacity: Capacity = dataclasses.field(default_factory=lambda: Capacity(()), compare=False, hash=False)

    @classmethod
    def of(
        cls, gpu: Gpu, profiles: Sequence[str], fixed: Sequence[GpuInstance], idle: Sequence[GpuInstance]
    ) -> MigCard:
        """Return the card of a GPU."""
        return cls(gpu, tuple(profiles), tuple(fixed), tuple(idle), Capacity(gpu.mig.profiles))

    @property
    def uuid(self) -> str:
        """Return the UUID of the GPU."""
        return self.gpu.uuid

    def supports(self, shape: Shape) -> str | None:
        """Return why the GPU never has room for the shape, or None."""
        offered = ", ".join(self.profiles)
        if shape.profile is None:
            return "%s has leases of MIG profiles only: %s" % (self.gpu.label, offered)
        if shape.profile not in self.profiles:
            return "%s has no leases of %s, but of: %s" % (self.gpu.label, shape.profile, offered)
        if shape.profile not in self.capacity.profiles:
            return "%s has no profile %s" % (self.gpu.label, shape.profile)
        if self.find(shape, [[]]) is None:
            return "%s never fits beside the fixed instances of %s" % (shape.profile, self.gpu.label)
        return None

    def find(
        self, shape: Shape, uses: Sequence[Sequence[Use]], start: int | None = None
    ) -> tuple[tuple[int, ...], int] | None:
        """Return the cost and the start of the best place, or None.

        The cost is the number of instances that no longer fit, largest profile first. Existing idle instances are
        preferred among places with the same cost.
        """
        profile = self.capacity.profiles.get(shape.profile or "")
        if profile is None:
            return None
        fixed = [instance.profile for instance in self.fixed]
        for at_once in uses:
            if self.capacity.shortage([*fixed, *(_name(use) for use in at_once), profile.name]):
                return None
        taken = self._mask([use for at_once in uses for use in at_once])
        before = self.capacity.outlook(taken)
        idle = {(instance.profile, instance.start) for instance in self.idle}
        best: tuple[tuple[int, ...], int] | None = None
        for placement in profile.placements:
            if placement.mask & taken or start not in (None, placement.start):
                continue
            after = self.capacity.outlook(taken | placement.mask)
            lost = tuple(a - b for a, b in zip(before, after))
            cost = (*lost, int((profile.name, placement.start) not in idle), placement.start)
            if best is None or cost < best[0]:
                best = (cost, placement.start)
        return best

    def removed(self, use: Use) -> tuple[GpuInstance, ...]:
        """Return the idle instances that must be removed for this use.

        An equal idle instance is used again.
        """
        placement = self._placement(use)
        return tuple(
            instance
            for instance in self.idle
            if instance.placement.mask & placement.mask
            and (instance.profile, instance.start) != (use.shape.profile, use.start)
        )

    def free(self, uses: Sequence[Use]) -> str:
        """Return how many instances of each offered profile fit, for messages."""
        texts = []
        for name in self.profiles:
            shape, more = Shape(profile=name), list(uses)
            while name in self.capacity.profiles:
                best = self.find(shape, [more])
                if best is None:
                    break
                more.append(Use(shape, best[1]))
            if len(more) > len(uses):
                texts.append("%dx %s" % (len(more) - len(uses), name))
        return "%s on gpu %d" % (" or ".join(texts), self.gpu.index) if texts else ""

    def _mask(self, uses: Sequence[Use]) -> int:
        mask = 0
        for placement in [*(i.placement for i in self.fixed), *map(self._placement, uses)]:
            mask |= placement.mask
        return mask

    def _placement(self, use: Use) -> Placement:
        placements = self.capacity.profiles[_name(use)].placements
        return next(each for each in placements if each.start == use.start)


def _name(use: Use) -> str:
    return use.shape.profile or ""
