# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verify the process at the other end of a TCP connection before sending secrets.

While a service restarts, any user can bind its port. So a client connects first. Then it searches the kernel's table
for the server's end of this connection (proc_pid_net(5), proc_net_tcp.rst), and the process that has it open. A process
that binds the port later does not get this connection.

The owner's processes, and root, could still pass on the socket or the data, but they could read the secret anyway.
"""

from __future__ import annotations

import contextlib
import math
import os
import pwd
import re
import socket
import sys
import time
from pathlib import Path
from typing import Iterator, Tuple

from ..frozen import frozen
from ..printable import printable

#: Seconds for the server to accept the connection. Before that, no process has the socket open.
ACCEPT_SECONDS = 10.0
_POLL_SECONDS = 0.05
#: Time limit in seconds for finding the peer. The time is checked after _EVERY open files.
LOOK_SECONDS, _EVERY = 20.0, 256
#: Tests replace this path.
PROC = "/proc"
_IDS = re.compile(r"^Uid:((?:\s+\d+){4})$", re.MULTILINE)
_MAPPED = b"\0" * 10 + b"\xff\xff"

#: (address, port). The address is in network order. An IPv4 address always has 4 bytes.
End = Tuple[bytes, int]


class PeerError(Exception):
    """The peer of a connection is unknown or is not the owner. Nothing was sent."""


class Process:
    """A process, identified by an open descriptor of its folder in /proc.

    The descriptor stays bound to this process, even if another process gets its PID.
    """

    def __init__(self, pid: int, folder: int) -> None:
        self.pid = pid
        self._folder = folder
        #: Text of /proc/PID/cgroup.
        self.cgroup = self.read("cgroup")
        #: The real, effective, saved and file system user ids.
        self.uids = {int(text) for text in _numbers(self.read("status"))}

    @property
    def executable(self) -> str:
        try:
            return os.readlink("exe", dir_fd=self._folder)
        except OSError:
            return ""

    def sockets(self, deadline: float = math.inf) -> set[int]:
        """Return the inodes of the process's sockets.

        Returns an empty set if the process has ended or cannot be read. Stops at `deadline` (seconds of
        time.monotonic()), because a process may have a million open files.
        """
        inodes: set[int] = set()
        if time.monotonic() > deadline:
            return inodes
        try:
            descriptors = os.open("fd", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._folder)
        except OSError:
            return inodes
        try:
            try:
                names = os.listdir(descriptors)  # noqa: PTH208 by descriptor
            except OSError:
                # The process ended after its folder was opened.
                names = []
            for count, name in enumerate(names):
                if count % _EVERY == 0 and time.monotonic() > deadline:
                    break
                with contextlib.suppress(OSError):
                    target = os.readlink(name, dir_fd=descriptors)
                    if target.startswith("socket:["):
                        inodes.add(int(target[len("socket:[") : -1]))
        finally:
            os.close(descriptors)
        return inodes

    def connections(self) -> list[Connection]:
        """Return all TCP sockets in the process's network namespace."""
        return [entry for name in ("net/tcp", "net/tcp6") for entry in _parse(self.read(name))]

    def __str__(self) -> str:
        """Return the PID, program and user, with control characters escaped."""
        users = ", ".join(_user(uid) for uid in sorted(self.uids))
        return printable("pid %d (%s) of %s" % (self.pid, self.executable or "program unknown", users))

    def read(self, name: str) -> str:
        """Return the text of a file in the process's folder.

        Returns "" if the process has ended or the file cannot be read.
        """
        try:
            descriptor = os.open(name, os.O_RDONLY, dir_fd=self._folder)
        except OSError:
            return ""
        # End lines only at line feeds, because names may contain carriage returns (see proc_files).
        with os.fdopen(descriptor, errors="replace", newline="\n") as file:
            try:
                return file.read()
            except OSError:
                return ""


@frozen
class Connection:
    """An entry in /proc/PID/net/tcp.

    `inode` is 0 until a process accepts the connection.
    """

    local: End
    remote: End
    inode: int


class Owner:
    """The service that should be at the other end of a connection."""

    #: Name of the service in messages.
    name = ""

    def has(self, process: Process) -> bool:
        """Return whether the process belongs to the service."""
        raise NotImplementedError

    def forwarder(self, process: Process) -> bool:
        """Return whether the process is a forwarder that root runs.

        The forwarder's target is checked separately.
        """
        return False


def check(connection: socket.socket, owner: Owner, seconds: float = ACCEPT_SECONDS) -> None:
    """Return when the peer of a connected socket is confirmed as the owner.

    Raises PeerError if the peer is not one of the owner's processes. `seconds` is the time for the server to accept the
    connection.
    """
    near, far = (_end(name) for name in (connection.getsockname(), connection.getpeername()))
    deadline = time.monotonic() + seconds
    while True:
        problem = _problem(near, far, owner)
        if not problem:
            return
        if time.monotonic() > deadline:
            raise PeerError(problem)
        time.sleep(_POLL_SECONDS)


def _problem(near: End, far: End, owner: Owner) -> str:
    """Return "" if the peer is confirmed, or a problem that may be temporary.

    A temporary problem may disappear when the server calls accept(). Raises PeerError for other problems.
    """
    table = _own_connections()
    until = time.monotonic() + LOOK_SECONDS
    inode = next((entry.inode for entry in table if (entry.local, entry.remote) == (far, near)), None)
    if inode is None:
        if any(_has_end_beyond(process, near, until) for process in _processes() if owner.has(process)):
            return ""
        return (
            "no process in this host's network has the other end of the connection: it leaves the host, or address translation "
            "does not lead to %s" % owner.name
        )
    if inode == 0:
        return "nothing accepts the connection"
    if any(inode in process.sockets(until) for process in _processes() if owner.has(process)):
        return ""
    stranger = ""
    for process in _processes():
        if inode not in process.sockets(until):
            continue
        if owner.forwarder(process) and _leads_to(process, table, owner, until):
            return ""
        stranger = stranger or str(process)
    if time.monotonic() > until and not stranger:
        raise PeerError("the process at the other end of the connection was not found within %d s" % LOOK_SECONDS)
    if stranger:
        raise PeerError("the port is held by %s, which is not a process of %s" % (stranger, owner.name))
    return "no visible process has the other end of the connection"


def _has_end_beyond(process: Process, near: End, until: float = math.inf) -> bool:
    """Return whether a process in another network namespace is the peer.

    For example, a container with a published port. Only root can set up the necessary address translation. It changes
    addresses, but keeps the client's port if that port is free. If it is not, returns False.
    """
    sockets = process.sockets(until)
    return any(
        entry.remote[1] == near[1]
        and entry.inode in sockets
        and (entry.remote[0] == near[0] or _is_of_this_host(entry.remote[0]))
        for entry in process.connections()
    )


def _leads_to(forwarder: Process, table: list[Connection], owner: Owner, until: float) -> bool:
    """Return whether a connection of the forwarder leads to the owner.

    Checking one connection is enough, because all connections of a docker-proxy have the same target.
    """
    sockets = forwarder.sockets(until)
    ends = {(entry.remote, entry.local) for entry in table if entry.inode in sockets}
    for process in _processes():
        if owner.has(process):
            own = process.sockets(until)
            if any((entry.local, entry.remote) in ends and entry.inode in own for entry in process.connections()):
                return True
    return False


def _is_of_this_host(address: bytes) -> bool:
    family = socket.AF_INET if len(address) == 4 else socket.AF_INET6
    with socket.socket(family) as probe:
        try:
            probe.bind((socket.inet_ntop(family, address), 0))
        except OSError:
            return False
    return True


# -- The kernel's tables -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def looking_at(pid: int) -> Iterator[Process | None]:
    """Yield the process, or None if it has ended.

    The process is only valid in the block.
    """
    try:
        folder = os.open("%s/%d" % (PROC, pid), os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield None
        return
    try:
        yield Process(pid, folder)
    finally:
        os.close(folder)


def _processes() -> Iterator[Process]:
    """Yield all processes.

    Each process is only valid until the next one is requested.
    """
    for name in os.listdir(PROC):  # noqa: PTH208 thousands of them
        if name.isdigit():
            with looking_at(int(name)) as process:  # pylint: disable=contextmanager-generator-missing-cleanup
                if process:
                    yield process


def _own_connections() -> list[Connection]:
    """Return all TCP sockets in the network namespace of this process."""
    folder = Path(PROC, "self/net")
    return [
        entry for name in ("tcp", "tcp6") if (folder / name).exists() for entry in _parse((folder / name).read_text())
    ]


def _parse(text: str) -> Iterator[Connection]:
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9:
            yield Connection(end_of(fields[1]), end_of(fields[2]), int(fields[9]))


def end_of(text: str) -> End:
    """Parse an address from /proc/net/tcp.

    The address has 32-bit words in native byte order, followed by the port.
    """
    address, _colon, port = text.partition(":")
    words = [int(address[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(address), 8)]
    return _plain(b"".join(words)), int(port, 16)


def _end(name: tuple) -> End:
    """Return the (address, port) from a result of getsockname() or getpeername()."""
    host = str(name[0]).partition("%")[0]
    return _plain(socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)), int(name[1])


def _plain(address: bytes) -> bytes:
    return address[len(_MAPPED) :] if address.startswith(_MAPPED) else address


def _numbers(status: str) -> list[str]:
    match = _IDS.search(status)
    return match.group(1).split() if match else []


def _user(uid: int) -> str:
    try:
        return "user %s (uid %d)" % (pwd.getpwuid(uid).pw_name, uid)
    except KeyError:
        return "uid %d" % uid
