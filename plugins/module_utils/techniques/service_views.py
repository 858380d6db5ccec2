# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the read-only views of the techniques' services.

This module imports no code that plans or changes services.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Sequence

from .mps import model as mps
from .mps import observe as mps_observe
from .vgpu import model as vgpu
from .vgpu import observe as vgpu_observe


class ServiceView(NamedTuple):
    """A read-only view of the service of the technique `key`.

    `look` returns the current daemons or tenants as frozen values. `report` returns them as module results under the
    key `name`. Both functions get true if only this process simulates the GPUs.
    """

    key: str
    name: str
    look: Callable[[bool], Sequence[Any]]
    report: Callable[[bool], list[dict[str, Any]]]


SERVICE_VIEWS = (
    ServiceView(mps.KEY, mps.NAME, mps_observe.look, mps_observe.report),
    ServiceView(vgpu.KEY, vgpu.NAME, vgpu_observe.look, vgpu_observe.report),
)


def reports(private: bool) -> dict[str, list[dict[str, Any]]]:
    """Return the current daemons and tenants as module results, by name."""
    return {each.name: each.report(private) for each in SERVICE_VIEWS}
