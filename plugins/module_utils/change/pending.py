# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mark unfinished work of a run in the state directory, for the next run after an interruption.

The content of a mark does not matter, so a damaged mark is still a mark.
"""

from __future__ import annotations

from pathlib import Path

from .. import durable

_SCHEMA = 1

#: Default list of services that read devices only when they start. The exporters may be clients of the first. The MIG manager
#: itself stops more services, to free the GPUs or for Kubernetes (NVIDIA/mig-parted, deployments/systemd/hooks.sh).
RESTARTED = ("nvidia-dcgm.service", "dcgm-exporter.service", "nvidia-dcgm-exporter.service")


class Mark:
    """A mark: the name of its file, in the state directory."""

    name: str

    def __init__(self, directory: str) -> None:
        self.path = Path(directory) / self.name

    def begin(self) -> None:
        """Set the mark."""
        durable.write(self.path, {"schema": _SCHEMA})

    def end(self) -> None:
        """Remove the mark."""
        durable.remove(self.path)

    def due(self) -> bool:
        """Return whether the mark is set."""
        return self.path.exists()


class PendingFollowUp(Mark):
    """Devices have changed, or may have, and the follow-up steps (`follow`) are not done. Set before the change."""

    name = "follow.json"


class PendingReboot(Mark):
    """MIG modes were left pending on the GPUs, or may have been, for a reboot of the host."""

    name = "reboot.json"
