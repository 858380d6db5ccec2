# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A folder below /run that users and containers write to: a tmpfs of limited size, mounted by a unit of systemd.

Without it they could fill the host's /run, and the host with that.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Callable, Sequence

from . import systemd_reload
from .frozen import frozen

#: Runs systemctl with these arguments. Raises ApplyError where it fails.
Systemctl = Callable[[Sequence[str]], None]


@frozen
class LimitedFolder:
    """The folder's path below the root of the host, its bounds, and what its unit says about it."""

    path: str
    size_mib: int
    most_files: int
    #: Permission bits of the folder once it is mounted.
    mode: int
    description: str
    comment: str
    #: Whether systemd leaves a folder with something in it alone. It starts the unit for each unit that needs the folder.
    only_empty: bool = False

    @property
    def unit(self) -> str:
        """Name of the mount unit. systemd wants it to follow from the path (systemd.unit(5))."""
        escaped = re.sub(r"[^A-Za-z0-9:_./]", lambda found: "\\x%02x" % ord(found.group()), self.path)
        return escaped.replace("/", "-") + ".mount"

    @property
    def unit_path(self) -> str:
        return "etc/systemd/system/" + self.unit

    @property
    def unit_text(self) -> str:
        """Return the mount unit (systemd.mount(5))."""
        lines = [
            "# Written by openfleet.gpu for %s." % self.comment,
            "[Unit]",
            "Description=%s" % self.description,
            "Documentation=https://docs.kernel.org/filesystems/tmpfs.html",
            *(["ConditionDirectoryNotEmpty=!/%s" % self.path] if self.only_empty else []),
            "",
            "[Mount]",
            "What=tmpfs",
            "Where=/%s" % self.path,
            "Type=tmpfs",
            "Options=size=%dM,nr_inodes=%d,mode=%04o,nosuid,nodev,noexec" % (self.size_mib, self.most_files, self.mode),
            # Programs that run keep what they have mapped.
            "LazyUnmount=yes",
            "",
            "[Install]",
            "WantedBy=local-fs.target",
        ]
        return "".join(line + "\n" for line in lines)

    def is_mounted(self, root: Path) -> bool:
        return os.path.ismount(str(root / self.path))

    def mount(self, root: Path, systemctl: Systemctl, changed: bool, in_use: bool) -> None:
        """Mount it at each boot, and now unless it is `in_use`; give it its new size where its unit has `changed`."""
        if self.is_mounted(root):
            if changed:
                systemctl(systemd_reload.RELOAD[1:])
                systemctl(["reload", self.unit])
            return
        # A reload can detach GPUs from running containers (NVIDIA/nvidia-container-toolkit#48), and `enable` makes one by itself.
        if changed:
            systemctl(systemd_reload.RELOAD[1:])
        systemctl(["enable", "--no-reload", *([] if in_use else ["--now"]), self.unit])

    def unmount(self, root: Path, systemctl: Systemctl) -> None:
        """Unmount it for good. Its unit's file stays. Does nothing where that is not there."""
        if (root / self.unit_path).exists():
            systemctl(["disable", "--no-reload", "--now", self.unit])
