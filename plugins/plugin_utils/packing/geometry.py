# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check what fits on one GPU.

The MIG planner (techniques/mig/fit) has the same rules. The sizes are from the catalogue.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple, Sequence, Tuple

from ansible_collections.openfleet.gpu.plugins.module_utils import catalogue
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Gpu, Placement
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.mig.fit import Capacity, Want, arrange

from ..techniques.registry import PROPOSED
from .model import Shape

#: Priorities of a current instance: free, used by a workload (should stay), required (must stay).
VACANT, TAKEN, MUST = 0, 1, 2
#: A current part of a GPU: (shape, start, priority for keeping it).
Item = Tuple[Shape, "int | None", int]
#: A multiset of shapes in ascending order.
Pattern = Tuple[Shape, ...]

#: Maximum number of a GPU model's patterns. A longer list is shortened, and the result is then not proven to be
#: optimal.
MOST_PATTERNS = 6000

#: Maximum number of different quotas of one kind for which patterns are listed. More quotas have far too many patterns,
#: and even the search for maximal ones takes long.
MOST_SHAPES = 40

#: Maximum number of a kind's patterns to try, maximal or not.
MOST_TRIED = 40_000


class Settled(NamedTuple):
    """A pattern placed on a GPU.

    `starts`: start of each shape, or None without MIG.
    `serves`: position of the current item that is used for each shape, or None if the shape must be created.
    `spare`: positions of current items that are not needed but can stay.
    """

    starts: tuple[int | None, ...]
    serves: tuple[int | None, ...]
    spare: tuple[int, ...]


class Geometry:
    """The rules for one GPU model."""

    def __init__(self, model: catalogue.Model, headroom_memory_percent: int = 0, headroom_sm_percent: int = 0) -> None:
        self.key = model.key
        self.gpu: Gpu = assumed_gpus([model.key], {model.key: model})[0]
        self.capacity = Capacity(self.gpu.mig.profiles)
        usable = model.memory_total_mib - model.reserved_mib()
        self.memory_mib = usable * (100 - headroom_memory_percent) // 100
        self.sm_percent = 100 - headroom_sm_percent
        self._most_parts = {each.key: each.most_parts(model.compute_capability) for each in PROPOSED}
        self.fits = lru_cache(maxsize=None)(self.holds)
        self.settle = lru_cache(maxsize=None)(self._settle)

    def most_parts(self, kind: str) -> int | None:
        """Return the maximum number of parts on a GPU, or None without a limit."""
        return self._most_parts[kind]

    def can_hold(self, shape: Shape) -> bool:
        """Return whether the shape fits on an empty GPU of the model."""
        return self.fits((shape,))

    def load(self, shape: Shape) -> int:
        """Return a shape's share of a GPU, in thousandths.

        This is the larger of its shares of memory and compute.
        """
        if shape.kind == "whole":
            return 1000
        if shape.kind == "mig":
            profile = self.capacity.profiles[shape.profile]
            compute = 1000 * profile.compute_slices // self.capacity.compute_slices
            return max(compute, 1000 * profile.units // self._units())
        return max(10 * shape.sm_percent, -(-1000 * shape.memory_mib // self.memory_mib))

    def shares(self, shape: Shape) -> tuple[Fraction, ...]:
        """Return the shape's shares of the GPU's resources: memory, compute, and places."""
        if shape.kind == "whole":
            return (Fraction(1),) * 3
        if shape.kind == "mig":
            profile = self.capacity.profiles[shape.profile]
            compute = Fraction(profile.compute_slices, self.capacity.compute_slices)
            return (Fraction(profile.units, self._units()), compute, Fraction(0))
        most = self._most_parts[shape.kind]
        return (
            Fraction(shape.memory_mib, self.memory_mib),
            Fraction(shape.sm_percent, self.sm_percent),
            Fraction(1, most) if most else Fraction(0),
        )

    def _units(self) -> int:
        return max(p.start + p.size for each in self.capacity.profiles.values() for p in each.placements)

    def holds(self, pattern: Pattern) -> bool:
        """Return whether all shapes of the pattern fit on an empty GPU.

        `fits` is the same with a cache, for frequent patterns.
        """
        kinds = {shape.kind for shape in pattern}
        if len(kinds) > 1:
            return False
        if kinds <= {"whole"}:
            return len(pattern) <= 1
        if kinds == {"mig"}:
            names = [shape.profile for shape in pattern]
            return all(name in self.capacity.profiles for name in names) and self.capacity.fits(names)
        technique = pattern[0].technique
        if technique is None:
            raise AssertionError("a shared GPU without a technique")
        most = self._most_parts[technique.key]
        # If this technique has parts of equal size, count each part with the largest part's size.
        total = (lambda parts: len(parts) * max(parts)) if technique.equal_parts else sum
        return (
            total([shape.memory_mib for shape in pattern]) <= self.memory_mib
            and total([shape.sm_percent for shape in pattern]) <= self.sm_percent
            and (most is None or len(pattern) <= most)
        )

    def _settle(self, items: tuple[Item, ...], pattern: Pattern) -> Settled | None:
        """Place a pattern on a GPU with these current items.

        Items of priority MUST are part of the pattern and must stay. As many items of priority TAKEN as possible stay,
        and then as many other items as possible. Returns None if the pattern does not fit, or if an item of priority
        MUST cannot stay.
        """
        if not self.fits(pattern):
            return None
        if pattern and pattern[0].kind != "mig":
            return self._settle_plain(items, pattern)
        at = {
            (shape.profile, start): (number, strength)
            for number, (shape, start, strength) in enumerate(items)
            if shape.kind == "mig"
        }
        score = {VACANT: (0, 0, 1), TAKEN: (0, 1, 1), MUST: (1, 1, 1)}

        def gain(want: Want, placement: Placement) -> tuple[int, ...]:
            item = at.get((want.kind, placement.start))
            return (0, 0, 0) if item is None else score[item[1]]

        placed = arrange([self.capacity.want(shape.profile) for shape in pattern], gain, self.capacity.outlook)
        if placed is None:
            return None
        serves = tuple(
            at.get((shape.profile, placement.start), (None,))[0] for shape, placement in zip(pattern, placed)
        )
        if any(strength == MUST and n not in serves for n, (_s, _p, strength) in enumerate(items)):
            return None
        return Settled(tuple(p.start for p in placed), serves, self._spare(items, pattern, placed, serves))

    def _spare(self, items, pattern, placed, serves) -> tuple[int, ...]:
        """Return the positions of instances that are not needed but block nothing."""
        taken = 0
        for placement in placed:
            taken |= placement.mask
        names = [shape.profile for shape in pattern]
        spare = []
        for number, (shape, start, _strength) in enumerate(items):
            if number in serves or shape.kind != "mig":
                continue
            profile = self.capacity.profiles[shape.profile]
            mask = Placement(start, profile.units).mask
            if not mask & taken and self.capacity.shortage([*names, shape.profile]) is None:
                taken |= mask
                names.append(shape.profile)
                spare.append(number)
        return tuple(spare)

    def _settle_plain(self, items: tuple[Item, ...], pattern: Pattern) -> Settled | None:
        """Place a pattern of quotas or whole GPUs, which have no start."""
        left = sorted(range(len(items)), key=lambda n: -items[n][2])
        serves: list[int | None] = []
        for shape in pattern:
            item = next((n for n in left if items[n][0] == shape), None)
            if item is not None:
                left.remove(item)
            serves.append(item)
        if any(items[n][2] == MUST for n in left):
            return None
        return Settled((None,) * len(pattern), tuple(serves), ())

    def patterns(self, most: dict[Shape, int], every: bool = False) -> tuple[list[Pattern], bool]:
        """Return (maximal patterns of these shapes, whether the list is complete).

        `most` has the maximum number of each shape. If `every` is true, lists all patterns except the empty one.
        """
        patterns: list[Pattern] = []
        whole = True
        for kind in sorted({shape.kind for shape in most}):
            shapes = sorted((s for s in most if s.kind == kind and self.can_hold(s)), key=lambda s: (-self.load(s), s))
            part, complete = self._patterns_of(shapes, most, every)
            patterns += part
            whole = whole and complete
        return patterns, whole

    def _patterns_of(self, shapes: Sequence[Shape], most: dict[Shape, int], every: bool):
        """Return (patterns of shapes of one kind, whether the list is complete)."""
        patterns: list[Pattern] = []
        tried = 0
        if len(shapes) > MOST_SHAPES:
            return patterns, False

        def fits(chosen: tuple[Shape, ...]) -> bool:
            return self.fits(tuple(sorted(chosen)))

        def maximal(chosen: tuple[Shape, ...]) -> bool:
            count = Counter(chosen)
            return not any(count[s] < most[s] and fits((*chosen, s)) for s in shapes)

        def grow(position: int, chosen: tuple[Shape, ...]) -> bool:
            """Add patterns. Returns False when the maximum number is reached."""
            nonlocal tried
            if len(patterns) >= MOST_PATTERNS or tried >= MOST_TRIED:
                return False
            if position == len(shapes):
                tried += 1
                if chosen and (every or maximal(chosen)):
                    patterns.append(tuple(sorted(chosen)))
                return True
            shape = shapes[position]
            longer = [chosen]
            while len(longer) <= most[shape] and fits((*longer[-1], shape)):
                longer.append((*longer[-1], shape))
            if position == len(shapes) - 1 and not every:
                # The pattern is not maximal, because another instance of this shape still fits.
                longer = longer[-1:]
            # Add the fullest patterns first, so that a shortened list has them.
            return all(grow(position + 1, each) for each in reversed(longer))

        return patterns, grow(0, ())


@lru_cache(maxsize=None)
def geometry(key: str, headroom_memory_percent: int = 0, headroom_sm_percent: int = 0) -> Geometry:
    """Return the rules for a GPU model.

    Raises CatalogueError if the catalogue does not have the model.
    """
    return Geometry(catalogue.find_model(key), headroom_memory_percent, headroom_sm_percent)
