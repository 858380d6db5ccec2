# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Marks in the state directory of what a run still has to do. The next run does it if this one is cut off.

The content of a mark does not count: a damaged mark is a mark.
"""

from __future__ import annotations

from pathlib import Path

from .. import durable

_SCHEMA = 1

#: Services that look for devices when they start, unless told otherwise; the exporters may be clients of the first. What
#: NVIDIA's own MIG manager stops and starts besides is there to have the GPUs free, or Kubernetes' (NVIDIA/mig-parted,
#: deployments/systemd/hooks.sh).
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
        """Take the mark away."""
        durable.remove(self.path)

    def due(self) -> bool:
        """Return whether the mark is set."""
        return self.path.exists()


class PendingFollowUp(Mark):
    """Devices have changed, or may have, and what follows (`follow`) is not done yet. Set before the change."""

    name = "follow.json"


class PendingReboot(Mark):
    """MIG modes were left pending on the GPUs, or may have been, for a reboot of the host."""

    name = "reboot.json"
