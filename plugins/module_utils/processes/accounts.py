# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the account that is responsible for a process or user id.

In a user namespace, a user controls tens of thousands of user ids. Outside the namespace, a set-user-id file from
inside it still gives its process such an id. /etc/subuid, which only root can write, maps these ids to the account.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import struct
from typing import Iterator, Tuple

from .proc_files import link, read

#: From linux/nsfs.h.
_NS_GET_PARENT, _NS_GET_OWNER_UID = 0xB702, 0xB704
#: The kernel's maximum nesting depth of user namespaces.
_DEEPEST = 33
#: The kernel shows this user id for an id that it cannot map.
_NO_ACCOUNT = 65534
#: See subuid(5).
SUBORDINATE = "/etc/subuid"


def is_foreign(process: str) -> bool:
    """Return whether a process is in another user namespace.

    `process` is its folder in /proc. Returns False if the namespace is unknown.
    """
    own, its = link(os.path.dirname(process) + "/self/ns/user"), link(process + "/ns/user")  # noqa: PTH120
    return None not in (own, its) and own != its


def account_of(process: str) -> int:
    """Return the account that is responsible for a process.

    `process` is its folder in /proc. For a process in a user namespace, this is the creator of the topmost namespace
    below this one, because the creator chooses the ids inside.
    """
    if is_foreign(process):
        return account_of_id(_owner(process))
    match = re.search(r"^Uid:\s*(\d+)", read(process + "/status"), re.MULTILINE)
    return account_of_id(int(match.group(1))) if match else _NO_ACCOUNT


def account_of_id(uid: int) -> int:
    """Return the account that has `uid` as a subordinate id.

    Returns `uid` itself if no account has it.
    """
    for account, first, count in _ranges():
        if first <= uid < first + count:
            if _has_account(uid):
                break
            return _id_of(account, uid)
    return uid


def _ranges() -> Iterator[Tuple[str, int, int]]:
    """Yield (account name or id, first id, count) for each row of /etc/subuid."""
    for line in read(SUBORDINATE).split("\n"):
        fields = line.split(":")
        if len(fields) == 3 and fields[1].isdecimal() and fields[2].isdecimal():
            yield fields[0], int(fields[1]), int(fields[2])


def _has_account(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _id_of(account: str, otherwise: int) -> int:
    if account.isdecimal():
        return int(account)
    try:
        return pwd.getpwnam(account).pw_uid
    except KeyError:
        return otherwise


def _owner(process: str) -> int:
    opened = []
    try:
        own = os.stat(os.path.dirname(process) + "/self/ns/user")  # noqa: PTH116, PTH120
        opened.append(os.open(process + "/ns/user", os.O_RDONLY | os.O_CLOEXEC))
        for _level in range(_DEEPEST):
            above = fcntl.ioctl(opened[-1], _NS_GET_PARENT)
            opened.append(above)
            if os.path.samestat(os.fstat(above), own):
                packed = fcntl.ioctl(opened[-2], _NS_GET_OWNER_UID, b"\0" * 4)
                return int(struct.unpack("I", packed)[0])
    except OSError:
        # The process has ended, or its namespace is not below this one.
        pass
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return _NO_ACCOUNT
