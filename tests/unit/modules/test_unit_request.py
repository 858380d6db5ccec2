# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test under which conditions the module unit_request sends a password.

The tests use real sockets, and a server in their own process.
"""

from __future__ import annotations

import http.server
import os
import ssl
import subprocess
import threading

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.processes import peer
from ansible_collections.openfleet.gpu.plugins.modules import unit_request
from ansible_collections.openfleet.gpu.plugins.modules.unit_request import RequestError, send
from tests.unit.peer_hosts import Processes


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self):
        self.server.seen.append((self.command, self.path, self.headers.get("Authorization")))
        status, body = self.server.answers.get(self.path, (200, b'{"status": "success"}'))
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer

    def log_message(self, *arguments):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen, self.answers = [], {"/login": (302, b""), "/no": (401, b""), "/text": (200, b"Reloaded.")}

    def handle_error(self, request, client_address):
        """Ignore a client that disconnects before it sends a request."""


@pytest.fixture
def server():
    with Server() as found:
        yield found
        found.shutdown()


def serve(server, scheme="http"):
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return "%s://127.0.0.1:%d" % (scheme, server.server_port)


@pytest.fixture
def processes(tmp_path, monkeypatch):
    return Processes(tmp_path / "proc", monkeypatch, peer)


def asked(url, **more):
    return {
        "url": url,
        "method": "GET",
        "username": "ansible",
        "password": "s3cret",
        "ca_path": None,
        "unit": "p",
        **more,
    }


SENT = "Basic YW5zaWJsZTpzM2NyZXQ="


def test_the_unit_gets_the_password(server, processes):
    processes.add(os.getpid(), "/system.slice/p.service")
    url = serve(server)
    assert send(asked(url + "/a")) == {"changed": False, "status": 200, "json": {"status": "success"}}
    assert send(asked(url + "/text", method="POST", unit="p.service")) == {"changed": False, "status": 200}
    assert server.seen == [("GET", "/a", SENT), ("POST", "/text", SENT)]


@pytest.mark.parametrize("cgroup", ["/system.slice/q.service", "/user.slice/user-7.slice/user@7.service/p.service"])
def test_other_process_gets_no_password(server, processes, cgroup):
    processes.add(os.getpid(), cgroup)
    with pytest.raises(RequestError) as caught:
        send(asked(serve(server)))
    assert server.seen == [] and "s3cret" not in str(caught.value)
    assert "held by pid %d " % os.getpid() in str(caught.value) and "No password was sent" in str(caught.value)


def test_without_a_password_any_process_is_queried(server, processes):
    assert send(asked(serve(server) + "/", password=""))["status"] == 200
    assert server.seen == [("GET", "/", None)]


def test_certificate_identifies_only_its_server(server, processes, tmp_path):
    for name, subject in (("tls", "subjectAltName=IP:127.0.0.1"), ("other", "subjectAltName=IP:127.0.0.9")):
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3", "-subj", "/CN=x"]
        command += ["-addext", subject, "-keyout", f"{name}.key", "-out", f"{name}.crt"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = serve(server, "https")
    for ca in (None, str(tmp_path / "other.crt")):
        with pytest.raises(RequestError, match="certificate verify failed"):
            send(asked(url, ca_path=ca))
    assert server.seen == []
    assert send(asked(url, ca_path=str(tmp_path / "tls.crt")))["status"] == 200
    # This certificate has the right authority, but another name.
    with pytest.raises(RequestError, match="certificate"):
        send(asked(url.replace("127.0.0.1", "localhost"), ca_path=str(tmp_path / "tls.crt")))
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("path", "says"), [("/login", "it answered HTTP 302"), ("/no", "it answered HTTP 401"), ("/", "not an HTTP URL")]
)
def test_missing_answer_is_an_error_and_redirects_are_not_followed(server, processes, path, says):
    processes.add(os.getpid(), "/system.slice/p.service")
    url = serve(server)
    with pytest.raises(RequestError, match=says):
        send(asked((url if path != "/" else "file://") + path))
    assert all(path != "/elsewhere" for _method, path, _sent in server.seen)


def test_user_name_in_an_address_is_not_shown():
    with pytest.raises(RequestError) as caught:
        send(asked("http://me:s3cret@127.0.0.1:9/x", password=""))
    assert "s3cret" not in str(caught.value) and "127.0.0.1:9" in str(caught.value)


def test_large_or_deeply_nested_answer_is_refused(server, monkeypatch):
    """The password was not sent: any user may own the port."""
    monkeypatch.setattr(unit_request, "MOST_BYTES", 1000)
    server.answers.update({"/large": (200, b"x" * 2000), "/deep": (200, b"[" * 900)})
    params = {"method": "GET", "username": "", "password": "", "ca_path": None, "unit": "x"}
    url = serve(server)
    with pytest.raises(RequestError, match="its answer is larger than"):
        send({**params, "url": url + "/large"})
    assert "json" not in send({**params, "url": url + "/deep"})
