# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the counters in the tenants' pages, as shown by the agent.

Each tenant writes its own page, so the counters can be wrong. Metrics show them, and no decision uses them.
"""

from __future__ import annotations

import struct
from pathlib import Path

from ...frozen import frozen
from .agent_client import shown

#: struct seat_page of turnstile.h: tenant, percent, policy, priority, unused, paid_until, active_until, waiting_until,
#: used_ns, throttled_ns, due, lead, launches, lease, lease_since, passes, gave_way, waits, waits_ns, late, starts, longer.
_PAGE = struct.Struct("=64sIIiI3q2Q2q2QqQ4QQ5Q")
#: Bounds in seconds for the waits that `longer` counts, and for `late`.
_LONGER_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.05)
_LATE_SECONDS = 0.02


@frozen
class Counters:
    """A tenant's counters on a GPU, since the agent created the page.

    `starts` counts an online tenant's launches without other work in flight. `waited_more` has pairs of seconds, in
    ascending order, and the number of starts that waited longer than that for an offline kernel.
    """

    used_ns: int
    throttled_ns: int
    gave_way: int
    starts: int
    waits_ns: int
    waited_more: tuple[tuple[float, int], ...]


def read(root: Path) -> dict[tuple[str, int], Counters]:
    """Return the counters by GPU UUID and seat. Empty if the agent is not running."""
    return {(seat.gpu_uuid, seat.number): _counters(seat.page) for seat in shown(root)}


def _counters(page: bytes) -> Counters:
    words = _PAGE.unpack_from(page)[5:]
    used_ns, throttled_ns, gave_way = words[3], words[4], words[11]
    _waits, waits_ns, late, starts, *longer = words[12:]
    more = sorted([(_LATE_SECONDS, late), *zip(_LONGER_SECONDS, longer)])
    return Counters(used_ns, throttled_ns, gave_way, starts, waits_ns, tuple(more))
