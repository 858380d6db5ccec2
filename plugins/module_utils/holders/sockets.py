# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell which holders serve clients over TCP: whether their unit or container listens, and how many clients it has now.

By the kernel's tables of each network namespace and the sockets that processes have open (proc_pid_net(5), proc_net_tcp.rst). All
of it is bounded: what cannot be looked at in time, or is too much, is not known, and never no.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from typing import Iterator, Sequence

from ..frozen import frozen
from ..model import Holder
from ..peer import End, end_of
from .cgroup import Origin, parse_cgroup
from .open_files import SOCKET
from .processes import Processes
from .tasks import can_compare, tables

#: Of a unit or container, of a process of it, and of a network namespace.
_MOST_PROCESSES, _MOST_FILES, _MOST_SOCKETS = 4096, 1 << 16, 1 << 16
#: A line of the table has 150 letters, or 178 with addresses of IPv6.
_MOST_BYTES = _MOST_SOCKETS * 180
#: States of a socket in the table (include/net/tcp_states.h).
_ESTABLISHED, _LISTEN = "01", "0A"
_NOBODY = Origin()


class _UnknownError(Exception):
    """It cannot be told."""


@frozen
class _Socket:
    """A line of the table: ends as the kernel writes them. The inode is 0 until a process has accepted the connection."""

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
    """Return the holders with `listens` and `clients`, both None where they cannot be told.

    `deadline` is in seconds of time.monotonic(). Raises nothing.
    """
    look = _SocketReading(processes, deadline)
    return [holder if holder.pid is None else replace(holder, **look.at(holder.pid)) for holder in holders]


@dataclass
class _SocketReading:
    """Reads what each process has open, and each table, once."""

    processes: Processes
    deadline: float
    _origins: dict[int, Origin] = field(default_factory=dict)
    _members: dict[Origin, list[int]] = field(default_factory=dict)
    _inodes: dict[int, set[int] | None] = field(default_factory=dict)
    _tables: dict[str, list[_Socket]] = field(default_factory=dict)
    _found: dict[Origin | int, dict[str, bool | int | None]] = field(default_factory=dict)

    def at(self, pid: int) -> dict[str, bool | int | None]:
        """Return `listens` and `clients` of the unit or container of a process, or of itself where it has neither."""
        try:
            self._in_time()
            origin = self._origin(pid)
            group: Origin | int = pid if origin == _NOBODY else origin
            if group not in self._found:
                self._found[group] = self._service([pid] if origin == _NOBODY else self._of(origin))
            return self._found[group]
        except _UnknownError:
            return {"listens": None, "clients": None}

    def _service(self, members: Sequence[int]) -> dict[str, bool | int | None]:
        if len(members) > _MOST_PROCESSES:
            return {"listens": None, "clients": None}
        own: set[int] = set()
        namespaces: dict[str, list[int]] = {}
        looked_at = False
        for pid in members:
            inodes = self._sockets_of(pid)
            if inodes is None:
                # It has ended, and its sockets with it.
                continue
            looked_at = True
            own |= inodes
            name = self._namespace(pid) if inodes else None
            if name is not None:
                namespaces.setdefault(name, []).append(pid)
        if not looked_at:
            raise _UnknownError
        table = [socket for name, pids in namespaces.items() for socket in self._table(name, pids)]
        ports = {socket.port for socket in table if socket.listens and socket.inode in own}
        return {"listens": bool(ports), "clients": _clients(table, ports, own)}

    def _origin(self, pid: int) -> Origin:
        """By its cgroup, as the kernel has it; for a container without one, by podman's monitor."""
        if pid not in self._origins:
            self._origins[pid] = self.processes.origin(pid)
        return self._origins[pid]

    def _of(self, origin: Origin) -> list[int]:
        """The processes of a unit or container."""
        if not self._members:
            # A container that only its monitor names is in the monitor's own cgroup, or in none.
            monitored = bool(self.processes.named("conmon"))
            known: dict[str, Origin] = {}
            for pid in self.processes.seen:
                self._in_time()
                if monitored:
                    found = self._origin(pid)
                else:
                    text = _read(self.processes.folder(pid) + "/cgroup")
                    if text not in known:
                        known[text] = parse_cgroup(text, self.processes.own_container)
                    found = known[text]
                self._members.setdefault(found, []).append(pid)
        return self._members.get(origin, [])

    def _sockets_of(self, pid: int) -> set[int] | None:
        """The inodes of its sockets; None where it has ended."""
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
                            # Closed meanwhile.
                            continue
                        if target.startswith(SOCKET):
                            yield int(target[len(SOCKET) : -1])
            except (FileNotFoundError, ProcessLookupError):
                if task == pid:
                    raise
                # The thread has ended.

    def _namespace(self, pid: int) -> str | None:
        """The network namespace of a process; None where it has ended."""
        try:
            return os.readlink(self.processes.folder(pid) + "/ns/net")
        except (FileNotFoundError, ProcessLookupError):
            return None
        except OSError:
            raise _UnknownError from None

    def _table(self, namespace: str, pids: Sequence[int]) -> list[_Socket]:
        """The listening sockets and the connections of a network namespace, by the first of its processes that is there yet."""
        if namespace not in self._tables:
            for pid in pids:
                self._in_time()
                texts = [_table_of("%s/net/%s" % (self.processes.folder(pid), name)) for name in ("tcp", "tcp6")]
                # Behind it, so that the pid has not become another process's.
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
    """How many connections to these ports end in a socket that is not the service's own."""
    connections = [socket for socket in table if not socket.listens]
    # What the service has open to its own ports. Some of its ends may be of IPv6, where the others are of IPv4.
    inner = {
        (end_of(socket.remote), end_of(socket.local))
        for socket in connections
        if socket.remote_port in ports and socket.inode in own
    }
    return sum(
        # One that waits to be accepted is a client already, of no process yet.
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
    """The text; None where there is none, as of IPv6 on a host without it. Raises _UnknownError where it is too long."""
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
