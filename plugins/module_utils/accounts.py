# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell whose a process is by the kernel's word, in user namespaces too, where a user has tens of thousands of user ids."""

from __future__ import annotations

import fcntl
import os
import re
import struct

from .proc_files import link, read

#: linux/nsfs.h
_NS_GET_PARENT, _NS_GET_OWNER_UID = 0xB702, 0xB704
#: The kernel nests no deeper.
_DEEPEST = 33
#: What the kernel says of a user id that it cannot map.
_NO_ACCOUNT = 65534


def is_foreign(process: str) -> bool:
    """Return whether a process (its folder in /proc) has a user namespace that is not this one's; False where it does not say."""
    own, its = link(os.path.dirname(process) + "/self/ns/user"), link(process + "/ns/user")  # noqa: PTH120
    return None not in (own, its) and own != its


def account_of(process: str) -> int:
    """Return the account that a process (its folder in /proc) counts for.

    In a user namespace that is the user who made the topmost one below this: that user chooses the ids within.
    """
    if is_foreign(process):
        return _owner(process)
    found = re.search(r"^Uid:\s*(\d+)", read(process + "/status"), re.MULTILINE)
    return int(found.group(1)) if found else _NO_ACCOUNT


def _owner(process: str) -> int:
    opened = []
    try:
        own = os.stat(os.path.dirname(process) + "/self/ns/user")  # noqa: PTH116, PTH120
        opened.append(os.open(process + "/ns/user", os.O_RDONLY | os.O_CLOEXEC))
        for _level in range(_DEEPEST):
            above = fcntl.ioctl(opened[-1], _NS_GET_PARENT)
            opened.append(above)
            if os.path.samestat(os.fstat(above), own):
                said = fcntl.ioctl(opened[-2], _NS_GET_OWNER_UID, b"\0" * 4)
                return int(struct.unpack("I", said)[0])
    except OSError:
        # It has ended, or its namespace is none below this one.
        pass
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return _NO_ACCOUNT
