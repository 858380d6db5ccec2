# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Order a node's devices so that running jobs keep their device numbers.

slurmd groups devices by type, so each type has consecutive numbers. Pads fill the numbers without a device. A pad is a
GRES without a device, which keeps the node's total of gres/gpu.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Iterable, Mapping, Sequence

from ....module_utils.slurm.mig_devices import Device

# Type of the pads. A type's numbers must be consecutive, so a second group of pads has the type pad2.
PAD = "pad"
_PAD = re.compile(PAD + "[0-9]*")


def is_pad(kind: str) -> bool:
    """Return whether this GRES type is a pad's."""
    return bool(_PAD.fullmatch(kind))


def types(order: Sequence[Device | None]) -> list[str]:
    """Return the GRES type of each number."""
    found: list[str] = []
    groups = 0
    for number, device in enumerate(order):
        if device is not None:
            found.append(device.type)
            continue
        groups += number == 0 or order[number - 1] is not None
        found.append(PAD if groups == 1 else "%s%d" % (PAD, groups))
    return found


def ordered(devices: Sequence[Device], total: int, fixed: Mapping[int, Device]) -> tuple[Device | None, ...] | None:
    """Return an order of `total` numbers with all devices, or None if there is none.

    `fixed` has devices that must have these numbers. They are also in `devices`. Without fixed devices, the result has
    `devices` in their order, then the pads.
    """
    kinds = list(dict.fromkeys(device.type for device in devices))
    groups = {kind: [device for device in devices if device.type == kind] for kind in kinds}
    numbers = {kind: sorted(n for n, device in fixed.items() if device.type == kind) for kind in kinds}
    starts = _starts({kind: len(groups[kind]) for kind in kinds}, numbers, total)
    if starts is None:
        return None
    order: list[Device | None] = [None] * total
    held = {device.uuid for device in fixed.values()}
    for kind, start in starts.items():
        waiting = iter([device for device in groups[kind] if device.uuid not in held])
        for number in range(start, start + len(groups[kind])):
            order[number] = fixed[number] if number in fixed else next(waiting)
    return tuple(order)


def _starts(counts: Mapping[str, int], numbers: Mapping[str, Sequence[int]], total: int) -> dict[str, int] | None:
    """Return each type's first number, or None if the types do not fit.

    `numbers` has each type's fixed numbers.
    """
    fixed = sorted((kind for kind in counts if numbers[kind]), key=lambda kind: numbers[kind][0])
    free = tuple(kind for kind in counts if not numbers[kind])

    @lru_cache(maxsize=None)
    def place(number: int, done: int, left: frozenset[str]) -> tuple[tuple[str, int], ...] | None:
        """Place the remaining types at `number` and later numbers.

        These are the fixed types from position `done` on, and the types in `left`.
        """
        if done == len(fixed) and not left:
            return () if number <= total else None
        end = total
        if done < len(fixed):
            # A fixed type's numbers include all its fixed numbers, so it begins at or before the first of these.
            kind = fixed[done]
            end = numbers[kind][0]
            if number > end:
                return None
        for kind in free:
            if kind in left and number + counts[kind] <= end:
                rest = place(number + counts[kind], done, left - {kind})
                if rest is not None:
                    return ((kind, number), *rest)
        if done < len(fixed) and number + counts[fixed[done]] > numbers[fixed[done]][-1]:
            rest = place(number + counts[fixed[done]], done + 1, left)
            if rest is not None:
                return ((fixed[done], number), *rest)
        return place(number + 1, done, left) if number < total else None

    found = place(0, 0, frozenset(free))
    return None if found is None else dict(found)


def kept(record: Sequence[tuple[str, str]], devices: Iterable[Device]) -> dict[int, Device]:
    """Return the devices that stay, by their number in `record`.

    `record` has type and UUID by number. A device stays if the layout has a device with the same type and UUID.
    """
    by_name = {(device.type, device.uuid): device for device in devices if device.uuid}
    return {number: by_name[name] for number, name in enumerate(record) if name in by_name}
