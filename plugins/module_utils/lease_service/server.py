# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve the lease socket, and update the host's leases.

Clients have the same limits as in `keep.server`. In addition, the connection of a waiting request stays open. When its
client ends, the request is removed.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from typing import Any, Callable, Mapping

from ..errors import FleetError
from ..keep.server import Connection, Server, failure, send
from ..processes.bounded import bounded
from .request import COMMAND
from .service import CHECK_SECONDS, Caller, LeaseService

#: Time limit in seconds for one call, which may create MIG instances and end processes.
WORK_SECONDS = 300.0
#: Maximum size of a call's result, which may be a list of all leases.
_MOST_BYTES = 1 << 20
#: Seconds between two repairs, because a driver reload removes MIG instances.
_RECOVER_SECONDS = 300.0


class LeaseServer(Server):
    """Serves the lease socket as long as the host has leases."""

    #: A script may take many short leases.
    most_requests = 120

    def __init__(self, listener: socket.socket, service: LeaseService, log: Callable[[str], None] = print) -> None:
        super().__init__(listener, lambda _line, _uid: "", log, COMMAND)
        self._service = service
        #: Connections of waiting requests.
        self._waiting: dict[int, Connection] = {}
        self._done: frozenset[int] = frozenset()
        self._last = 0.0
        self._recovered = -2 * _RECOVER_SECONDS

    def _is_needed(self) -> bool:
        return super()._is_needed() or not self._service.is_idle()

    def _tick(self) -> None:
        if time.monotonic() - self._recovered > _RECOVER_SECONDS:
            self._recovered = time.monotonic()
            self._work(recover=True)
        due = self._service.due(list(self._waiting))
        # Retry failed work after a while.
        if not due - self._done and (not due or time.monotonic() - self._last < CHECK_SECONDS):
            self._done &= due
            return
        self._work()
        self._done, self._last = self._service.due(list(self._waiting)), time.monotonic()

    def _handle(self, descriptor: int) -> None:
        number = next((number for number, one in self._waiting.items() if one.socket.fileno() == descriptor), None)
        if number is None:
            super()._handle(descriptor)
            return
        # gpu-layout sends nothing while it waits, so the client has ended or is another program.
        self._selector.unregister(self._waiting[number].socket)
        self._waiting.pop(number).socket.close()

    def _reply(self, connection: Connection, line: bytes) -> None:
        began = time.monotonic()
        self._selector.unregister(connection.socket)
        del self._open[connection.socket.fileno()]
        result = self._work(line, connection)
        answer = result.get("answer") or {}
        send(connection.socket, json.dumps(answer))
        if "waiting" in answer:
            self._waiting[answer["waiting"]["number"]] = connection
            self._selector.register(connection.socket, selectors.EVENT_READ)
        else:
            connection.socket.close()
        # Give other connections more time, because they were not read meanwhile.
        for other in self._open.values():
            other.ends += time.monotonic() - began

    def _work(
        self, line: bytes | None = None, connection: Connection | None = None, recover: bool = False
    ) -> Mapping[str, Any]:
        """Call the service in a child process, and answer waiting clients.

        Returns the service's result.
        """
        waiting = {number: Caller(one.pid, one.uid) for number, one in self._waiting.items()}
        caller = None if connection is None else Caller(connection.pid, connection.uid)
        try:
            text = bounded(
                lambda: json.dumps(self._service.work(waiting, line, caller, recover)),
                "this host",
                WORK_SECONDS,
                _MOST_BYTES,
            )
        except FleetError as error:
            self._log(str(error))
            return {"answer": json.loads(failure(error))}
        result: Mapping[str, Any] = json.loads(text)
        for entry in result["log"]:
            self._log(entry)
        for number, answer in result["answers"].items():
            self._finish(int(number), answer)
        return result

    def _finish(self, number: int, answer: Mapping[str, Any]) -> None:
        """Answer a waiting client.

        If the client has ended, its lease has no process, so the lease ends too.
        """
        connection = self._waiting.pop(number, None)
        if connection is not None:
            self._selector.unregister(connection.socket)
            send(connection.socket, json.dumps(answer))
            connection.socket.close()
