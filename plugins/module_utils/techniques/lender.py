# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the interface of code that lends parts of GPUs as leases.

A technique that lends quotas has its own lender (`lenders.LENDERS`). `lease_service.instances` lends the parts of all
dividers.
"""

from __future__ import annotations

from typing import Any, Mapping, Protocol, Sequence

from ..layout.types import Entry
from ..leases.grant import Grant
from ..leases.model import Booking, Card, Shape
from ..model import Holder, Host
from ..slurm.mig_devices import DeviceNodes


class Lender(Protocol):
    """Lends parts of GPUs.

    Each method reads the current parts of leases again. `text` is a lease's text (`names.lease_text`). Methods raise
    ApplyError if a file cannot be read or written.
    """

    #: Whether only the lease can use its part. If not, other accounts' processes on the GPU are not ended.
    exclusive: bool

    def current(self) -> dict[int, str]:
        """Return the text of each lease that has a part, by its number."""

    def fixed(self) -> Sequence[Any]:
        """Return the tenants of the layout, which belong to no lease."""

    def cards(self, offered: Sequence[tuple[Any, Entry]], host: Host) -> list[Card]:
        """Return the card of each (GPU, entry)."""

    def take(self, booking: Booking, entry: Entry, places: Sequence[tuple[Any, Any]], host: Host) -> tuple[Host, bool]:
        """Create the parts of a started booking.

        `places` has the GPU and the card for each of the booking's places. Returns the host with the new parts, and
        whether devices changed. Raises RetryLaterError if a place is not free, and LeaseError if the host cannot lend
        it.
        """

    def resize(self, number: int, shape: Shape, cards: Mapping[str, Any], host: Host) -> bool:
        """Change a lease's size, and return whether it has a part that can change.

        `cards` has the cards by GPU UUID. Raises LeaseError if there is not enough room.
        """

    def give_back(self, number: int, text: str, host: Host) -> None:
        """Take back a lease's parts.

        `host` contains the processes that use the lease's GPUs. Raises RetryLaterError if a process still uses a part.
        The lease then keeps all parts.
        """

    def grant(self, number: int, text: str | None, host: Host, nodes: DeviceNodes) -> Grant | None:
        """Return a lease's grant, or None if it has no part.

        The grant only has the devices of this part. Raises LeaseError if a part no longer exists.
        """

    def settle(self, host: Host) -> None:
        """Update the records to match the parts that exist."""

    def repair(self, living: Sequence[int], host: Host) -> set[int]:
        """Restore damaged parts of leases that still run.

        Returns the numbers of these leases.
        """

    def holders(self, grant: Grant, host: Host) -> list[Holder]:
        """Return the processes that use a lease's part. `host` has all holders."""
