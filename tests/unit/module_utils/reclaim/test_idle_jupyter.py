# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find idle kernels of a Jupyter server, with real sockets and a simulated server."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.server
import json
import os
import socket
import threading

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.model import Gpu, Holder, Host, Mig, Telemetry
from ansible_collections.openfleet.gpu.plugins.module_utils.processes import peer
from ansible_collections.openfleet.gpu.plugins.module_utils.reclaim import jupyter
from ansible_collections.openfleet.gpu.plugins.module_utils.reclaim.jupyter import JupyterError, Server, shut_down
from ansible_collections.openfleet.gpu.plugins.module_utils.reclaim.stop import Policy, Tools, reclaim
from tests.unit.peer_hosts import Processes

#: The time 2024-03-01T12:00:00Z.
NOW = 1709294400.0
HOUR = 3600.0
TOKEN = "s3cret"


def kernel(number, hours=72, **more):
    day, hour = divmod(int(12 * 3600 + 29 * 86400 - hours * 3600), 86400)
    at = "2024-02-%02dT%02d:%02d:00.123456Z" % (day + 1, hour // 3600, hour % 3600 // 60)
    return {
        "id": "00000000-0000-4000-8000-%012d" % number, "name": "python3", "last_activity": at,
        "execution_state": "idle", "connections": 0, **more,
    }  # fmt: skip


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self):
        server = self.server
        server.seen.append((self.command, self.path, self.headers.get("Authorization")))
        status, body = server.said(self.command, self.path)
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/login")
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_DELETE = answer

    def log_message(self, *args):
        pass


class ThisProcess(peer.Owner):
    """Replace the check of the process, because the server is a thread of the test."""

    name = "this test"

    def has(self, process):
        return process.pid == os.getpid()


class StandIn(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.kernels, self.seen, self.status = [], [], {}

    def said(self, method, path):
        if self.status.get(method):
            return self.status[method], b""
        return (204, b"") if method == "DELETE" else (200, json.dumps(self.kernels).encode())

    @property
    def url(self):
        return "http://127.0.0.1:%d/" % self.server_address[1]

    @property
    def access(self):
        return Server(self.url, ThisProcess(), TOKEN)

    @property
    def deleted(self):
        return [path.rpartition("/")[2][-1] for method, path, _token in self.seen if method == "DELETE"]


@pytest.fixture
def server():
    with StandIn() as found:
        threading.Thread(target=found.serve_forever, args=(0.02,), daemon=True).start()
        yield found
        found.shutdown()


def test_only_unused_kernels_are_shut_down(server):
    server.kernels = [
        kernel(1),
        kernel(2, hours=47),
        kernel(3, execution_state="busy"),
        kernel(4, connections=1),
        kernel(5, hours=49),
    ]
    gone = shut_down(server.access, 48 * HOUR, NOW)
    assert server.deleted == ["1", "5"] and len(gone) == 2 and "idle for 72 h" in gone[0]
    assert {token for _method, _path, token in server.seen} == {"token " + TOKEN}


def test_dry_run_shuts_nothing_down(server):
    server.kernels = [kernel(1)]
    assert len(shut_down(server.access, 48 * HOUR, NOW, dry=True)) == 1
    assert server.deleted == []


def test_ended_kernel_is_not_listed(server):
    server.kernels, server.status = [kernel(1)], {"DELETE": 404}
    assert shut_down(server.access, 48 * HOUR, NOW) == []


@pytest.mark.parametrize(
    ("kernels", "status", "words"),
    [
        ([], {"GET": 403}, "HTTP 403"),
        # The server redirects to a login page, to which the token must not be sent.
        ([], {"GET": 302}, "HTTP 302"),
        ({"message": "no"}, {}, "returns no list of kernels"),
        ([kernel(1, last_activity="yesterday")], {}, "an invalid time 'yesterday' of a kernel"),
        ([kernel(1, id="../contents/home")], {}, "it returns an invalid kernel id"),
        ([kernel(1)], {"DELETE": 500}, "HTTP 500"),
    ],
)
def test_uncertain_kernels_are_not_shut_down(server, kernels, status, words):
    server.kernels, server.status = kernels, status
    with pytest.raises(JupyterError) as caught:
        shut_down(server.access, 48 * HOUR, NOW)
    assert words in str(caught.value) and TOKEN not in str(caught.value)
    assert all("contents" not in path for _method, path, _token in server.seen)


def test_refused_connection_is_an_error(server):
    with pytest.raises(JupyterError, match="could not be reached"):
        shut_down(Server("http://127.0.0.1:9", ThisProcess(), TOKEN), 48 * HOUR, NOW)
    with pytest.raises(JupyterError, match="not the address of a server"):
        shut_down(Server("file:///etc", ThisProcess(), TOKEN), 48 * HOUR, NOW)


class NotThisProcess(ThisProcess):
    def has(self, process):
        return False


@pytest.mark.parametrize("token", [TOKEN, ""])
def test_server_of_another_process_is_not_queried(server, token):
    """Do not query another process, which could answer falsely even without a token."""
    server.kernels = [kernel(1)]
    with pytest.raises(JupyterError, match="held by pid %d .*the state of the kernels is not known" % os.getpid()):
        shut_down(Server(server.url, NotThisProcess(), token), 48 * HOUR, NOW)
    assert server.seen == []


@pytest.fixture
def unit(tmp_path, monkeypatch):
    """Let the process of the test be the main process of jupyter.service."""
    systemctl = tmp_path / "bin/systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text("#!/bin/sh\necho MainPID=%d\n" % os.getpid())
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", "%s:%s" % (systemctl.parent, os.environ["PATH"]))
    Processes(tmp_path / "proc", monkeypatch, peer).add(os.getpid(), "/system.slice/jupyter.service")
    return systemctl


def test_server_itself_continues(server, unit):
    """Shut down only idle kernels, and never the server.

    Idle kernels are shut down even if the GPU is busy, because another kernel may use it.
    """
    server.kernels = [kernel(1)]
    access = {"name": "jupyter.service", "url": server.url, "token": TOKEN}
    item = {"kind": "unit", "name": "jupyter.service", "runtime": "", "gpus": ["GPU-0"]}
    gpu = Gpu(0, "GPU-0", "NVIDIA H100", "", 80 << 30, Mig(True), telemetry=Telemetry(gpu_utilization_percent=60))
    look = (
        Host("580", "13", "13.0", True, (gpu,)),
        [Holder("GPU-0", None, "process", "x", unit_or_container=item["name"])],
    )

    def stop(_item):
        raise AssertionError("the server is not to be stopped")

    done = reclaim([item], Tools(lambda: look, dict, stop=stop), Policy(jupyter=[access], grace_seconds=48 * HOUR))
    assert server.deleted == ["1"] and len(done["stopped"][0]["kernels"]) == 1
    server.kernels = []
    done = reclaim([item], Tools(lambda: look, dict, stop=stop), Policy(jupyter=[access], grace_seconds=48 * HOUR))
    assert "no kernel was idle" in done["spared"][0]["why"]
    server.status = {"GET": 500}
    done = reclaim([item], Tools(lambda: look, dict, stop=stop), Policy(jupyter=[access], grace_seconds=48 * HOUR))
    assert "HTTP 500" in done["spared"][0]["why"] and done["stopped"] == []
    unit.write_text("#!/bin/sh\necho 0\n")
    done = reclaim([item], Tools(lambda: look, dict, stop=stop), Policy(jupyter=[access], grace_seconds=48 * HOUR))
    assert "jupyter.service has no main process, so the state of its kernels is not known" in done["spared"][0]["why"]


@pytest.mark.parametrize("part", ["head", "body"])
def test_trickling_server_times_out(monkeypatch, part):
    """A user's server could send its answer very slowly.

    If the timeout applied to each byte, such a server could block root's run forever.
    """
    monkeypatch.setattr(jupyter, "ALL_SECONDS", 2)
    ended = threading.Event()

    def trickle(listening):
        connection, _address = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(
                b"HTTP/1.1 200 OK\r\n" + (b"X: " if part == "head" else b"Content-Length: 99999\r\n\r\n[")
            )
            while not ended.wait(0.1):
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=trickle, args=(listening,), daemon=True)
        thread.start()
        url = "http://127.0.0.1:%d/" % listening.getsockname()[1]
        asked = concurrent.futures.ThreadPoolExecutor(1).submit(shut_down, Server(url, ThisProcess(), TOKEN), HOUR, NOW)
        try:
            with pytest.raises(JupyterError, match="did not answer within 2 s in all"):
                asked.result(timeout=60)
        finally:
            ended.set()
            thread.join(60)


HOSTILE = "x\r\n\x1b[2J\u2028" + "y" * 5000


def test_kernel_names_are_one_short_log_line(server):
    """Print a kernel's name on one short line.

    Users choose these names, which appear in root's log and mails.
    """
    server.kernels = [kernel(1, name=HOSTILE), kernel(2, name=[HOSTILE])]
    gone = shut_down(server.access, 48 * HOUR, NOW)
    assert len(gone) == 2 and all(line.isprintable() and len(line) < 400 for line in gone)


@pytest.mark.parametrize("changes", [{"last_activity": HOSTILE}, {"id": HOSTILE}, {"id": "a" * 5000}])
def test_server_texts_are_one_short_line(server, changes):
    server.kernels = [kernel(1, **changes)]
    with pytest.raises(JupyterError) as raised:
        shut_down(server.access, 48 * HOUR, NOW)
    assert str(raised.value).isprintable() and len(str(raised.value)) < 500
    assert server.deleted == []
