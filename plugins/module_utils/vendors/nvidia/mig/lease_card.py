# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find places for leased instances on a GPU. Pure functions."""

# `frozen` makes dataclasses.
# pylint: disable=invalid-field-call
from __future__ import annotations

import dataclasses
import functools
from typing import Callable, Mapping, Sequence

from ....frozen import frozen
from ....leases.model import Shape, Use
from ....model import Gpu, GpuInstance
from .fit import Capacity


@frozen
class MigCard:
    """A GPU in MIG mode with leases. `leases.model.Card` documents the members.

    `profiles` can be leased. `fixed` has the instances without a lease, `idle` the existing instances that no lease
    uses. An idle instance takes no place, because it is removed if a lease needs the place.
    """

    gpu: Gpu
    profiles: tuple[str, ...]
    fixed: tuple[GpuInstance, ...] = ()
    idle: tuple[GpuInstance, ...] = ()
    capacity: Capacity = dataclasses.field(default_factory=lambda: Capacity(()), compare=False, hash=False)
    #: `Capacity.outlook`, which caches its results.
    outlook: Callable[[int], tuple[int, ...]] = dataclasses.field(default=lambda taken: (), compare=False, hash=False)
    #: The memory units of each (profile, start).
    masks: Mapping[tuple[str, int], int] = dataclasses.field(default_factory=dict, compare=False, hash=False)

    @classmethod
    def of(
        cls, gpu: Gpu, profiles: Sequence[str], fixed: Sequence[GpuInstance], idle: Sequence[GpuInstance]
    ) -> MigCard:
        """Return the card of a GPU."""
        capacity = Capacity(gpu.mig.profiles)
        outlook = functools.lru_cache(maxsize=None)(capacity.outlook)
        masks = {
            (profile.name, place.start): place.mask for profile in gpu.mig.profiles for place in profile.placements
        }
        return cls(gpu, tuple(profiles), tuple(fixed), tuple(idle), capacity, outlook, masks)

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

        The cost is the number of instances that no longer fit, largest profile first. For equal costs, existing idle
        instances are preferred.
        """
        profile = self.capacity.profiles.get(shape.profile or "")
        if profile is None:
            return None
        taken = self._mask([use for at_once in uses for use in at_once])
        places = [each for each in profile.placements if not each.mask & taken and start in (None, each.start)]
        if not places or any(self._is_short(profile.name, at_once) for at_once in uses):
            return None
        before = self.outlook(taken)
        idle = {(instance.profile, instance.start) for instance in self.idle}
        costs = []
        for placement in places:
            after = self.outlook(taken | placement.mask)
            lost = (a - b for a, b in zip(before, after))
            costs.append((*lost, int((profile.name, placement.start) not in idle), placement.start))
        return min(costs), min(costs)[-1]

    def removed(self, use: Use) -> tuple[GpuInstance, ...]:
        """Return the idle instances that must be removed for this use.

        An equal idle instance is reused.
        """
        mask = self.masks[_name(use), use.start]
        return tuple(
            instance
            for instance in self.idle
            if instance.placement.mask & mask and (instance.profile, instance.start) != (use.shape.profile, use.start)
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

    def _is_short(self, name: str, uses: Sequence[Use]) -> bool:
        names = [*(instance.profile for instance in self.fixed), *map(_name, uses), name]
        return self.capacity.shortage(names) is not None

    def _mask(self, uses: Sequence[Use]) -> int:
        mask = 0
        for instance in self.fixed:
            mask |= instance.placement.mask
        for use in uses:
            mask |= self.masks[_name(use), use.start]
        return mask


def _name(use: Use) -> str:
    return use.shape.profile or ""
