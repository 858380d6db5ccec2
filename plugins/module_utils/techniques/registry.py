# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the sharing techniques.

A new technique needs a folder, and a line here and in the tables next to this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from .forms import INSIDE, PARTS
from .mig.form import MigForm
from .mps.technique import MpsTechnique
from .time_slicing.technique import TimeSlicingTechnique
from .vgpu.technique import VgpuTechnique

if TYPE_CHECKING:
    from ..layout.types import Layout
    from ..plan.services import Service
    from .observer import Observer
    from .protocol import SettingTechnique, Technique

#: Techniques in the order of their steps on a GPU, in which services also start. Services stop in reverse order.
#: `GpuPlan.steps` defines when a divider's steps run.
TECHNIQUES: tuple[Technique, ...] = (
    TimeSlicingTechnique(),
    MpsTechnique(),
    VgpuTechnique(),
    MigForm(INSIDE),
)

#: Techniques that set a value on each whole GPU.
SETTINGS: tuple[SettingTechnique, ...] = tuple(each for each in TECHNIQUES if each.setting is not None)
#: Techniques with a service, which is loaded only if a host or layout uses it.
SERVING: tuple[Technique, ...] = tuple(each for each in TECHNIQUES if type(each).service is not None)


def observers_for(layout: Layout | None, directory: str, keys: Sequence[str] = PARTS) -> tuple[Observer, ...]:
    """Return the observers that reading the host needs.

    An observer is needed if the layout uses its technique, or if the collection has set its setting on this host.
    `keys` has the keys of the layout's techniques. Raises ApplyError if a record cannot be read.
    """
    sharings = set() if layout is None else {entry.sharing for entry in layout.entries}
    about = [technique for technique in SETTINGS if technique.key in keys]
    return tuple(each.observer for each in about if each.key in sharings or each.observer.recorded(directory))


def observed_services(private: bool) -> tuple[Service, ...]:
    """Return all services after reading their current daemons or tenants.

    `private` is true if only this process simulates the GPUs.
    """
    services = tuple(each.service(private) for each in SERVING)
    for service in services:
        service.observe()
        service.observe_on(())
    return services
