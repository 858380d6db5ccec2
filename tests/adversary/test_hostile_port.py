# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let a user take a stopped service's port.

Root must send no password, token or header to this port.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.model import Gpu, Holder, Host, Mig
from ansible_collections.openfleet.gpu.plugins.module_utils.processes import peer
from ansible_collections.openfleet.gpu.plugins.module_utils.reclaim import jupyter, stop
from ansible_collections.openfleet.gpu.plugins.modules import unit_request
from tests.integration.exporter_installer import peer as exporter_peer
from tests.integration.exporter_installer import scrape
from tests.unit.peer_hosts import Processes, Stranger

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the listener is another user's")
SECRET = "correct horse"
USERS = "/user.slice/user-65534.slice/user@65534.service/app.slice/x.scope"


@pytest.fixture
def processes(tmp_path, monkeypatch):
    found = Processes(tmp_path / "proc", monkeypatch, exporter_peer, peer)
    # The services run, but do not listen on their ports.
    found.add(os.getpid(), "/system.slice/dcgm-exporter.service")
    return found


@pytest.fixture
def certificate(tmp_path):
    """Create a certificate and key for the exporter, and another pair for a server."""
    for name in ("tls", "other"):
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3", "-subj", "/CN=gpu"]
        command += ["-keyout", f"{name}.key", "-out", f"{name}.crt"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    return lambda name: (str(tmp_path / f"{name}.crt"), str(tmp_path / f"{name}.key"))


def scraped(stranger, processes, certificate=""):
    processes.add(stranger.process.pid, USERS)
    health = {"address": "127.0.0.1", "port": stranger.port, "certificate": certificate, "engine": ""}
    said = scrape.problem({**health, "users": {"prometheus": SECRET}, "timeout": 0})
    return said, stranger.end()


def test_scrape_password_is_not_sent_to_a_user_on_the_port(processes):
    stranger = Stranger()
    said, heard = scraped(stranger, processes)
    assert heard == ["b''"]
    assert f"127.0.0.1 port {stranger.port}: the port is held by pid {stranger.process.pid} (" in said
    assert "uid 65534" in said and "not a process of dcgm-exporter.service; the password was not sent" in said
    assert "End the process that has the port, or set another dcgm_exporter_port" in said


def test_scrape_password_is_not_sent_under_another_certificate(processes, certificate):
    said, heard = scraped(Stranger(*certificate("other")), processes, certificate("tls")[0])
    assert heard[0] == "b''" and "GET" not in "".join(heard)
    assert "shows another certificate than" in said and "the password was not sent" in said


def test_scrape_password_is_not_sent_under_the_exporters_certificate(processes, certificate):
    """Send no password although the certificate is valid.

    A site may use one key for the whole fleet, and a tenant may have obtained it.
    """
    said, heard = scraped(Stranger(*certificate("tls")), processes, certificate("tls")[0])
    assert heard[0] == "b''" and "GET" not in "".join(heard)
    assert "which is not a process of dcgm-exporter.service" in said


def test_jupyter_token_is_not_sent_to_a_user_on_the_port(processes, tmp_path, monkeypatch):
    systemctl = tmp_path / "bin/systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text("#!/bin/sh\necho MainPID=%d\n" % os.getpid())
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", "%s:%s" % (systemctl.parent, os.environ["PATH"]))
    processes.add(os.getpid(), "/system.slice/jupyter.service")
    stranger = Stranger()
    processes.add(stranger.process.pid, USERS)
    item = {"kind": "unit", "name": "jupyter.service", "runtime": "", "gpus": ["GPU-0"]}
    gpu = Gpu(0, "GPU-0", "NVIDIA H100", "", 80 << 30, Mig(True))
    look = (
        Host("580", "13", "13.0", True, (gpu,)),
        [Holder("GPU-0", None, "process", "x", unit_or_container="jupyter.service")],
    )
    server = {"name": "jupyter.service", "url": "http://127.0.0.1:%d" % stranger.port, "token": SECRET}
    tools = stop.Tools(lambda: look, dict)
    done = stop.reclaim([item], tools, stop.Policy(jupyter=[server], grace_seconds=48 * 3600.0))
    assert stranger.end() == ["b''"]
    assert done["stopped"] == []
    why = done["spared"][0]["why"]
    assert f"held by pid {stranger.process.pid} (" in why and "the state of the kernels is not known" in why
    assert SECRET not in why and SECRET not in repr(jupyter.Server("http://x", None, SECRET))


def test_prometheus_password_is_not_sent_to_a_user_on_the_port(processes):
    stranger = Stranger()
    processes.add(stranger.process.pid, USERS)
    params = {
        "url": f"http://127.0.0.1:{stranger.port}/-/reload",
        "method": "POST",
        "unit": "prometheus",
        "ca_path": None,
    }
    with pytest.raises(unit_request.RequestError, match=f"held by pid {stranger.process.pid} .*No password was sent"):
        unit_request.send({**params, "username": "ansible", "password": SECRET})
    assert stranger.end() == ["b''"]
