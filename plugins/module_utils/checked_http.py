# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP that sends nothing before a check of the connection: no header, and so no password, while the check may still fail."""

from __future__ import annotations

import http.client
import ssl
import urllib.request
from typing import Any, Callable

from .no_redirect import NoRedirect

#: Called with the connected socket, after the TLS handshake where there is one. It raises what the caller is to get.
Check = Callable[[Any], None]


class _Checked:
    """Checks each connection right after it was made. http.client sends nothing before that."""

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
    """HTTP without TLS."""


class CheckedTlsConnection(_Checked, http.client.HTTPSConnection):
    """HTTP over TLS."""


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    def __init__(self, check: Check, context: ssl.SSLContext | None) -> None:
        urllib.request.HTTPHandler.__init__(self)
        self._check = check
        self._tls = context

    def http_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(CheckedConnection, request, check=self._check)

    def https_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(CheckedTlsConnection, request, check=self._check, context=self._tls)


def opener(check: Check, context: ssl.SSLContext | None = None) -> urllib.request.OpenerDirector:
    """What opens requests to a server of this host: no proxy of the environment's, and no redirect.

    `context` is for https; without one the system's authorities and the server's name are checked.
    """
    return urllib.request.build_opener(_Handler(check, context), NoRedirect, urllib.request.ProxyHandler({}))
