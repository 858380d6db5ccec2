# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the interface of a reader for a GPU setting.

This module must stay small, because modules that only read send it to hosts.
"""

from __future__ import annotations

from typing import Protocol, Sequence

from ..model import Gpu


class Observer(Protocol):
    """Read a GPU setting that NVML does not report."""

    #: Name of the setting in `Gpu.settings`, `Target.settings`, journals and saved plans.
    setting: str

    def recorded(self, directory: str) -> bool:
        """Return whether the collection has set the setting on a GPU of the host.

        The collection records this in the state directory. Raises ApplyError if this release cannot read the record.
        """

    def observe(self, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
        """Return the GPUs with this setting added to `Gpu.settings`.

        The setting has either its value, or the reason why it has none.
        """

    def describe(self, gpu: Gpu) -> str:
        """Return the setting as text.

        Returns "" for the default, and for an unknown value.
        """
