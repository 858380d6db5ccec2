# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Grant a lease that a scheduler has already accounted for, to a pod or a job."""

from __future__ import annotations

from typing import Any

from ..errors import FleetError
from ..leases.model import Booking


def grant(host: Any, turn: Any, booking: Booking, write: Any) -> Any:
    """Take the lease of a new booking on the host, and return its grant.

    The record is written first. If this function is interrupted, the scheduler gives the lease back: the kubelet's
    plugin finds a claim that the kubelet does not know, and Slurm runs the Epilog. On an error, gives the lease back
    and raises FleetError.
    """
    number = booking.request.number
    turn.next_number += 1
    turn.bookings = (*turn.bookings, booking)
    turn.started.add(number)
    write(turn)
    try:
        return host.take(booking)
    except FleetError:
        host.give_back(number)
        turn.end(booking)
        raise
