# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the interface of a reader of a GPU setting. Small, because it is sent with modules that only read."""

from __future__ import annotations

from typing import Protocol, Sequence

from ..model import Gpu


class Observer(Protocol):
    """Read a setting of GPUs that is not in NVML."""

    #: Name of the setting in `Gpu.settings`, `Target.settings`, journals and saved plans.
    setting: str

    def recorded(self, directory: str) -> bool:
        """Return whether the collection set it on a GPU of the host, by the record in the state directory.

        Raises ApplyError if this release cannot read the record.
        """

    def observe(self, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
        """Return the GPUs with this setting in `Gpu.settings`: its value, or the reason why there is none."""

    def describe(self, gpu: Gpu) -> str:
        """Return the setting in words, or an empty text if it is the default or unknown."""
