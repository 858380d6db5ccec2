# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe what reads a setting of GPUs. Light: modules that only look carry it."""

from __future__ import annotations

from typing import Protocol, Sequence

from ..model import Gpu


class Observer(Protocol):
    """Read a setting of GPUs that NVML does not have."""

    #: Name of the setting in `Gpu.settings`, `Target.settings`, journals and saved plans.
    setting: str

    def recorded(self, directory: str) -> bool:
        """Return whether any GPU of the host was given this setting, by the record in the state directory.

        Raises ApplyError for a record that this release cannot read.
        """

    def observe(self, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
        """Return the GPUs with this setting in `Gpu.settings`: its value, or why there is none."""

    def describe(self, gpu: Gpu) -> str:
        """Return the setting in words, or an empty text if it is the default or unknown."""
