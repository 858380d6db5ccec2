# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find containers that would lose their GPUs when systemd reloads its units.

With the systemd cgroup driver, runc names the devices of a container as /dev/char/MAJOR:MINOR in DeviceAllow= of its scope.
systemd looks these names up again at each daemon-reload. If the link of a device is missing, the container loses the device:
https://github.com/NVIDIA/nvidia-container-toolkit/issues/48.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Callable, Iterable

from .disturbance import Disturbance
from .model import Holder

# Folders below /dev with the nodes of NVIDIA's driver, and the names of these nodes.
_FOLDERS = ("", "nvidia-caps", "nvidia-caps-imex-channels")
_NODE = re.compile(r"nvidia(?:\d+|ctl|-uvm|-uvm-tools|-modeset|-nvswitch.*|-cap\d+)$|channel\d+$")
# The scope of a container under the systemd cgroup driver. Under cgroupfs the cgroup is a plain directory.
_SCOPE = re.compile(r"/(?:docker|libpod|crio|cri-containerd|nerdctl)-[0-9a-f]{64}\.scope(?:/|$)", re.MULTILINE)
# Links that a message names.
_NAMED = 3

CURE = (
    'run "nvidia-ctk system create-dev-char-symlinks --create-all", install the udev rule of docs/container_toolkit.md and '
    "restart the containers"
)


def device_number(path: str) -> tuple[int, int] | None:
    """Return the major and minor number of a character device; None for any other file."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return (os.major(status.st_rdev), os.minor(status.st_rdev)) if stat.S_ISCHR(status.st_mode) else None


def missing_links(root: Path, number: Callable[[str], tuple[int, int] | None] = device_number) -> tuple[str, ...]:
    """Return the links in /dev/char that NVIDIA's device nodes lack, as MAJOR:MINOR. `root` is the root of the host."""
    dev = root / "dev"
    missing: set[tuple[int, int]] = set()
    for folder in _FOLDERS:
        try:
            nodes = [node for node in (dev / folder).iterdir() if _NODE.match(node.name)]
        except OSError:
            continue
        numbers = [each for each in (number(str(node)) for node in nodes) if each]
        missing.update(each for each in numbers if not (dev / "char" / ("%d:%d" % each)).exists())
    return tuple("%d:%d" % each for each in sorted(missing))


def in_systemd_scope(cgroup: str) -> bool:
    """Return whether a text of /proc/PID/cgroup is of a container under the systemd cgroup driver."""
    return _SCOPE.search(cgroup) is not None


def disturbed(missing: Iterable[str], holders: Iterable[tuple[Holder, str]]) -> list[Disturbance]:
    """Return the containers that a reload would disturb, given the missing links and each holder with its cgroup text. Pure."""
    missing = list(missing)
    containers = {str(holder): holder for holder, cgroup in holders if in_systemd_scope(cgroup)}
    if not missing or not containers:
        return []
    more = ["%d more" % (len(missing) - _NAMED)] if len(missing) > _NAMED else []
    what = "a GPU that containers would lose when systemd reloads its units, as /dev/char lacks the links %s (%s)," % (
        ", ".join([*missing[:_NAMED], *more]),
        CURE,
    )
    return [Disturbance(what, tuple(containers[who] for who in sorted(containers)))]


def look(root: Path, holders: Iterable[Holder]) -> list[Disturbance]:
    """Return the containers that a reload of systemd would disturb on this host, out of the holders of its GPUs."""
    missing = missing_links(root)
    return disturbed(missing, [(holder, _cgroup(root, holder)) for holder in holders]) if missing else []


def _cgroup(root: Path, holder: Holder) -> str:
    """Return the cgroup text of the holder's process; empty if it has none or has ended."""
    if holder.pid is None:
        return ""
    try:
        return (root / "proc" / str(holder.pid) / "cgroup").read_text(errors="replace")
    except OSError:
        return ""
