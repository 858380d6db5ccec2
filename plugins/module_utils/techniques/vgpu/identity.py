# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Determine a process's tenant from mounts that its user cannot create.

The library in a process finds the tenant in the mounted quota folders and the environment (identity.c of the role
vgpu_limiter), but users can manipulate both. Any user can create a user namespace with a mount namespace, and mount
anything in it. Root in a container can hide mounts with chroot. So mounts count only in a mount namespace that root on
the host or a container engine created. A process in another namespace belongs to its parent's tenant.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
from pathlib import Path
from typing import Callable, Dict, Iterator, Tuple

from ...frozen import frozen
from ...holders.cgroup import parse_cgroup
from ...holders.tasks import live_task
from ...processes import proc_files
from .model import SETTINGS

_NAME_VARIABLE = "OPENFLEET_VGPU="
#: Maximum number of characters to read from a process's list of mounts.
_MOST_MOUNTS = 1 << 22
#: Maximum number of ancestors to check. The kernel has no limit.
_MOST_ANCESTORS = 64
#: From linux/nsfs.h.
_GET_USER_NAMESPACE, _GET_PARENT, _GET_OWNER_UID = 0xB701, 0xB702, 0xB704
#: The kernel's limit for nested namespaces.
_DEEPEST = 33
#: Suffix of the path of a mounted folder that was removed (proc_pid_mountinfo(5)).
_DELETED = "//deleted"
_ROOT = 0

#: A function that reads a file with a process's memory. It returns None if the process does not answer.
Read = Callable[[str], "str | None"]
#: A folder as the kernel reports it: its device, and its path in the file system.
Source = Tuple[str, str]

# Creators of a mount namespace: root on the host (also for containers), a container engine that uses user namespaces,
# or possibly any user in a container.
_BY_ROOT, _BY_ENGINE, _UNTRUSTED = "root", "engine", "untrusted"


class Identities:
    """Find the tenant names of processes in `proc`.

    `root` has the tenants' files. `read_memory` reads environments.
    """

    def __init__(self, root: Path, proc: str, read_memory: Read) -> None:
        self._settings, self._proc, self._read_memory = str(root / SETTINGS), proc, read_memory

    def names_of(self, pid: int) -> set[str] | None:
        """Return a process's tenant name.

        Returns several names only if the process's environment has several. Returns None if the process does not answer
        and may therefore have any name.
        """
        for ancestor in self._lineage(pid):
            # A main thread that has ended shows neither mounts nor environment. Read another thread instead.
            task = live_task(self._proc, ancestor) or ancestor
            maker = self._namespace_maker(task)
            if maker != _UNTRUSTED:
                return self._names(task, maker)
        return set()

    def _lineage(self, pid: int) -> Iterator[int]:
        """Yield the PIDs of a process and its ancestors.

        An ancestor is never in another container.
        """
        for _level in range(_MOST_ANCESTORS):
            yield pid
            parent = re.search(r"^PPid:\s*(\d+)", proc_files.read(self._path(pid, "status")), re.MULTILINE)
            if parent is None or parent.group(1) == "0":
                return
            pid = int(parent.group(1))

    def _names(self, pid: int, maker: str) -> set[str] | None:
        table = _Mounts(proc_files.read(self._path(pid, "mountinfo"), _MOST_MOUNTS))
        claimed = table.names()
        mounted = self._of_host(table, claimed) if maker == _BY_ENGINE else claimed
        if len(mounted) == 1:
            return mounted
        text = self._read_memory(self._path(pid, "environ"))
        if text is None:
            return None
        words = text.split("\0")
        named = {word[len(_NAME_VARIABLE) :] for word in words if word.startswith(_NAME_VARIABLE)}
        if claimed:
            return named.intersection(mounted)
        if not named or self._is_hosts_namespace(pid):
            return named
        # In a container, use the variable only if the tenant's folder in it is the host's folder.
        host = self._host_mounts()
        return {name for name in named if table.at(self._folder(name)) == host.at(self._folder(name))}

    def _of_host(self, table: _Mounts, names: set[str]) -> set[str]:
        """Return the names for which the host's own folder is mounted.

        Users may mount other folders in their containers.
        """
        host = self._host_mounts() if names else _Mounts("")
        return {name for name in names if table.source(name) == host.at(self._folder(name))}

    def _folder(self, name: str) -> str:
        return "%s/%s" % (self._settings, name)

    def _path(self, pid: int, name: str) -> str:
        return "%s/%d/%s" % (self._proc, pid, name)

    def _host_mounts(self) -> _Mounts:
        # Read process 1, because the caller may be a service with a private mount namespace.
        return _Mounts(proc_files.read(self._path(1, "mountinfo"), _MOST_MOUNTS))

    def _is_hosts_namespace(self, pid: int) -> bool:
        """Return whether a process has the mount namespace of the host.

        Returns True if /proc does not show namespaces.
        """
        own, host = (proc_files.link(self._path(each, "ns/mnt")) for each in (pid, 1))
        return None in (own, host) or own == host

    def _namespace_maker(self, pid: int) -> str:
        if self._is_hosts_namespace(pid):
            return _BY_ROOT
        if proc_files.link(self._path(pid, "root")) != "/":
            return _UNTRUSTED
        try:
            with contextlib.ExitStack() as opened:
                return self._maker(pid, opened)
        except OSError:
            # The process has ended, or the caller may not inspect it.
            return _UNTRUSTED

    def _maker(self, pid: int, opened: contextlib.ExitStack) -> str:
        """Return the creator of the process's mount namespace. Raises OSError."""
        host_user, host_pid = (os.stat(self._path(1, name)) for name in ("ns/user", "ns/pid"))  # noqa: PTH116
        mounts = _opened(opened, os.open(self._path(pid, "ns/mnt"), os.O_RDONLY | os.O_CLOEXEC))
        user = _opened(opened, fcntl.ioctl(mounts, _GET_USER_NAMESPACE))
        if os.path.samestat(os.fstat(user), host_user):
            # The mount namespace belongs to the host's user namespace, so a process that may mount on the host created
            # it.
            return _BY_ROOT
        (owner,) = struct.unpack("I", fcntl.ioctl(user, _GET_OWNER_UID, b"\0" * 4))
        origin = parse_cgroup(proc_files.read(self._path(pid, "cgroup")), self._own_container())
        in_roots_container = bool(origin.container_id) and "@" not in str(origin.unit_or_container)
        if (owner == _ROOT) != in_roots_container:
            # The creator is a user in a container of root's engine, or root in a container without its own user
            # namespace.
            return _UNTRUSTED
        first = _opened(opened, os.open(self._path(pid, "ns/pid"), os.O_RDONLY | os.O_CLOEXEC))
        if os.path.samestat(os.fstat(first), host_pid):
            above = _opened(opened, fcntl.ioctl(user, _GET_PARENT))
            is_first = owner != _ROOT and os.path.samestat(os.fstat(above), host_user)
            return _BY_ENGINE if is_first else _UNTRUSTED
        # Processes cannot leave the PID namespace that the engine created. So the topmost PID namespace below the
        # host's is the engine's, and belongs to the engine's user namespace.
        for _level in range(_DEEPEST):
            above = _opened(opened, fcntl.ioctl(first, _GET_PARENT))
            if os.path.samestat(os.fstat(above), host_pid):
                break
            first = above
        of_engine = _opened(opened, fcntl.ioctl(first, _GET_USER_NAMESPACE))
        return _BY_ENGINE if os.path.samestat(os.fstat(of_engine), os.fstat(user)) else _UNTRUSTED

    def _own_container(self) -> str | None:
        return parse_cgroup(proc_files.read(self._proc + "/self/cgroup")).container_id


def _opened(stack: contextlib.ExitStack, descriptor: int) -> int:
    stack.callback(os.close, descriptor)
    return descriptor


@frozen
class _Mount:
    """A line of /proc/PID/mountinfo (proc_pid_mountinfo(5))."""

    source: Source
    point: str


class _Mounts:
    """The mounts of a process."""

    def __init__(self, text: str) -> None:
        # The lines need no unescaping, because tenant names contain no characters that are escaped.
        words = (line.split(" ", 5) for line in text.split("\n"))
        self._mounts = [_Mount((line[2], line[3]), line[4]) for line in words if len(line) > 5]

    def _quota_folders(self) -> Dict[str, _Mount]:
        """Return the mounted quota folders by tenant name.

        The rules for a quota folder are the same as in the library.
        """
        split = ((mount, *mount.point.rpartition("/")) for mount in self._mounts)
        return {name: mount for mount, folder, _slash, name in split if folder == "/" + SETTINGS}

    def names(self) -> set[str]:
        return set(self._quota_folders())

    def source(self, name: str) -> Source:
        device, path = self._quota_folders()[name].source
        return device, path[: -len(_DELETED)] if path.endswith(_DELETED) else path

    def at(self, path: str) -> Source | None:
        """Return (device, path in its file system) for a path without links.

        Returns None if no mount contains the path.
        """
        innermost = None
        for mount in self._mounts:
            above = mount.point.rstrip("/") + "/"
            if (path + "/").startswith(above) and (innermost is None or len(mount.point) >= len(innermost.point)):
                innermost = mount
        if innermost is None:
            return None
        rest = path[len(innermost.point.rstrip("/")) :]
        return innermost.source[0], innermost.source[1].rstrip("/") + rest or "/"
