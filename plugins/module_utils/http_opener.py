# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send HTTP requests to one server only.

Passwords, tokens and reports must not reach another server through a redirect.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import socket
import threading
import time
import urllib.request
from typing import Any, Callable, Iterator

HTTPException, Request = http.client.HTTPException, urllib.request.Request
#: Errors if a server does not answer, or if the request or response is invalid.
FAILURES = (OSError, HTTPException, ValueError)
#: A function that receives the connected socket, after the TLS handshake if the connection uses TLS. Its errors reach
#: the caller of the request.
Check = Callable[[Any], None]


class _Checked:
    """Check each connection before http.client sends anything over it."""

    def __init__(self, *arguments: Any, check: Check, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._check = check

    def connect(self) -> None:
        super().connect()  # type: ignore[misc]
        try:
            self._check(self.sock)  # type: ignore[attr-defined]
        except BaseException:
            self.close()  # type: ignore[attr-defined]
            raise


class CheckedConnection(_Checked, http.client.HTTPConnection):
    """An HTTP connection without TLS."""


class CheckedTlsConnection(_Checked, http.client.HTTPSConnection):
    """An HTTP connection with TLS."""


class _CheckedHandler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    def __init__(self, check: Check, context: Any) -> None:
        urllib.request.HTTPHandler.__init__(self)
        self._check = check
        self._tls = context

    def http_open(self, req: Request) -> Any:
        return self.do_open(CheckedConnection, req, check=self._check)

    def https_open(self, req: Request) -> Any:
        return self.do_open(CheckedTlsConnection, req, check=self._check, context=self._tls)


class TimeLimit:
    """A time limit in seconds for all requests to one server.

    A socket's own timeout starts again with each byte, so a slow server could exceed it forever.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._deadline = seconds, time.monotonic() + seconds

    @contextlib.contextmanager
    def request(self) -> Iterator[Callable[[Any], None]]:
        """Limit the time of a request.

        Yields a function that must be called with the connected socket. Raises TimeoutError if the limit is exceeded.
        """
        timers: list[threading.Timer] = []

        def watch(connection: Any) -> None:
            timers.append(threading.Timer(max(0.0, self._deadline - time.monotonic()), _end, [connection]))
            timers[-1].daemon = True
            timers[-1].start()

        try:
            yield watch
        finally:
            for timer in timers:
                timer.cancel()
            # The response may be cut short.
            if time.monotonic() >= self._deadline:
                raise TimeoutError("it did not answer within %g s in all" % self._seconds)


def _end(connection: Any) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Raise HTTPError for each redirect."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def opener(context: Any = None, check: Check | None = None, redirects: bool = False) -> urllib.request.OpenerDirector:
    """Return an opener for requests to one server.

    `context` is the TLS context. By default, the certificate is checked against the system's authorities and the
    server's name. `check` is for servers on this host, and also disables proxies from the environment. Set `redirects`
    only for content that is verified afterwards.
    """
    handlers: list[Any] = [] if redirects else [_NoRedirect]
    if check is None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    else:
        handlers += [_CheckedHandler(check, context), urllib.request.ProxyHandler({})]
    return urllib.request.build_opener(*handlers)


def basic(user: str, password: str) -> str:
    """Return the Authorization header for a user and password."""
    return "Basic " + base64.b64encode(("%s:%s" % (user, password)).encode()).decode()
