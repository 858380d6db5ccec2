# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Determine the tenant of a process by mounts that its user cannot make.

The library in a process reads which quota folders are mounted there, and the environment (identity.c of the role vgpu_limiter).
Both are data of the process. Any user may create a user namespace with a mount namespace in it, and mount anything at any path
there. Root in a container may chroot, which hides mounts. So mounts count only in a namespace that the host's root or a container
engine created. A process in another namespace has the tenant of its parent process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
from pathlib import Path
from typing import Callable, Dict, Iterator, Tuple

from ... import proc_files
from ...frozen import frozen
from ...holders.cgroup import parse_cgroup
from ...holders.tasks import live_task
from .model import SETTINGS

_NAME_VARIABLE = "OPENFLEET_VGPU="
#: Characters that are read of one process's mounts.
_MOST_MOUNTS = 1 << 22
#: Ancestors that are read. The kernel has no limit.
_MOST_ANCESTORS = 64
#: linux/nsfs.h
_GET_USER_NAMESPACE, _GET_PARENT, _GET_OWNER_UID = 0xB701, 0xB702, 0xB704
#: The kernel nests namespaces no deeper.
_DEEPEST = 33
#: Behind the path of a mounted folder that was removed since (proc_pid_mountinfo(5)).
_DELETED = "//deleted"
_ROOT = 0

#: Reads a file of a process's memory; None where it does not answer.
Read = Callable[[str], "str | None"]
#: A folder as the kernel names it: the device of its file system, and its path there.
Source = Tuple[str, str]

# Who created a mount namespace: root, for the host or a container; a user's or user-namespaced engine; anybody in a container.
_BY_ROOT, _BY_ENGINE, _UNTRUSTED = "root", "engine", "untrusted"


class Identities:
    """The tenants' names of processes below `proc`; `root` has the files of tenants, `read_memory` reads environments."""

    def __init__(self, root: Path, proc: str, read_memory: Read) -> None:
        self._settings, self._proc, self._read_memory = str(root / SETTINGS), proc, read_memory

    def names_of(self, pid: int) -> set[str] | None:
        """Return the name by which a process is a tenant's: at most one, unless its environment has several.

        None where the process does not answer, and may have any name.
        """
        for ancestor in self._lineage(pid):
            # A process whose main thread has ended shows neither mounts nor environment by it.
            task = live_task(self._proc, ancestor) or ancestor
            maker = self._namespace_maker(task)
            if maker != _UNTRUSTED:
                return self._names(task, maker)
        return set()

    def _lineage(self, pid: int) -> Iterator[int]:
        """Yield the process and its ancestors. A process of a container has none in another container."""
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
        # In a container without the tenant's folder, the variable is only a text.
        host = self._host_mounts()
        return {name for name in named if table.at(self._folder(name)) == host.at(self._folder(name))}

    def _of_host(self, table: _Mounts, names: set[str]) -> set[str]:
        """Return those of the mounted names that are the host's own folders: users may mount others in their own containers."""
        host = self._host_mounts() if names else _Mounts("")
        return {name for name in names if table.source(name) == host.at(self._folder(name))}

    def _folder(self, name: str) -> str:
        return "%s/%s" % (self._settings, name)

    def _path(self, pid: int, name: str) -> str:
        return "%s/%d/%s" % (self._proc, pid, name)

    def _host_mounts(self) -> _Mounts:
        # Process 1: this process may be a service with a mount namespace of its own.
        return _Mounts(proc_files.read(self._path(1, "mountinfo"), _MOST_MOUNTS))

    def _is_hosts_namespace(self, pid: int) -> bool:
        """Return whether a process has the host's mount namespace; True where /proc does not show namespaces."""
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
            # It has ended, or it may not be looked at.
            return _UNTRUSTED

    def _maker(self, pid: int, opened: contextlib.ExitStack) -> str:
        """Raises OSError."""
        host_user, host_pid = (os.stat(self._path(1, name)) for name in ("ns/user", "ns/pid"))  # noqa: PTH116
        mounts = _opened(opened, os.open(self._path(pid, "ns/mnt"), os.O_RDONLY | os.O_CLOEXEC))
        user = _opened(opened, fcntl.ioctl(mounts, _GET_USER_NAMESPACE))
        if os.path.samestat(os.fstat(user), host_user):
            # Only who may mount on the host creates such a namespace.
            return _BY_ROOT
        (owner,) = struct.unpack("I", fcntl.ioctl(user, _GET_OWNER_UID, b"\0" * 4))
        origin = parse_cgroup(proc_files.read(self._path(pid, "cgroup")), self._own_container())
        in_roots_container = bool(origin.container_id) and "@" not in str(origin.unit_or_container)
        if (owner == _ROOT) != in_roots_container:
            # A user within a container of root's engine, or root in one whose engine uses no user namespace.
            return _UNTRUSTED
        first = _opened(opened, os.open(self._path(pid, "ns/pid"), os.O_RDONLY | os.O_CLOEXEC))
        if os.path.samestat(os.fstat(first), host_pid):
            above = _opened(opened, fcntl.ioctl(user, _GET_PARENT))
            is_first = owner != _ROOT and os.path.samestat(os.fstat(above), host_user)
            return _BY_ENGINE if is_first else _UNTRUSTED
        # No process leaves the PID namespace that the engine created, so the topmost one has the engine's user namespace.
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
    """What is mounted for a process."""

    def __init__(self, text: str) -> None:
        # No name of a tenant has a character that is escaped there.
        words = (line.split(" ", 5) for line in text.split("\n"))
        self._mounts = [_Mount((line[2], line[3]), line[4]) for line in words if len(line) > 5]

    def _quota_folders(self) -> Dict[str, _Mount]:
        """Return the mounted quota folders by name, as the library finds them."""
        split = ((mount, *mount.point.rpartition("/")) for mount in self._mounts)
        return {name: mount for mount, folder, _slash, name in split if folder == "/" + SETTINGS}

    def names(self) -> set[str]:
        return set(self._quota_folders())

    def source(self, name: str) -> Source:
        device, path = self._quota_folders()[name].source
        return device, path[: -len(_DELETED)] if path.endswith(_DELETED) else path

    def at(self, path: str) -> Source | None:
        """Return what a path without links leads to; None where nothing is mounted above it."""
        found = None
        for mount in self._mounts:
            above = mount.point.rstrip("/") + "/"
            if (path + "/").startswith(above) and (found is None or len(mount.point) >= len(found.point)):
                found = mount
        if found is None:
            return None
        rest = path[len(found.point.rstrip("/")) :]
        return found.source[0], found.source[1].rstrip("/") + rest or "/"
