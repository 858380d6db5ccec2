# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a proxy to an API server.

A test can act at each write.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Callable, Iterator, NamedTuple

_HEADERS = ("Accept", "Authorization", "Content-Type")


class Write(NamedTuple):
    """A request that changes an object."""

    method: str
    path: str
    body: str


class CutError(Exception):
    """The connection ends without a response."""


def _ignore(_write: Write) -> None:
    pass


class ApiGate:
    """Forward requests with a kubeconfig's token.

    `kubeconfig` uses this proxy. The gate calls `before` with each write before forwarding it, and `after` before the
    client gets its response. If one of them raises CutError, the client gets no response.
    """

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self.before: Callable[[Write], None] = _ignore
        self.after: Callable[[Write], None] = _ignore
        config = json.loads(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self._url = cluster["server"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._tls = ssl.create_default_context(cadata=authority)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        config["clusters"][0]["cluster"] = {"server": "http://127.0.0.1:%d" % self._server.server_port}
        self.kubeconfig = folder / "gate.kubeconfig"
        self.kubeconfig.write_text(json.dumps(config))

    def pass_on(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """Return the response's status and content.

        Raise CutError, and urllib's errors if the server does not respond.
        """
        write = None if method == "GET" else Write(method, path.partition("?")[0], body.decode())
        if write:
            self.before(write)
        request = urllib.request.Request(self._url + path, body or None, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60, context=self._tls) as answer:
                found = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                found = error.code, error.read()
        if write:
            self.after(write)
        return found

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def opened(kubeconfig: Path, folder: Path) -> Iterator[ApiGate]:
    """Run a gate until the block ends."""
    gate = ApiGate(kubeconfig, folder)
    try:
        yield gate
    finally:
        gate.close()


def _handler(gate: ApiGate) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name: self.headers[name] for name in _HEADERS if name in self.headers}
            try:
                status, content = gate.pass_on(self.command, self.path, headers, body)
            except (CutError, OSError, http.client.HTTPException):
                return
            # The test may have killed the client.
            with contextlib.suppress(OSError):
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

        def log_message(self, *_arguments) -> None:
            pass

    return Handler


class Stepper:
    """Kill a run at the first write that no earlier kill has used.

    So each run gets further than the one before. `chosen` selects writes, and `kill` ends the current run.
    """

    def __init__(self, kill: Callable[[], None], chosen: Callable[[Write], bool] = lambda _write: True) -> None:
        self._kill, self._chosen = kill, chosen
        #: Writes at which a kill ended a run.
        self.seen: set[Write] = set()
        #: The write at which the last kill ended a run, or None.
        self.killed_at: Write | None = None

    def __call__(self, write: Write) -> None:
        """Handle a write.

        Use this as a gate's `before` or `after`.
        """
        if self.killed_at is None and write not in self.seen and self._chosen(write):
            self.seen.add(write)
            self.killed_at = write
            self._kill()
        if self.killed_at is not None:
            raise CutError

    def go_on(self) -> None:
        """Prepare for the next run."""
        self.killed_at = None
