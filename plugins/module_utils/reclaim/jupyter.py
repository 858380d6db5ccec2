# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shut down unused kernels of a Jupyter server, and leave the server and all files alone.

By its REST API: https://jupyter-server.readthedocs.io/en/latest/developers/rest-api.html (kernels). What a kernel had in memory
is lost; so one that works, or that a browser is connected to, is never shut down, however old its last activity.

Another process may have the server's port. Before the token or any other byte is sent, the kernel attests for each connection
that its other end is a process of the unit or container that the inventory names (peer.py); with https, after the certificate
was checked. Otherwise what the server does is not known, and nothing is shut down.
"""

from __future__ import annotations

import calendar
import json
import re
import time
import urllib.error
import urllib.parse
from dataclasses import field
from typing import Any, Mapping

from .. import peer
from ..errors import FleetError
from ..foreign_text import one_line, text
from ..frozen import frozen
from ..http_opener import FAILURES, Request, TimeLimit, opener

#: Without a byte; and for all requests to a server together.
TIMEOUT_SECONDS, ALL_SECONDS = 30, 300
_MOST_BYTES = 1 << 24
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z|\+00:00)")
#: Characters of what it says, in a message.
_SHOWN = 200
_ID = re.compile(r"[0-9A-Za-z-]{1,100}")


class JupyterError(FleetError):
    """A server that does not answer as Jupyter's does. `where` is its address, without the token."""


@frozen
class Server:
    """How to reach a server, and the processes that it consists of."""

    url: str
    owner: peer.Owner
    token: str = field(default="", repr=False)


def shut_down(server: Server, quiet_seconds: float, now: float | None = None, dry: bool = False) -> list[str]:
    """Shut down what was idle for so long; gives the kernels in words.

    Raises JupyterError. A kernel that is gone by then is none of them.
    """
    now = time.time() if now is None else now
    gone = []
    limit = TimeLimit(ALL_SECONDS)
    for kernel in _kernels(server, limit):
        since = _seconds(server, kernel.get("last_activity"))
        idle = kernel.get("execution_state") == "idle" and not kernel.get("connections")
        if not idle or now - since < quiet_seconds:
            continue
        if not _ID.fullmatch(str(kernel.get("id"))):
            raise _error(server, "it names a kernel '%s'" % text(kernel.get("id"), _SHOWN))
        if dry or _ask(server, limit, "DELETE", "/api/kernels/%s" % kernel["id"]) is not None:
            name = text(kernel.get("name"), _SHOWN)
            gone.append("kernel %s (%s), idle for %.0f h" % (kernel["id"], name, (now - since) / 3600))
    return gone


def _kernels(server: Server, limit: TimeLimit) -> list[Mapping[str, Any]]:
    body = _ask(server, limit, "GET", "/api/kernels")
    try:
        found = json.loads(body or b"")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(kernel, dict) for kernel in found):
        raise _error(server, "it does not list its kernels")
    return found


def _seconds(server: Server, given: Any) -> float:
    """Of a time as Jupyter writes it, in UTC."""
    found = _TIME.fullmatch(str(given))
    if not found:
        raise _error(server, "it gives the time of a kernel as '%s'" % text(given, _SHOWN))
    return float(calendar.timegm(time.strptime(found.group(1), "%Y-%m-%dT%H:%M:%S")))


def _ask(server: Server, limit: TimeLimit, method: str, path: str) -> bytes | None:
    """The body of the answer; None where there is no such thing any more."""
    url = server.url.rstrip("/")
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise _error(server, "this is no address of a server")
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
        cure = "End that process if it is foreign; let gpu_rightsize_jupyter name the unit or container of the server."
        raise _error(server, "%s. Nothing was sent, and what the server does is not known" % error, cure) from None
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
    cure = cure or "Look at url and token of gpu_rightsize_jupyter, and whether the server runs."
    return JupyterError("the Jupyter server at %s" % server.url.rpartition("@")[2], problem, cure)
