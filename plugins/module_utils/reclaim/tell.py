# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell the owner of an idle holder on its host: on the terminals, or by a file in the owner's home.

A home may be a link, hold a FIFO or lie on a server that does not answer. So the file is written by a child process with the
owner's user id. It is killed if it takes too long, and holds nothing where it cannot be killed. A way that fails is noted, and
stops nothing.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
from pathlib import Path
from typing import Any, Mapping

from ..bounded import bounded
from ..command import FAILURES, run_tool
from ..durable import replacing
from ..errors import FleetError
from ..peer import PeerError
from ..peer_owner import UserOfUnitOwner

WAYS = ("wall", "home")
_HOME_SECONDS, _MOST_ANSWER_BYTES = 10.0, 4096
_ROOT = 0


def owner_of(item: Mapping[str, Any]) -> int | None:
    """Return the uid that a unit's main process runs as, by the kernel; None of root's, and where it cannot be told.

    The user ids within a container are the container's own choice, and tell no owner.
    """
    if item["kind"] != "unit":
        return None
    try:
        uids = UserOfUnitOwner(item["name"]).uids
    except PeerError:
        return None
    return next(iter(uids)) if len(uids) == 1 and _ROOT not in uids else None


def user_of(uid: int | None) -> str:
    """Return the name of an owner's account; empty where there is none."""
    if uid is None:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def tell(way: str, item: Mapping[str, Any], uid: int | None, text: str) -> None:
    """Tell it by one way. Raises FleetError where that fails."""
    if way == "wall":
        _wall(text)
    else:
        _home(item["name"], uid, text)


def _wall(text: str) -> None:
    try:
        done = run_tool(["wall"], input=text)
    except FAILURES as error:
        raise FleetError("wall", "it cannot be run: %s" % error, "Install it, or take wall out of the list.") from None
    if done.returncode != 0:
        raise FleetError("wall", "it failed: %s" % " ".join(done.stderr.split())[:200], "See: wall --help.")


def file_name(name: str) -> str:
    """Return the name of the file in a home."""
    return "gpu-notice-%s.txt" % re.sub(r"[^A-Za-z0-9_.@-]", "_", name)[:200]


def _home(name: str, uid: int | None, text: str) -> None:
    if uid is None:
        raise FleetError("home", "no user owns it by the kernel's word", "Tell its owner by another way.")
    bounded(lambda: _write(uid, file_name(name), text), "home", _HOME_SECONDS, _MOST_ANSWER_BYTES, uid)


def _write(uid: int, name: str, text: str) -> str:
    """Become the user and write. In a child process: there is no way back, and it may be killed at any time."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise FleetError("home", "uid %d has no account on this host" % uid, "Tell its owner by another way.") from None
    os.setgroups([])
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(uid, uid, uid)
    try:
        folder = os.open(entry.pw_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if os.fstat(folder).st_uid != uid:
            raise FleetError("home", "%s does not belong to %s" % (entry.pw_dir, entry.pw_name), "")
        _replace(folder, name, text)
    except OSError as error:
        raise FleetError("home", "the file cannot be written: %s" % error, "Look at %s." % entry.pw_dir) from None
    return ""


def _replace(folder: int, name: str, text: str) -> None:
    """Write a new file and rename it: nothing that lies there is opened."""
    try:
        if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise FleetError("home", "%s is there already and is no regular file" % name, "Its owner has to remove it.")
    except FileNotFoundError:
        pass
    # A path through the descriptor: the folder stays the one that was looked at.
    with replacing(Path("/proc/self/fd/%d" % folder, name), most=0o600) as file:
        file.write(text.encode())
