# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Handle a layout on trial: the boot service has it before a needed reboot, and the previous layout is kept.

The reboot takes two steps of a run: the boot service gets the new layout, then the new MIG modes are left pending. After a run
that ends between the two, the layout does not fit the GPUs' modes. So the second step is recorded, and the next
`gpu-layout apply` decides which layout the host keeps.
"""

from __future__ import annotations

from pathlib import Path

from .. import durable
from ..durable import FORMER
from .pending import PendingReboot

#: The only layout that can be on trial, below the root of the host. Other `.former` files belong to others.
_INSTALLED = ("etc", "openfleet-gpu", "layout.json")


def replaced_files(layout: Path) -> tuple[Path, Path]:
    """Return the files that a layout on trial replaces: the layout itself, and the unit that restores it at boot."""
    return layout, layout.parent.parent / "systemd" / "system" / "gpu-layout.service"


def settle(layout: Path, directory: str) -> bool:
    """Keep the layout on trial if its MIG modes were left pending, else restore the previous one and return True."""
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
