# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find room for leased quotas on a GPU. Pure functions."""

from __future__ import annotations

from typing import Sequence

from ...frozen import frozen
from ...leases.model import Shape, Use
from ...sizes import BYTES_PER_UNIT
from .fit import Bin


@frozen
class QuotaCard:
    """A GPU with leased quotas. `leases.model.Card` documents the members.

    `room` is the part that the fixed tenants leave free. `label` names the GPU in messages, `short` in lists.
    """

    room: Bin
    label: str
    short: str

    @property
    def uuid(self) -> str:
        """Return the UUID of the GPU."""
        return self.room.uuid

    def supports(self, shape: Shape) -> str | None:
        """Return why the GPU never has room for the shape, or None."""
        if shape.profile is not None:
            return "%s has leases of memory and SMs, not of MIG profiles" % self.label
        if self.find(shape, [[]]) is None:
            return "%s has only %s for leases" % (self.label, _size(self.room))
        return None

    def find(
        self, shape: Shape, uses: Sequence[Sequence[Use]], start: int | None = None
    ) -> tuple[tuple[float, ...], int] | None:
        """Return the cost and 0, or None if there is not enough room.

        The cost is the free memory and SM share after the lease, so that the fullest GPU is used first.
        """
        if shape.profile is not None:
            return None
        free = [self._left([*(use.shape for use in at_once), shape]) for at_once in uses]
        if any(min(each.memory_bytes, each.sm_percent, each.seats) < 0 for each in free):
            return None
        return (min(each.memory_bytes for each in free), min(each.sm_percent for each in free)), 0

    def free(self, uses: Sequence[Use]) -> str:
        """Return the free memory and SM share."""
        left = self._left([use.shape for use in uses])
        usable = left.memory_bytes >= BYTES_PER_UNIT["MiB"] and left.sm_percent >= 1 and left.seats > 0
        return "%s on %s" % (_size(left), self.short) if usable else ""

    def _left(self, shapes: Sequence[Shape]) -> Bin:
        return Bin(
            self.room.uuid,
            self.room.memory_bytes - sum(shape.memory_bytes for shape in shapes),
            self.room.sm_percent - sum(shape.sm_percent for shape in shapes),
            self.room.seats - len(shapes),
        )


def _size(left: Bin) -> str:
    return "%dMiB and %d %%" % (left.memory_bytes // BYTES_PER_UNIT["MiB"], left.sm_percent)
