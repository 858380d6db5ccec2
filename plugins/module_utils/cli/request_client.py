# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send requests to the services of this host, and read their answers."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from typing import Any, Mapping

from ..errors import FleetError
from ..printable import printable

#: struct timeval for SO_SNDTIMEO (socket(7)).
_TIMEVAL = struct.Struct("ll")
_CHUNK = 65536
#: Maximum size of an answer in bytes.
_MOST_BYTES = 1 << 20


def connect(connection: socket.socket, path: str, deadline: float, seconds: float, absent: FleetError) -> None:
    """Connect to a service. If the socket's queue is full, wait in the kernel.

    Raises `absent` if the service is not installed. Raises FleetError if the service accepts no connection before
    `deadline`, which is `seconds` after the start.
    """
    # With a Python timeout, the socket would be non-blocking, and the kernel would refuse the connection at once if the
    # queue is full (unix(7), EAGAIN).
    whole, microseconds = divmod(int(max(0.1, deadline - time.monotonic()) * 1e6), 1000000)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(whole, microseconds))
    try:
        connection.connect(path)
    except BlockingIOError:
        problem = "%s has too many requests, and accepted none for %d s" % (path, seconds)
        cure = "Try again. Root can list the clients with ss -xp | grep %s." % os.path.basename(path)  # noqa: PTH119
        raise type(absent)("this host", problem, cure) from None
    except OSError:
        raise absent from None


class Answers:
    """The answers on a connection. Each answer is a line with a JSON object."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._data = connection, b""

    def read(self) -> Mapping[str, Any] | None:
        """Return the next answer, or None if the connection ends without one."""
        with contextlib.suppress(OSError):
            while b"\n" not in self._data and len(self._data) <= _MOST_BYTES:
                chunk = self._connection.recv(_CHUNK)
                if not chunk:
                    break
                self._data += chunk
        line, _newline, self._data = self._data.partition(b"\n")
        try:
            answer = json.loads(line.decode())
        except ValueError:
            return None
        return answer if isinstance(answer, dict) else None


def is_busy(answer: Mapping[str, Any]) -> bool:
    """Return whether the service asks the client to send the request again."""
    error = answer.get("error")
    return isinstance(error, dict) and bool(error.get("again"))


def check(answer: Mapping[str, Any], kind: type[FleetError]) -> Mapping[str, Any]:
    """Return the answer. Raises `kind` if the answer is an error."""
    error = answer.get("error")
    if isinstance(error, dict):
        raise kind(*(printable(str(error.get(name, ""))) for name in ("where", "problem", "cure")))
    return answer
