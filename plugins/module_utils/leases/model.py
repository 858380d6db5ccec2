# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define requests, bookings and offers of leases as frozen values.

Times are Unix times in seconds. Durations are in seconds.
"""

from __future__ import annotations

from typing import Any, Protocol, Sequence

from ..errors import FleetError
from ..frozen import frozen
from ..layout.leases import Leases
from ..sizes import format_size

#: Advice in a `RetryLaterError`.
LATER = "Try again later."


class LeaseError(FleetError):
    """A request is refused."""


class RetryLaterError(LeaseError):
    """A request cannot succeed now, but the same request can succeed later.

    Examples: a layout change runs or is pending, or a process still uses the place.
    """


@frozen
class Shape:
    """The part of each GPU that a lease has: a MIG profile or a quota.

    `profile` is the name of a MIG profile. It is None for a quota of `memory_bytes` and `sm_percent`.
    """

    memory_bytes: int = 0
    sm_percent: int = 0
    profile: str | None = None

    def __str__(self) -> str:
        return self.profile or "%s and %d %%" % (format_size(self.memory_bytes), self.sm_percent)


@frozen
class Request:
    """A request for a lease.

    `number` is unique on the host and grows with each request. `gpus` is the number of GPUs, each with the `shape`.
    `claim` is the UID of the ResourceClaim of a pod, or None. Such a lease has no unit, and lasts as long as its claim.
    `online` is whether its priority class or partition is online (`Leases.is_online`).
    """

    number: int
    account: str
    shape: Shape
    seconds: float
    gpus: int = 1
    claim: str | None = None
    online: bool = False


@frozen
class Place:
    """A place on a GPU. `start` is the placement of a MIG instance, or 0."""

    gpu_uuid: str
    start: int = 0


@frozen
class Booking:
    """A request with its places and times.

    `where` is the layout entry. If `started` is false, the request waits, and `begins` is its latest start, provided
    that all leases end on time.
    """

    request: Request
    where: str
    places: tuple[Place, ...]
    begins: float
    started: bool = False

    @property
    def ends(self) -> float:
        """Return when the lease ends."""
        return self.begins + self.request.seconds


@frozen
class Use:
    """A shape and the start of its place on a GPU."""

    shape: Shape
    start: int


class Card(Protocol):
    """A GPU with leases. Cards are frozen values.

    Each technique or divider has its own class of cards.
    """

    @property
    def uuid(self) -> str:
        """Return the UUID of the GPU."""

    def supports(self, shape: Shape) -> str | None:
        """Return why the shape can never fit on the GPU, or None."""

    def find(self, shape: Shape, uses: Sequence[Sequence[Use]], start: int | None = None) -> tuple[Any, int] | None:
        """Return the cost and the start of the best place, or None.

        `uses` has the leases on the GPU for each point in time. The place must be free at all of them. The best place
        leaves room for the largest possible leases. If `start` is given, only this place is tried. Costs can be
        compared between cards of one class.
        """

    def free(self, uses: Sequence[Use]) -> str:
        """Return the free part of the GPU as text."""


@frozen
class Offer:
    """A layout entry with leases, and its GPUs."""

    where: str
    leases: Leases
    cards: tuple[Card, ...]


def not_free(booking: Booking, label: str, card: Card, used: Sequence[Use]) -> LeaseError:
    """Return the error for a booking whose place is not free.

    `label` names the GPU. `used` has the leases on it.
    """
    shape = booking.request.shape
    never = card.supports(shape)
    if never is not None:
        return LeaseError(booking.where, never, "Ask for another size.")
    problem = "the place for %s is not free. Free is: %s" % (shape, card.free(used) or "nothing")
    return RetryLaterError("%s on %s" % (booking.where, label), problem, LATER)
