# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mount a tmpfs of limited size in /run, for users' and containers' files.

Without the limit, users and containers could fill the host's /run. A systemd unit mounts the tmpfs at boot.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Callable, Sequence

from .. import systemd_reload
from ..frozen import frozen

#: A function that runs systemctl with these arguments. It raises ApplyError if systemctl fails.
Systemctl = Callable[[Sequence[str]], None]


@frozen
class LimitedFolder:
    """A folder below the host's root, its limits, and the texts of its mount unit."""

    path: str
    size_mib: int
    most_files: int
    #: Permission bits of the folder after it is mounted.
    mode: int
    description: str
    comment: str
    #: Whether systemd mounts the tmpfs only over an empty folder. Units that need the folder must then start the mount
    #: unit.
    only_empty: bool = False

    @property
    def unit(self) -> str:
        """Return the name of the mount unit, derived from the path (systemd.unit(5))."""
        escaped = re.sub(r"[^A-Za-z0-9:_./]", lambda match: "\\x%02x" % ord(match.group()), self.path)
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
            # Unmount even if files are in use. Running programs keep their mappings of these files.
            "LazyUnmount=yes",
            "",
            "[Install]",
            "WantedBy=local-fs.target",
        ]
        return "".join(line + "\n" for line in lines)

    def is_mounted(self, root: Path) -> bool:
        return os.path.ismount(str(root / self.path))

    def mount(self, root: Path, systemctl: Systemctl, changed: bool, in_use: bool) -> None:
        """Mount the folder at each boot, and also now unless it is `in_use`.

        `changed` means that the unit file was rewritten. The new size is then applied to the mounted folder.
        """
        if self.is_mounted(root):
            if changed:
                systemctl(systemd_reload.RELOAD[1:])
                systemctl(["reload", self.unit])
            return
        # Reload only if needed, because a reload can detach GPUs from running containers
        # (NVIDIA/nvidia-container-toolkit#48).
        if changed:
            systemctl(systemd_reload.RELOAD[1:])
        systemctl(["enable", "--no-reload", *([] if in_use else ["--now"]), self.unit])

    def unmount(self, root: Path, systemctl: Systemctl) -> None:
        """Unmount the folder and disable its unit, if the unit file exists.

        The unit file is kept.
        """
        if (root / self.unit_path).exists():
            systemctl(["disable", "--no-reload", "--now", self.unit])
