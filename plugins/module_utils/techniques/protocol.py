# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the interface of a sharing technique.

A technique is a folder next to this file. Only the tables of techniques next to this file import the folder.
A technique that sets a value on each whole GPU is a `SettingTechnique`. A technique that runs daemons or agents has a
`services.Service`. A technique that divides GPUs has the key of a divider (`vendors.protocol.Divider`).
"""

from __future__ import annotations

from typing import Any, Iterable, Protocol, Sequence

from ..layout.form import Form
from ..layout.types import Layout
from ..model import Gpu
from ..plan.services import Service
from ..vendors.protocol import DeviceSetting
from .observer import Observer


class Technique(Form, Protocol):
    """A technique for sharing a GPU, as the planner uses it."""

    #: Name of the GPU setting, as in the technique's observer. None if the technique sets no value.
    setting: str | None
    #: Returns the class of the technique's service, which loads it on demand. None if the technique has no service.
    service: type[Service] | None

    def used(self, layout: Layout | None, private: bool) -> bool:
        """Return whether the layout needs the service, or the host has its files.

        Only techniques with a service implement this. `private` is true if only this process simulates the GPUs.
        """


class SettingTechnique(Technique, DeviceSetting, Protocol):
    """A technique that sets one value on the whole GPU."""

    setting: str
    #: Value on GPUs that do not use the technique.
    default: str
    #: The reader for the current value.
    observer: Observer

    def wanted(self, part: Any) -> str:
        """Return the value of the part, or the default if `part` is None."""

    def record(self, directory: str, gpus: Sequence[Gpu], changing: Iterable[str] = ()) -> None:
        """Record the GPUs whose value is not the default.

        `changing` has the UUIDs of GPUs that the run will give such a value.
        """
