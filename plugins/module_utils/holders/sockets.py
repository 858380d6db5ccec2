# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find out whether a holder's service listens on TCP, and how many clients it has.

The service is the holder's unit or container. The sources are the kernel's socket tables of each network namespace, and
the open sockets of processes (proc_pid_net(5), proc_net_tcp.rst). If a time or size limit is reached, the result is
None (unknown), not False.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from typing import Iterator, Sequence

from ..frozen import frozen
from ..model import Holder
from ..processes.peer import End, end_of
from .cgroup import Origin, parse_cgroup
from .open_files import SOCKET
from .processes import Processes
from .tasks import can_compare, tables

#: Maximum number of processes of a unit or container, of files of a process, and of sockets in a network namespace.
_MOST_PROCESSES, _MOST_FILES, _MOST_SOCKETS = 4096, 1 << 16, 1 << 16
#: Maximum size of a socket table in bytes. A line has 150 characters, or 178 with IPv6.
_MOST_BYTES = _MOST_SOCKETS * 180
#: States of a socket in a socket table (include/net/tcp_states.h).
_ESTABLISHED, _LISTEN = "01", "0A"
_NO_ORIGIN = Origin()


class _UnknownError(Exception):
    """The result cannot be determined."""


@frozen
class _Socket:
    """A line of a socket table, with addresses in the kernel's format.

    `inode` is 0 until the connection is accepted.
    """

    local: str
    remote: str
    listens: bool
    inode: int

    @property
    def port(self) -> str:
        return self.local.rpartition(":")[2]

    @property
    def remote_port(self) -> str:
        return self.remote.rpartition(":")[2]


def with_sockets(holders: Sequence[Holder], processes: Processes, deadline: float) -> list[Holder]:
    """Set `listens` and `clients` of each holder. Both are None if unknown.

    `deadline` is in seconds of time.monotonic(). Raises no errors.
    """
    reading = _SocketReading(processes, deadline)
    return [holder if holder.pid is None else replace(holder, **reading.at(holder.pid)) for holder in holders]


@dataclass
class _SocketReading:
    """Read the open sockets of processes, and socket tables. Each is read only once."""

    processes: Processes
    deadline: float
    _origins: dict[int, Origin] = field(default_factory=dict)
    _members: dict[Origin, list[int]] = field(default_factory=dict)
    _inodes: dict[int, set[int] | None] = field(default_factory=dict)
    _tables: dict[str, list[_Socket]] = field(default_factory=dict)
    _results: dict[Origin | int, dict[str, bool | int | None]] = field(default_factory=dict)

    def at(self, pid: int) -> dict[str, bool | int | None]:
        """Return `listens` and `clients` for a process's service.

        The service is the process's unit or container, or else the process itself.
        """
        try:
            self._in_time()
            origin = self._origin(pid)
            group: Origin | int = pid if origin == _NO_ORIGIN else origin
            if group not in self._results:
                self._results[group] = self._service([pid] if origin == _NO_ORIGIN else self._of(origin))
            return self._results[group]
        except _UnknownError:
            return {"listens": None, "clients": None}

    def _service(self, members: Sequence[int]) -> dict[str, bool | int | None]:
        if len(members) > _MOST_PROCESSES:
            return {"listens": None, "clients": None}
        own: set[int] = set()
        namespaces: dict[str, list[int]] = {}
        alive = False
        for pid in members:
            inodes = self._sockets_of(pid)
            if inodes is None:
                # The process has ended, and its sockets are closed.
                continue
            alive = True
            own |= inodes
            name = self._namespace(pid) if inodes else None
            if name is not None:
                namespaces.setdefault(name, []).append(pid)
        if not alive:
            raise _UnknownError
        table = [socket for name, pids in namespaces.items() for socket in self._table(name, pids)]
        ports = {socket.port for socket in table if socket.listens and socket.inode in own}
        return {"listens": bool(ports), "clients": _clients(table, ports, own)}

    def _origin(self, pid: int) -> Origin:
        """Return a process's unit or container.

        It is identified by the cgroup or Podman's monitor.
        """
        if pid not in self._origins:
            self._origins[pid] = self.processes.origin(pid)
        return self._origins[pid]

    def _of(self, origin: Origin) -> list[int]:
        """Return the processes of a unit or container."""
        if not self._members:
            # A container without a cgroup can be identified only by Podman's monitor.
            monitored = bool(self.processes.named("conmon"))
            known: dict[str, Origin] = {}
            for pid in self.processes.seen:
                self._in_time()
                if monitored:
                    member_of = self._origin(pid)
                else:
                    text = _read(self.processes.folder(pid) + "/cgroup")
                    if text not in known:
                        known[text] = parse_cgroup(text, self.processes.own_container)
                    member_of = known[text]
                self._members.setdefault(member_of, []).append(pid)
        return self._members.get(origin, [])

    def _sockets_of(self, pid: int) -> set[int] | None:
        """Return the inodes of a process's sockets, or None if it has ended."""
        if pid not in self._inodes:
            try:
                self._inodes[pid] = set(self._inodes_of(pid))
            except (FileNotFoundError, ProcessLookupError):
                self._inodes[pid] = None
            except OSError:
                raise _UnknownError from None
        return self._inodes[pid]

    def _inodes_of(self, pid: int) -> Iterator[int]:
        count = 0
        for task, folder in tables(self.processes.proc, pid, can_compare(self.processes.proc)):
            try:
                with os.scandir(folder + "/fd") as entries:
                    for entry in entries:
                        if count == _MOST_FILES:
                            raise _UnknownError
                        if count % 1000 == 0:
                            self._in_time()
                        count += 1
                        try:
                            target = os.readlink(entry.path)
                        except FileNotFoundError:
                            # The file has been closed.
                            continue
                        if target.startswith(SOCKET):
                            yield int(target[len(SOCKET) : -1])
            except (FileNotFoundError, ProcessLookupError):
                if task == pid:
                    raise
                # The thread has ended.

    def _namespace(self, pid: int) -> str | None:
        """Return the network namespace of a process, or None if it has ended."""
        try:
            return os.readlink(self.processes.folder(pid) + "/ns/net")
        except (FileNotFoundError, ProcessLookupError):
            return None
        except OSError:
            raise _UnknownError from None

    def _table(self, namespace: str, pids: Sequence[int]) -> list[_Socket]:
        """Return a network namespace's listening sockets and connections.

        Reads the tables from the folder in /proc of the first running process in `pids`.
        """
        if namespace not in self._tables:
            for pid in pids:
                self._in_time()
                texts = [_table_of("%s/net/%s" % (self.processes.folder(pid), name)) for name in ("tcp", "tcp6")]
                # Check the namespace after the read, because another process may have got the PID.
                if texts[0] is not None and self._namespace(pid) == namespace:
                    self._tables[namespace] = [socket for text in texts if text for socket in _sockets(text)]
                    break
            else:
                raise _UnknownError
        return self._tables[namespace]

    def _in_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise _UnknownError


def _clients(table: Sequence[_Socket], ports: set[str], own: set[int]) -> int:
    """Count the connections to the service's ports from outside the service."""
    connections = [socket for socket in table if not socket.listens]
    # Leave out the service's connections to its own ports. One end may be IPv6 and the other IPv4.
    inner = {
        (end_of(socket.remote), end_of(socket.local))
        for socket in connections
        if socket.remote_port in ports and socket.inode in own
    }
    return sum(
        # Include connections that are not yet accepted, which have inode 0.
        socket.port in ports and (socket.inode in own or socket.inode == 0) and _ends(socket) not in inner
        for socket in connections
    )


def _ends(socket: _Socket) -> tuple[End, End]:
    return end_of(socket.local), end_of(socket.remote)


def _sockets(text: str) -> Iterator[_Socket]:
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] in (_ESTABLISHED, _LISTEN):
            yield _Socket(fields[1], fields[2], fields[3] == _LISTEN, int(fields[9]))


def _table_of(path: str) -> str | None:
    """Return the text of a table, or None if there is none (no IPv6).

    Raises _UnknownError if the table is too long.
    """
    text = _read(path, _MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise _UnknownError
    return text or None


def _read(path: str, most: int = -1) -> str:
    try:
        with open(path, errors="replace") as file:  # noqa: PTH123
            return file.read(most)
    except OSError:
        return ""
