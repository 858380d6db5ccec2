# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the use count of the driver's module with the open files that a scan found. Pure.

/proc/modules counts the users of a module: each dependent module, and each open file of its nodes, however it is kept open. So a
count above the number of open files means that a file is hidden from the scan.

An open file takes one reference for the module of its operations, and one for the owner of the device if that is set
(fs/char_dev.c). The driver's sources show where it is set (kernel-open/nvidia: nv.c, nv-caps.c, nv-caps-imex.c,
nv-dmabuf.c, and until release 535 nv-frontend.c, which takes one more). This was not verified on a running driver.
"""

from __future__ import annotations

import re
from typing import Dict, Mapping, Tuple

from ..frozen import frozen

MODULE = "nvidia"
# Modules of NVIDIA's driver package that take references only as dependent modules, or to themselves.
_DRIVERS_OWN = {MODULE, "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem"}
# RDMA keeps references to buffers of the driver (dma-buf) without an open file.
_KEEPS_BUFFERS = "ib_core"
_LINE = re.compile(r"^(\S+) \d+ (\d+|-) (\S+) \S+ \S+(?: \((\S*)\))?$", re.MULTILINE)
_OUT_OF_TREE = "O"
# Major numbers are known by name only (/proc/devices), except the driver's first one. Minor 254 is nvidia-modeset's.
_GPU_MAJOR, _MODESET_MINOR = 195, 254
_FRONTEND = "nvidia-frontend"
_CAPABILITIES = ("nvidia-caps", "nvidia-caps-imex-channels")
# Device number of a dma-buf in a list of files.
BUFFER = (0, 0)


@frozen
class Found:
    """Results of a scan.

    `least` and `most` limit the references of the open files, since a mapping may be of a file that is open anyway.
    `least` is None if processes may share files. `complete`: all processes were examined. `uses`: a process has one of
    the driver's nodes open.
    """

    least: int | None
    most: int
    complete: bool
    uses: bool


@frozen
class Verdict:
    """Result of a comparison: number of `hidden` references, or `accounted` if every reference is explained.

    Neither is set if the counts cannot be compared.
    """

    hidden: int = 0
    accounted: bool = False


def references(number: Tuple[int, int], listed_majors: str) -> int:
    """Return the references of an open file with this device number. `listed_majors` is the text of /proc/devices."""
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
    """Compare the texts of /proc/modules from before and after a scan with its results.

    A file that was opened or closed during the scan is in only one of the counts.
    """
    counts = [_unexplained_by_modules(text) for text in (before, after)]
    taken = [count for count in counts if count is not None]
    if len(taken) < len(counts) or not found.complete:
        return Verdict()
    modules = _modules(after)
    if any(_OUT_OF_TREE in flags and name not in _DRIVERS_OWN for name, (_count, _users, flags) in modules.items()):
        # It may take references by symbol_get(), which do not show a user.
        return Verdict()
    if _KEEPS_BUFFERS in modules and found.uses:
        return Verdict()
    return Verdict(hidden=max(0, min(taken) - found.most), accounted=min(taken) == max(taken) == found.least)


def _unexplained_by_modules(text: str) -> int | None:
    """Return the references that are not from modules, or None if unknown."""
    line = _modules(text).get(MODULE)
    if line is None or not line[0].isdigit():
        return None
    count, users, _flags = line
    return int(count) - len([user for user in users.split(",") if user and user != "-"])


def _modules(text: str) -> Mapping[str, Tuple[str, str, str]]:
    """Return (use count, users, flags) by module (proc_modules(5))."""
    modules: Dict[str, Tuple[str, str, str]] = {}
    for name, count, users, flags in _LINE.findall(text):
        modules[name] = (count, users, flags)
    return modules
