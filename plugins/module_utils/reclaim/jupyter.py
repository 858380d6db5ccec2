# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shut down idle kernels of a Jupyter server.

The server and its files do not change. The server's REST API is used:
https://jupyter-server.readthedocs.io/en/latest/developers/rest-api.html (kernels). A kernel loses its memory when it is
shut down. So a kernel that works or has a connected browser is never shut down, whatever its last activity is.

Another process may have the server's port. So the peer of each connection must be a process of the unit or container in
the inventory (peer.py). This is verified before anything is sent, and with https after the check of the certificate. If
it fails, nothing is shut down.
"""

# `frozen` makes dataclasses.
# pylint: disable=invalid-field-call
from __future__ import annotations

import calendar
import json
import re
import time
import urllib.error
import urllib.parse
from dataclasses import field
from typing import Any, Mapping

from ..errors import FleetError
from ..foreign_text import one_line, text
from ..frozen import frozen
from ..http_opener import FAILURES, Request, TimeLimit, opener
from ..processes import peer

#: Timeouts in seconds: for a period without data, and for all requests to a server.
TIMEOUT_SECONDS, ALL_SECONDS = 30, 300
_MOST_BYTES = 1 << 24
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z|\+00:00)")
#: Maximum length of the server's texts in messages.
_SHOWN = 200
_ID = re.compile(r"[0-9A-Za-z-]{1,100}")


class JupyterError(FleetError):
    """A server does not answer like Jupyter.

    `where` is the server's address, without the token.
    """


@frozen
class Server:
    """A server's address and token, and the owner of its processes."""

    url: str
    owner: peer.Owner
    token: str = field(default="", repr=False)


def shut_down(server: Server, quiet_seconds: float, now: float | None = None, dry: bool = False) -> list[str]:
    """Shut down the kernels that were idle for `quiet_seconds`.

    Returns a text for each of them. Leaves out kernels that have ended by themselves. Raises JupyterError.
    """
    now = time.time() if now is None else now
    ended = []
    limit = TimeLimit(ALL_SECONDS)
    for kernel in _kernels(server, limit):
        since = _seconds(server, kernel.get("last_activity"))
        idle = kernel.get("execution_state") == "idle" and not kernel.get("connections")
        if not idle or now - since < quiet_seconds:
            continue
        if not _ID.fullmatch(str(kernel.get("id"))):
            raise _error(server, "it returns an invalid kernel id '%s'" % text(kernel.get("id"), _SHOWN))
        if dry or _ask(server, limit, "DELETE", "/api/kernels/%s" % kernel["id"]) is not None:
            name = text(kernel.get("name"), _SHOWN)
            ended.append("kernel %s (%s), idle for %.0f h" % (kernel["id"], name, (now - since) / 3600))
    return ended


def _kernels(server: Server, limit: TimeLimit) -> list[Mapping[str, Any]]:
    body = _ask(server, limit, "GET", "/api/kernels")
    try:
        kernels = json.loads(body or b"")
    except (ValueError, RecursionError):
        kernels = None
    if not isinstance(kernels, list) or not all(isinstance(kernel, dict) for kernel in kernels):
        raise _error(server, "it returns no list of kernels")
    return kernels


def _seconds(server: Server, given: Any) -> float:
    """Convert a time from Jupyter (UTC) to seconds."""
    match = _TIME.fullmatch(str(given))
    if not match:
        raise _error(server, "it returns an invalid time '%s' of a kernel" % text(given, _SHOWN))
    return float(calendar.timegm(time.strptime(match.group(1), "%Y-%m-%dT%H:%M:%S")))


def _ask(server: Server, limit: TimeLimit, method: str, path: str) -> bytes | None:
    """Return the body of the server's answer.

    Returns None if the object to delete no longer exists.
    """
    url = server.url.rstrip("/")
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise _error(server, "this is not the address of a server")
    request = Request(url + path, method=method)
    if server.token:
        request.add_header("Authorization", "token %s" % server.token)
    try:
        with limit.request() as watch:

            def check(connection: Any) -> None:
                watch(connection)
                peer.check(connection, server.owner)

            with opener(check=check).open(request, timeout=TIMEOUT_SECONDS) as response:
                return response.read(_MOST_BYTES)
    except peer.PeerError as error:
        cure = "End that process if it is foreign, or correct the unit or container in gpu_rightsize_jupyter."
        raise _error(server, "%s. Nothing was sent, and the state of the kernels is not known" % error, cure) from None
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 404 and method == "DELETE":
                return None
            raise _error(server, "it answered HTTP %d" % error.code) from None
    except FAILURES as error:
        raise _error(
            server, "it could not be reached: %s" % one_line(getattr(error, "reason", None) or error, _SHOWN)
        ) from None


def _error(server: Server, problem: str, cure: str = "") -> JupyterError:
    cure = cure or "Check url and token of gpu_rightsize_jupyter, and whether the server runs."
    return JupyterError("the Jupyter server at %s" % server.url.rpartition("@")[2], problem, cure)
