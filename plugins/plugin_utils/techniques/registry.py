# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the sharing techniques for the controller.

A new technique needs a file next to this one, and a line here.
"""

from __future__ import annotations

from typing import Any, Iterator, Mapping

from .mps import FleetMps
from .protocol import FleetTechnique
from .time_slicing import FleetTimeSlicing
from .vgpu import FleetVgpu

#: Techniques that share a whole GPU or an instance. Messages list them in this order.
TECHNIQUES: tuple[FleetTechnique, ...] = (
    FleetMps(),
    FleetVgpu(),
    FleetTimeSlicing(),
)
#: Techniques that packing and right-sizing may propose.
PROPOSED = tuple(each for each in TECHNIQUES if each.proposed)
#: The technique with which online and offline workloads share a GPU.
COLOCATING = next(each for each in TECHNIQUES if each.waterline_percent is not None)

_BY_KEY = {each.key: each for each in TECHNIQUES}


def technique_of(sharing: str | None) -> FleetTechnique | None:
    """Return the technique with this value of `sharing`.

    Returns None for MIG, and for values without a technique (exclusive, shared).
    """
    return _BY_KEY.get(sharing or "")


def tenants_of(state: Mapping[str, Any]) -> Iterator[tuple[FleetTechnique, Mapping[str, Any]]]:
    """Yield (technique, row) for each tenant in gpu_info's result."""
    for each in TECHNIQUES:
        if each.has_tenants:
            yield from ((each, row) for row in state.get(each.rows) or ())
