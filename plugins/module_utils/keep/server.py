# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve a socket to which every user may connect, such as the keep socket.

Connections, bytes, time and requests are limited. A child process answers each request, with a timeout. Meanwhile,
other connections wait in the socket's queue.
"""

# This program prints to its user.
# pylint: disable=ansible-bad-function
from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import selectors
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Callable, Deque

from ..errors import FleetError
from ..holders.cgroup import parse_cgroup
from ..holders.peer_owner import own_container
from ..processes import passed_files, peer
from ..processes.accounts import account_of_id, is_foreign
from ..processes.bounded import bounded
from .keeps import KeepError

SOCKET = "/run/openfleet-gpu-keep.sock"
MOST_LINE_BYTES, MOST_ANSWER_BYTES = 4096, 65536
#: Maximum number of open connections of all users and of one user, and the seconds in which a client must send its
#: line.
MOST_CONNECTIONS, MOST_OF_USER, LINE_SECONDS = 32, 2, 5.0
_MINUTE = 60.0
#: Time limit in seconds for a scan of the host's processes.
ANSWER_SECONDS = 30.0
#: Seconds without requests after which the service ends. The socket unit starts it again.
IDLE_SECONDS = 60.0
#: Maximum number of users whose requests are counted. A host has fewer users at the same time.
_MOST_USERS = 4096
#: Maximum number of new connections before open ones are read again.
_MOST_AT_ONCE = 64
_ROOT = 0
#: Socket option SO_PEERPIDFD, available since Linux 6.5. Python's socket module has no constant for it.
_SO_PEERPIDFD = 77

#: A function that takes the line and the user id, and returns the answer as JSON.
Answer = Callable[[bytes, int], str]


class _BusyError(KeepError):
    """A request is rejected, but the client can send it again later."""


@dataclass
class Connection:
    """An open connection, and the process that connected, according to the kernel."""

    socket: socket.socket
    uid: int
    pid: int
    ends: float
    line: bytearray = field(default_factory=bytearray)


class Server:
    """Serves a listening socket until no requests arrive for a while.

    `command` is the command that sends valid requests, for messages.
    """

    #: Maximum number of requests per user and minute.
    most_requests = 20

    def __init__(
        self,
        listener: socket.socket,
        answer: Answer,
        log: Callable[[str], None] = print,
        command: str = "gpu-layout keep",
    ) -> None:
        self._listener, self._answer, self._log, self._command = listener, answer, log, command
        self._open: dict[int, Connection] = {}
        self._requests: dict[int, Deque[float]] = {}
        #: Connections on which a client passed a file. This process neither receives nor closes the file.
        self._left: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()

    def serve(self, idle_seconds: float = IDLE_SECONDS) -> None:
        """Serve requests. Return after `idle_seconds` without a connection."""
        self._listener.setblocking(False)
        passed_files.refuse(self._listener)
        self._selector.register(self._listener, selectors.EVENT_READ)
        last = time.monotonic()
        try:
            while self._is_needed() or self._left or time.monotonic() - last < idle_seconds:
                for key, _events in self._selector.select(1.0):
                    last = time.monotonic()
                    if key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._handle(key.fd)
                self._end_slow()
                self._tick()
        finally:
            for connection in list(self._open.values()):
                self._close(connection)
            self._selector.close()

    def _is_needed(self) -> bool:
        """Return whether the service must not end."""
        return bool(self._open)

    def _tick(self) -> None:
        """Do the service's other work, about once a second."""

    def _handle(self, descriptor: int) -> None:
        """Read from a connection."""
        self._read(self._open[descriptor])

    def _accept(self) -> None:
        """Accept all waiting connections, so that one user cannot fill the queue."""
        for _number in range(_MOST_AT_ONCE):
            try:
                made, _address = self._listener.accept()
            except OSError:
                return
            self._take(made)

    def _take(self, made: socket.socket) -> None:
        if passed_files.refuse(made) and passed_files.waits(made):
            self._left.append(made)
            return
        made.setblocking(False)
        try:
            uid = caller(made, self._command)
            self._admit(uid)
        except FleetError as error:
            send(made, failure(error, again=isinstance(error, _BusyError)))
            made.close()
            return
        self._open[made.fileno()] = Connection(made, uid, _credentials(made)[0], time.monotonic() + LINE_SECONDS)
        self._selector.register(made, selectors.EVENT_READ)

    def _admit(self, uid: int) -> None:
        """Raise KeepError if a limit for connections or requests is reached.

        Only the limit for all connections applies to root.
        """
        if uid == _ROOT and len(self._open) < MOST_CONNECTIONS:
            return
        if sum(one.uid == uid for one in self._open.values()) >= MOST_OF_USER or len(self._open) >= MOST_CONNECTIONS:
            raise _BusyError("this host", "there are too many requests at once", "Try again in a few seconds.")
        now = time.monotonic()
        if len(self._requests) >= _MOST_USERS:
            self._requests = {user: times for user, times in self._requests.items() if times[-1] > now - _MINUTE}
        times = self._requests.setdefault(uid, deque(maxlen=self.most_requests))
        if len(times) == self.most_requests and times[0] > now - _MINUTE:
            raise KeepError("this host", "you sent %d requests within a minute" % self.most_requests, "Wait a minute.")
        times.append(now)

    def _read(self, connection: Connection) -> None:
        try:
            chunk = connection.socket.recv(MOST_LINE_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        connection.line += chunk
        line, newline, _rest = bytes(connection.line).partition(b"\n")
        if newline and len(line) <= MOST_LINE_BYTES:
            self._reply(connection, line)
        elif len(connection.line) > MOST_LINE_BYTES:
            send(connection.socket, failure(KeepError("the request", "it is too long", "Use %s." % self._command)))
            self._close(connection)
        elif not chunk:
            self._close(connection)

    def _reply(self, connection: Connection, line: bytes) -> None:
        began = time.monotonic()
        try:
            text = bounded(lambda: self._answer(line, connection.uid), "this host", ANSWER_SECONDS, MOST_ANSWER_BYTES)
        except FleetError as error:
            text = failure(error)
        else:
            self._log_change(text)
        send(connection.socket, text)
        self._close(connection)
        # The other connections were not read while this one was.
        for other in self._open.values():
            other.ends += time.monotonic() - began

    def _log_change(self, text: str) -> None:
        line = json.loads(text).get("log")
        if line:
            self._log(line)

    def _end_slow(self) -> None:
        now = time.monotonic()
        for connection in [one for one in self._open.values() if one.ends < now]:
            error = KeepError(
                "the request", "it did not arrive within %d seconds" % LINE_SECONDS, "Use %s." % self._command
            )
            send(connection.socket, failure(error))
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        self._selector.unregister(connection.socket)
        del self._open[connection.socket.fileno()]
        connection.socket.close()


def failure(error: FleetError, again: bool = False) -> str:
    """Return the answer for a failed request.

    `again` is true if the client may send the request again soon.
    """
    fields = {"where": error.where, "problem": error.problem, "cure": error.cure}
    return json.dumps({"error": {**fields, **({"again": True} if again else {})}})


def _credentials(connection: socket.socket) -> tuple[int, int]:
    """Return the PID and user id of the process that connected."""
    pid, uid, _gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def caller(connection: socket.socket, command: str = "gpu-layout keep") -> int:
    """Return the user at the other end of a connection, according to the kernel.

    Raises KeepError. Refuses processes in containers: the socket may be mounted in a container, and root in the
    container is not root on the host. `command` is for messages.
    """
    pid, uid = _credentials(connection)
    with peer.looking_at(pid) as process:
        # The pidfd shows whether the PID still belongs to the process that connected.
        if process is None or _pid_by_descriptor(connection) not in (None, pid) or uid not in process.uids:
            raise KeepError("this host", "the requesting process has ended", "Use %s." % command)
        if is_foreign("%s/%d" % (peer.PROC, pid)):
            # In a user namespace, a user has tens of thousands of user ids, each with its own limits.
            raise KeepError(
                "this host",
                "requests from a user namespace are refused",
                "Run `%s` outside of containers and unshare." % command,
            )
        if account_of_id(uid) != uid:
            # This user id comes from a set-user-id file that was created in a user namespace.
            raise KeepError(
                "this host",
                "requests with a subordinate user id are refused",
                "Run `%s` as the account itself." % command,
            )
        if parse_cgroup(process.cgroup, own_container()).container_id:
            raise KeepError(
                "this host", "requests from a container are refused", "Run `%s` on the host itself." % command
            )
    return uid


def _pid_by_descriptor(connection: socket.socket) -> int | None:
    """Return the PID of the process that connected.

    Returns -1 if the process has ended or is unknown, and None before Linux 6.5.
    """
    try:
        descriptor = struct.unpack("i", connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4))[0]
    except OSError as error:
        # If the process has ended, Linux 6.5 to 6.15 return no descriptor, and another process may have got the PID.
        return None if error.errno == errno.ENOPROTOOPT else -1
    try:
        with open("/proc/self/fdinfo/%d" % descriptor) as file:  # noqa: PTH123
            match = re.search(r"^Pid:\s*(-?\d+)$", file.read(), re.MULTILINE)
    finally:
        os.close(descriptor)
    return int(match.group(1)) if match else -1


def send(connection: socket.socket, text: str) -> None:
    """Send a text without waiting for the reader.

    The text must fit into the socket's buffer.
    """
    with contextlib.suppress(OSError):
        connection.send(text.encode() + b"\n", socket.MSG_NOSIGNAL)
