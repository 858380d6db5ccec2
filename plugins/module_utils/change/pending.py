# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mark unfinished work in the state directory, for the next run.

The next run checks whether a mark's file exists. Its content does not matter, so a damaged mark still counts.
"""

from __future__ import annotations

from pathlib import Path

from .. import durable
from ..errors import ApplyError
from ..holders.processes import started_ticks_of
from ..plan.transaction import this_run

_SCHEMA = 1

#: The services to restart by default: they read the devices only when they start. The exporters may be clients of
#: nvidia-dcgm. NVIDIA's MIG manager stops more services, to free the GPUs or for Kubernetes (NVIDIA/mig-parted,
#: deployments/systemd/hooks.sh).
RESTARTED = ("nvidia-dcgm.service", "dcgm-exporter.service", "nvidia-dcgm-exporter.service")


class Mark:
    """A mark: a file with this name in the state directory."""

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
    """The mark for pending follow-up steps (`follow`).

    It is set before devices change and removed after the follow-up steps.
    """

    name = "follow.json"


class WaitingRun(Mark):
    """The mark of a run that waits for holders.

    It counts only while the run's process lives, so a killed run leaves no valid mark.
    """

    name = "waiting.json"

    def begin(self) -> None:
        """Set the mark. It contains the identity of this process."""
        durable.write(self.path, dict(this_run(), schema=_SCHEMA))

    def due(self) -> bool:
        """Return whether a run waits. Ignores a damaged mark."""
        try:
            run = durable.read(self.path, _SCHEMA)
            return run is not None and started_ticks_of(run["pid"]) == run["start"]
        except (ApplyError, KeyError):
            return False


class PendingReboot(Mark):
    """The mark for MIG modes that may be pending until the host reboots."""

    name = "reboot.json"
