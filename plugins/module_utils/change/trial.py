# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Handle a layout that is on trial until the host reboots.

A layout is on trial if the boot service already applies it. The previous layout is kept as a backup.

A run prepares the reboot in two steps. First, the boot service gets the new layout. Then the new MIG modes are left
pending. If the run is interrupted between the two steps, the layout does not match the GPUs' modes. So the second step
is recorded, and the next `gpu-layout apply` reads the record to decide which layout to keep.
"""

from __future__ import annotations

from pathlib import Path

from .. import durable
from ..durable import FORMER
from .pending import PendingReboot

#: Path of the layout that can be on trial, relative to the host's root. Other files with the suffix `.former` belong to
#: other programs.
_INSTALLED = ("etc", "openfleet-gpu", "layout.json")


def replaced_files(layout: Path) -> tuple[Path, Path]:
    """Return the files that a layout on trial replaces.

    These are the layout itself and the systemd unit that applies it at boot.
    """
    return layout, layout.parent.parent / "systemd" / "system" / "gpu-layout.service"


def settle(layout: Path, directory: str) -> bool:
    """Keep the layout on trial if its MIG modes were left pending.

    Otherwise restore the previous layout. Returns whether it was restored.
    """
    if layout.absolute().parts[-len(_INSTALLED) :] != _INSTALLED:
        return False
    on_trial = [path for path in replaced_files(layout) if _former(path).exists()]
    if PendingReboot(directory).due():
        for path in on_trial:
            durable.remove(_former(path))
        return False
    for path in on_trial:
        if _former(path).stat().st_size:
            _former(path).replace(path)
        else:
            durable.remove(path)
            durable.remove(_former(path))
    return bool(on_trial)


def _former(path: Path) -> Path:
    return path.with_name(path.name + FORMER)
