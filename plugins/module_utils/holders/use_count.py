# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the driver's use count with the open files of a scan, as pure functions.

/proc/modules shows the number of references to a module. They are held by dependent modules and by open files of the
module's nodes, in whatever way the files are kept open. If the scan found fewer files than the count needs, a file is
hidden.

An open file holds a reference to the module with its operations. It holds a second reference if the device's owner is
set (fs/char_dev.c). The driver's sources show where the owner is set (kernel-open/nvidia: nv.c, nv-caps.c,
nv-caps-imex.c, nv-dmabuf.c, and until release 535 nv-frontend.c, which holds one more reference). This was not verified
on a running driver.
"""

from __future__ import annotations

import re
from typing import Dict, Mapping, Tuple

from ..frozen import frozen

MODULE = "nvidia"
# Modules of NVIDIA's driver package, which hold no hidden references to the module `nvidia`.
_DRIVERS_OWN = {MODULE, "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem"}
# RDMA holds references to the driver's buffers (dma-buf) without an open file.
_KEEPS_BUFFERS = "ib_core"
_LINE = re.compile(r"^(\S+) \d+ (\d+|-) (\S+) \S+ \S+(?: \((\S*)\))?$", re.MULTILINE)
_OUT_OF_TREE = "O"
# The major number of GPU nodes is fixed. Its minor 254 belongs to nvidia-modeset. The driver's other major numbers vary
# and are listed by name in /proc/devices.
_GPU_MAJOR, _MODESET_MINOR = 195, 254
_FRONTEND = "nvidia-frontend"
_CAPABILITIES = ("nvidia-caps", "nvidia-caps-imex-channels")
# Replaces a device number for a dma-buf in a list of files.
BUFFER = (0, 0)


@frozen
class Found:
    """The results of a scan.

    `least` and `most` are limits for the number of references that open files and mappings hold. They can differ,
    because a mapping may belong to a file that is also open. `least` is None if the scan cannot find out which files
    processes share. `complete` is true if all processes were examined. `uses` is true if a process has a driver's node
    open.
    """

    least: int | None
    most: int
    complete: bool
    uses: bool


@frozen
class Verdict:
    """The result of a comparison.

    `hidden` is the number of references that no open file explains. `accounted` is true if an open file or a module
    explains every reference. If the numbers cannot be compared, `hidden` is 0 and `accounted` is False.
    """

    hidden: int = 0
    accounted: bool = False


def references(number: Tuple[int, int], listed_majors: str) -> int:
    """Return how many references an open file with this device number holds.

    `listed_majors` is the text of /proc/devices.
    """
    if number == BUFFER:
        return 1
    major, minor = number
    names = re.findall(r"^\s*%d (\S+)$" % major, listed_majors, re.MULTILINE)
    if major == _GPU_MAJOR:
        if _FRONTEND in names:
            return 2 if minor == _MODESET_MINOR else 3
        return 0 if minor == _MODESET_MINOR else 1
    return 2 if any(name in _CAPABILITIES for name in names) else 0


def compare(before: str, after: str, found: Found) -> Verdict:
    """Compare the module's use count with the results of a scan.

    `before` and `after` have the content of /proc/modules before and after the scan. A file that was opened or closed
    during the scan is in only one of them.
    """
    counts = [_unexplained_by_modules(text) for text in (before, after)]
    taken = [count for count in counts if count is not None]
    if len(taken) < len(counts) or not found.complete:
        return Verdict()
    modules = _modules(after)
    if any(_OUT_OF_TREE in flags and name not in _DRIVERS_OWN for name, (_count, _users, flags) in modules.items()):
        # An out-of-tree module may hold references from symbol_get(), which /proc/modules does not list.
        return Verdict()
    if _KEEPS_BUFFERS in modules and found.uses:
        return Verdict()
    return Verdict(hidden=max(0, min(taken) - found.most), accounted=min(taken) == max(taken) == found.least)


def _unexplained_by_modules(text: str) -> int | None:
    """Return how many references to the driver are not held by modules.

    Returns None if /proc/modules does not show the number.
    """
    line = _modules(text).get(MODULE)
    if line is None or not line[0].isdigit():
        return None
    count, users, _flags = line
    return int(count) - len([user for user in users.split(",") if user and user != "-"])


def _modules(text: str) -> Mapping[str, Tuple[str, str, str]]:
    """Return (use count, users, flags) for each module (proc_modules(5))."""
    modules: Dict[str, Tuple[str, str, str]] = {}
    for name, count, users, flags in _LINE.findall(text):
        modules[name] = (count, users, flags)
    return modules
