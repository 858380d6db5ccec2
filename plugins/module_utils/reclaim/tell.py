# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Notify the owner of an idle holder on its host.

The notice is written to the owner's terminals, or into a file in the owner's home. A home may be a link, contain a
FIFO, or be on a server that does not answer. So a child process with the owner's user id writes the file. It has a
timeout, and no important files open if it hangs. A failure is recorded, and the run continues.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
from pathlib import Path
from typing import Any, Mapping

from ..durable import replacing
from ..errors import FleetError
from ..holders.peer_owner import UserOfUnitOwner
from ..processes.bounded import bounded
from ..processes.command import FAILURES, run_tool
from ..processes.peer import PeerError

WAYS = ("wall", "home")
_HOME_SECONDS, _MOST_ANSWER_BYTES = 10.0, 4096
_ROOT = 0


def owner_of(item: Mapping[str, Any]) -> int | None:
    """Return the user id of a unit's main process.

    Returns None for root, containers and unknown owners. A container chooses its own user ids, so they do not identify
    an owner.
    """
    if item["kind"] != "unit":
        return None
    try:
        uids = UserOfUnitOwner(item["name"]).uids
    except PeerError:
        return None
    return next(iter(uids)) if len(uids) == 1 and _ROOT not in uids else None


def user_of(uid: int | None) -> str:
    """Return the account name of an owner, or ""."""
    if uid is None:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def tell(way: str, item: Mapping[str, Any], uid: int | None, text: str) -> None:
    """Send a notice in this way. Raises FleetError."""
    if way == "wall":
        _wall(text)
    else:
        _home(item["name"], uid, text)


def _wall(text: str) -> None:
    try:
        done = run_tool(["wall"], input=text)
    except FAILURES as error:
        raise FleetError("wall", "it cannot be run: %s" % error, "Install it, or remove wall from the list.") from None
    if done.returncode != 0:
        raise FleetError("wall", "it failed: %s" % " ".join(done.stderr.split())[:200], "See: wall --help.")


def file_name(name: str) -> str:
    """Return the name of the file in the owner's home."""
    return "gpu-notice-%s.txt" % re.sub(r"[^A-Za-z0-9_.@-]", "_", name)[:200]


def _home(name: str, uid: int | None, text: str) -> None:
    if uid is None:
        raise FleetError("home", "its owner is not known", "Notify its owner in another way.")
    bounded(lambda: _write(uid, file_name(name), text), "home", _HOME_SECONDS, _MOST_ANSWER_BYTES, uid)


def _write(uid: int, name: str, text: str) -> str:
    """Switch to the user and write the file.

    Runs in a child process, because the switch is permanent.
    """
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise FleetError(
            "home", "uid %d has no account on this host" % uid, "Notify its owner in another way."
        ) from None
    os.setgroups([])
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(uid, uid, uid)
    try:
        folder = os.open(entry.pw_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if os.fstat(folder).st_uid != uid:
            raise FleetError("home", "%s does not belong to %s" % (entry.pw_dir, entry.pw_name), "")
        _replace(folder, name, text)
    except OSError as error:
        raise FleetError("home", "the file cannot be written: %s" % error, "Check %s." % entry.pw_dir) from None
    return ""


def _replace(folder: int, name: str, text: str) -> None:
    """Write a new file and rename it, without opening an existing file."""
    try:
        if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise FleetError("home", "%s exists and is not a regular file" % name, "Its owner must remove it.")
    except FileNotFoundError:
        pass
    # The path leads through the descriptor, so it stays in the checked folder.
    with replacing(Path("/proc/self/fd/%d" % folder, name), most=0o600) as file:
        file.write(text.encode())
