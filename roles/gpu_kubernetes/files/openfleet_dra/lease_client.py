# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send requests to the host's lease service (gpu-layout lease-serve)."""

from __future__ import annotations

import json
import socket
import time
from typing import Any, Dict, Mapping

SOCKET = "/run/openfleet-gpu-lease.sock"
#: Time limit of one request in seconds, and delay in seconds before Leases sends it again to a busy service.
_SECONDS, _DELAY_SECONDS = 60.0, 0.2
_MOST_BYTES = 1 << 20


class LeaseError(Exception):
    """The service refuses a request or does not respond."""


class Leases:
    """This host's lease service."""

    def __init__(self, path: str = SOCKET) -> None:
        self._path = path

    def ask(self, **request: Any) -> Dict[str, Any]:
        """Send a request, and return the answer. Raises LeaseError."""
        deadline = time.monotonic() + _SECONDS
        while True:
            answer = self._send(request, deadline)
            error = answer.get("error")
            if not isinstance(error, Mapping):
                return answer
            if not error.get("again") or time.monotonic() + _DELAY_SECONDS > deadline:
                raise LeaseError("%s: %s. %s" % tuple(error.get(key, "") for key in ("where", "problem", "cure")))
            time.sleep(_DELAY_SECONDS)

    def _send(self, request: Mapping[str, Any], deadline: float) -> Dict[str, Any]:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(max(0.1, deadline - time.monotonic()))
                connection.connect(self._path)
                connection.sendall(json.dumps(request).encode() + b"\n")
                data = b""
                while b"\n" not in data and len(data) < _MOST_BYTES:
                    chunk = connection.recv(65536)
                    if not chunk:
                        break
                    data += chunk
            return dict(json.loads(data.partition(b"\n")[0].decode()))
        except (OSError, ValueError, TypeError) as error:
            raise LeaseError("the lease service (%s) does not answer: %s" % (self._path, error)) from None
