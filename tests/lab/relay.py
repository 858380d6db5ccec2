# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Relay requests to the Prometheus of a lab host, which has no network.

A program inside the host receives each local request, repeats it there, and returns the response unchanged.
"""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Iterator

from tests.lab.prometheus import ADDRESS

#: This program runs inside the host. It reads one request per line and writes one response per line, and needs only
#: Python's standard library.
_INSIDE = r"""
import base64, json, sys, urllib.error, urllib.request
for line in sys.stdin:
    method, path, kind, body = json.loads(line)
    request = urllib.request.Request(sys.argv[1] + path, base64.b64decode(body) or None, method=method)
    if kind:
        request.add_header("Content-Type", kind)
    try:
        answer = urllib.request.urlopen(request, timeout=120)
    except urllib.error.HTTPError as error:
        answer = error
    except OSError as error:
        print(json.dumps([502, "text/plain", base64.b64encode(str(error).encode()).decode()]), flush=True)
        continue
    data = base64.b64encode(answer.read()).decode()
    print(json.dumps([answer.status, answer.headers.get("Content-Type", ""), data]), flush=True)
"""


@contextlib.contextmanager
def relay(container: str) -> Iterator[str]:
    """Yield the local URL, which is valid until the end of the block.

    `podman` must be the lab's podman.
    """
    inside = subprocess.Popen(
        ["podman", "exec", "--interactive", container, "python3", "-c", _INSIDE, ADDRESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    one_at_a_time = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            told = [self.command, self.path, self.headers.get("Content-Type", ""), base64.b64encode(body).decode()]
            with one_at_a_time:
                inside.stdin.write(json.dumps(told) + "\n")
                inside.stdin.flush()
                status, kind, data = json.loads(inside.stdout.readline())
            answer = base64.b64decode(data)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_GET

        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield "http://127.0.0.1:%d" % server.server_port
    finally:
        server.shutdown()
        server.server_close()
        # The program ends when its input ends.
        inside.stdin.close()
        inside.wait(30)
        inside.stdout.close()
