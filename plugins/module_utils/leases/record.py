# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Record a host's leases and waiting requests in its state directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping

from .. import durable
from ..frozen import frozen
from ..model import to_data
from .model import Booking, Place, Request, Shape

SCHEMA = 1


@frozen
class Recorded:
    """The bookings in the order of their requests, and the next request's number.

    Numbers are never reused, so that a message about a lease cannot mean another lease.
    """

    bookings: tuple[Booking, ...] = ()
    next_number: int = 1


class BookingRecord:
    """The file with the leases and waiting requests."""

    def __init__(self, directory: str) -> None:
        self.path = Path(directory) / "leases.json"

    def read(self) -> Recorded:
        """Return the bookings. Raises ApplyError if this release cannot read the file."""
        data = durable.read(self.path, SCHEMA)
        if data is None:
            return Recorded()
        try:
            return Recorded(tuple(map(_booking, data["bookings"])), int(data["next_number"]))
        except (KeyError, TypeError, ValueError):
            raise durable.damaged(self.path) from None

    def write(self, recorded: Recorded) -> None:
        """Write the bookings, unless the file already has them."""
        data = {
            "schema": SCHEMA,
            "next_number": recorded.next_number,
            "bookings": [_data(booking) for booking in recorded.bookings],
        }
        if durable.read(self.path, SCHEMA) != data:
            durable.write(self.path, data)


def _data(booking: Booking) -> dict[str, Any]:
    """Return a booking as data, without `claim` and `online` if they have no value."""
    data: dict[str, Any] = to_data(booking)
    for key in ("claim", "online"):
        if not data["request"][key]:
            del data["request"][key]
    return data


def _booking(data: Mapping[str, Any]) -> Booking:
    request = dict(data["request"])
    request["shape"] = Shape(**request["shape"])
    places = tuple(Place(**place) for place in data["places"])
    return Booking(Request(**request), data["where"], places, data["begins"], data["started"])
