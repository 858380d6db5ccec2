# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the target of a keep among a host's holders, and the target's owner.

The kernel reports the owner:

| target | owner | |---|---| | a process outside of containers | its user ids, if they are all equal; otherwise root | |
a unit | the user ids of its running main process, if they are all equal; otherwise root | | a container of a user's own
engine | this user | | a container of root's engine, and its processes | root |

Root and the members of the groups in the inventory may keep every target.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
from typing import Sequence

from ..frozen import frozen
from ..holders.peer_owner import UserOfUnitOwner
from ..leases.names import is_lease_unit
from ..model import Holder
from ..processes import peer
from ..processes.peer import PeerError
from .keeps import KeepError, container_id, container_of, process_identity

_ROOT = 0


@frozen
class Target:
    """The target of a keep.

    `identity` is the same as in `Keep`. `owner` is the user id that may keep the target. Administrators may keep it
    too.
    """

    kind: str
    name: str
    identity: str
    owner: int


def find(name: str, holders: Sequence[Holder]) -> Target:
    """Return the holder with this name or PID.

    Raises KeepError if no holder or more than one has it.
    """
    if re.fullmatch(r"[0-9]{1,9}", name):
        return _process(int(name), holders)
    named = {holder.unit_or_container: holder for holder in holders if holder.pid and _is_called(name, holder)}
    if not named:
        cure = "Write the name of the service or container, or the pid of the process. `gpu-layout holders` lists them for root."
        raise KeepError(name, "no service or container of this name holds a GPU on this host", cure)
    if len(named) > 1:
        cure = 'Write one of: "%s".' % '", "'.join(sorted(map(str, named)))
        raise KeepError(name, "several holders have this name", cure)
    (holder,) = named.values()
    if is_lease_unit(str(holder.unit_or_container)):
        # The lease's scope has only processes of the account with the lease.
        owner = _process(int(holder.pid or 0), holders).owner
        return Target("unit", str(holder.unit_or_container), str(holder.unit_or_container), owner)
    return _container(holder) if container_of(holder) else _unit(str(holder.unit_or_container))


def is_administrator(uid: int, groups: Sequence[str]) -> bool:
    """Return whether a user is an administrator.

    Administrators are root and all members of `groups`, according to the host's user and group databases.
    """
    if uid == _ROOT:
        return True
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return False
    wanted = set()
    for group in groups:
        try:
            wanted.add(grp.getgrnam(group).gr_gid)
        except KeyError:
            # This host does not have the group.
            continue
    return bool(wanted.intersection(os.getgrouplist(entry.pw_name, entry.pw_gid)))


def user_name(uid: int) -> str:
    """Return a user's name from the host's user database.

    Returns "uid N" if the database does not have the user.
    """
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return "uid %d" % uid


def _is_called(name: str, holder: Holder) -> bool:
    whole = holder.unit_or_container or ""
    container = container_of(holder)
    return name == whole or (name == container[1] if container else name + ".service" == whole)


def _process(pid: int, holders: Sequence[Holder]) -> Target:
    where = "pid %d" % pid
    mine = [holder for holder in holders if holder.pid == pid]
    identity = process_identity(mine[0]) if mine else ""
    if not identity:
        cure = "nvidia-smi lists the pids of your processes on the GPUs. Inside a container, the same process has another pid."
        raise KeepError(where, "no process with this pid holds a GPU on this host", cure)
    with peer.looking_at(pid) as process:
        uids = process.uids if process else set()
    # Check the identity again, because another process may have got the PID.
    if not uids or process_identity(mine[0]) != identity:
        raise KeepError(where, "the process has just ended", "")
    container = container_of(mine[0])
    if container is not None:
        return Target("process", where, identity, _owner_of_container(container[0]))
    return Target("process", where, identity, uids.pop() if len(uids) == 1 else _ROOT)


def _unit(name: str) -> Target:
    cure = "Keep the process instead, by its pid."
    if not name.endswith(".service"):
        raise KeepError(name, "it is not a service", cure)
    try:
        uids = UserOfUnitOwner(name).uids
    except PeerError as error:
        raise KeepError(name, "its owner is not known: %s" % error, cure) from None
    return Target("unit", name, name, next(iter(uids)) if len(uids) == 1 else _ROOT)


def _container(holder: Holder) -> Target:
    runtime, _name = container_of(holder) or ("", "")
    identity = container_id(holder)
    if not identity:
        raise KeepError(
            str(holder.unit_or_container), "the id of the container is not known", "Keep its process by pid."
        )
    return Target("container", str(holder.unit_or_container), identity, _owner_of_container(runtime))


def _owner_of_container(runtime: str) -> int:
    """Return the user id in the runtime's name (`podman@1000`), or root's."""
    uid = runtime.partition("@")[2]
    return int(uid) if uid.isdigit() else _ROOT
