# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve the keep socket, to which every user may connect, with limits of connections, bytes, time and requests.

A child process answers each request, with a timeout. Meanwhile other connections wait in the socket's queue.
"""

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

from .. import passed_files, peer
from ..accounts import account_of_id, is_foreign
from ..bounded import bounded
from ..errors import FleetError
from ..holders.cgroup import parse_cgroup
from ..peer_owner import own_container
from .keeps import KeepError

SOCKET = "/run/openfleet-gpu-keep.sock"
MOST_LINE_BYTES, MOST_ANSWER_BYTES = 4096, 65536
#: Open connections in all and per user, and seconds to send the line.
MOST_CONNECTIONS, MOST_OF_USER, LINE_SECONDS = 32, 2, 5.0
#: Requests per user and minute.
MOST_REQUESTS, _MINUTE = 20, 60.0
#: Limit for a scan of the host's processes.
ANSWER_SECONDS = 30.0
#: The service ends after this idle time. The socket unit starts it again.
IDLE_SECONDS = 60.0
#: Users whose requests are counted: more than a host has at once.
_MOST_USERS = 4096
#: Connections accepted before open ones are read again.
_MOST_AT_ONCE = 64
_ROOT = 0
#: Since Linux 6.5; the constant is not in Python's socket module.
_SO_PEERPIDFD = 77

#: Takes the line and the uid, returns the answer as JSON.
Answer = Callable[[bytes, int], str]


class _BusyError(KeepError):
    """A request that can be sent again after others were answered."""


@dataclass
class _Connection:
    socket: socket.socket
    uid: int
    ends: float
    line: bytearray = field(default_factory=bytearray)


class Server:
    """Serves a listening socket until it is idle for a while."""

    def __init__(self, listener: socket.socket, answer: Answer, log: Callable[[str], None] = print) -> None:
        self._listener, self._answer, self._log = listener, answer, log
        self._open: dict[int, _Connection] = {}
        self._requests: dict[int, Deque[float]] = {}
        #: Connections that already carry a passed file, which is neither received nor closed.
        self._left: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()

    def serve(self, idle_seconds: float = IDLE_SECONDS) -> None:
        """Return after `idle_seconds` without a connection."""
        self._listener.setblocking(False)
        passed_files.refuse(self._listener)
        self._selector.register(self._listener, selectors.EVENT_READ)
        last = time.monotonic()
        try:
            while self._open or self._left or time.monotonic() - last < idle_seconds:
                for key, _events in self._selector.select(1.0):
                    last = time.monotonic()
                    if key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._read(self._open[key.fd])
                self._end_slow()
        finally:
            for connection in list(self._open.values()):
                self._close(connection)
            self._selector.close()

    def _accept(self) -> None:
        """Accept all waiting connections, so that one user does not fill the queue."""
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
            uid = caller(made)
            self._admit(uid)
        except FleetError as error:
            _send(made, failure(error, again=isinstance(error, _BusyError)))
            made.close()
            return
        self._open[made.fileno()] = _Connection(made, uid, time.monotonic() + LINE_SECONDS)
        self._selector.register(made, selectors.EVENT_READ)

    def _admit(self, uid: int) -> None:
        """Raise KeepError at a limit of connections or requests. Root only has the limit for all."""
        if uid == _ROOT and len(self._open) < MOST_CONNECTIONS:
            return
        if sum(one.uid == uid for one in self._open.values()) >= MOST_OF_USER or len(self._open) >= MOST_CONNECTIONS:
            raise _BusyError("this host", "there are too many requests at once", "Try again in a few seconds.")
        now = time.monotonic()
        if len(self._requests) >= _MOST_USERS:
            self._requests = {user: times for user, times in self._requests.items() if times[-1] > now - _MINUTE}
        times = self._requests.setdefault(uid, deque(maxlen=MOST_REQUESTS))
        if len(times) == MOST_REQUESTS and times[0] > now - _MINUTE:
            raise KeepError("this host", "you sent %d requests within a minute" % MOST_REQUESTS, "Wait a minute.")
        times.append(now)

    def _read(self, connection: _Connection) -> None:
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
            _send(connection.socket, failure(KeepError("the request", "it is too long", "Use gpu-layout keep.")))
            self._close(connection)
        elif not chunk:
            self._close(connection)

    def _reply(self, connection: _Connection, line: bytes) -> None:
        began = time.monotonic()
        try:
            text = bounded(lambda: self._answer(line, connection.uid), "this host", ANSWER_SECONDS, MOST_ANSWER_BYTES)
        except FleetError as error:
            text = failure(error)
        else:
            self._log_change(text)
        _send(connection.socket, text)
        self._close(connection)
        # Other connections were not read meanwhile.
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
                "the request", "it did not arrive within %d seconds" % LINE_SECONDS, "Use gpu-layout keep."
            )
            _send(connection.socket, failure(error))
            self._close(connection)

    def _close(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        del self._open[connection.socket.fileno()]
        connection.socket.close()


def failure(error: FleetError, again: bool = False) -> str:
    """Return the answer to a failed request. `again`: the client may send it again soon."""
    fields = {"where": error.where, "problem": error.problem, "cure": error.cure}
    return json.dumps({"error": {**fields, **({"again": True} if again else {})}})


def caller(connection: socket.socket) -> int:
    """Return the user at the other end of a connection, as reported by the kernel. Raises KeepError.

    Processes in containers are refused: a container may have the socket mounted, and its root is not the host's.
    """
    pid, uid, _gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    with peer.looking_at(pid) as process:
        # The pidfd shows whether the pid still belongs to the process that connected.
        if process is None or _pid_by_descriptor(connection) not in (None, pid) or uid not in process.uids:
            raise KeepError("this host", "the requesting process has ended", "Use gpu-layout keep.")
        if is_foreign("%s/%d" % (peer.PROC, pid)):
            # There a user has tens of thousands of user ids, each with its own limits.
            raise KeepError(
                "this host",
                "requests from a user namespace are refused",
                "Run gpu-layout keep outside of containers and unshare.",
            )
        if account_of_id(uid) != uid:
            # The id comes from a set-user-id file created in a user namespace.
            raise KeepError(
                "this host",
                "requests with a subordinate user id are refused",
                "Run gpu-layout keep as the account itself.",
            )
        if parse_cgroup(process.cgroup, own_container()).container_id:
            raise KeepError(
                "this host", "requests from a container are refused", "Run gpu-layout keep on the host itself."
            )
    return uid


def _pid_by_descriptor(connection: socket.socket) -> int | None:
    """Return the pid of the process that connected, -1 if it has ended or is unknown, or None before Linux 6.5."""
    try:
        descriptor = struct.unpack("i", connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4))[0]
    except OSError as error:
        # Linux 6.5 to 6.15 return no descriptor for an ended process, whose pid may have been reused.
        return None if error.errno == errno.ENOPROTOOPT else -1
    try:
        with open("/proc/self/fdinfo/%d" % descriptor) as file:  # noqa: PTH123
            match = re.search(r"^Pid:\s*(-?\d+)$", file.read(), re.MULTILINE)
    finally:
        os.close(descriptor)
    return int(match.group(1)) if match else -1


def _send(connection: socket.socket, text: str) -> None:
    """Send a text without waiting for the reader: it fits the socket's buffer."""
    with contextlib.suppress(OSError):
        connection.send(text.encode() + b"\n", socket.MSG_NOSIGNAL)
