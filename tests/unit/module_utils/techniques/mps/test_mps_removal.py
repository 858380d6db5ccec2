# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test MPS daemons without a working driver, and daemons in results of modules."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.change import layout_module, service_module
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import BusyError, DriverAbsentError
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps import host as mps_host
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps import observe as mps_observe
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps import service as mps_service
from tests.unit.module_utils.holders.holder_hosts import named, opened
from tests.unit.module_utils.techniques.mps.mps_hosts import DAEMON, DEVICES, OTHER, UNIT, make_host

pytestmark = pytest.mark.core


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Return a simulated host with two daemons and a driver that does not respond.

    The tested modules use this host.
    """
    found = make_host(tmp_path / "root")
    mps = mps_host.MpsHost(str(found.root), found)
    mps.start(DAEMON, DEVICES)
    mps.start(OTHER, ("GPU-c",))
    found.called.clear()

    def no_driver(params, check_mode, parts):
        if check_mode:
            return {"changed": True, "driver_present": False, "pci_gpus": [], "msg": "no driver"}
        raise DriverAbsentError("NVML", "no driver", call="nvmlInit")

    monkeypatch.setattr(layout_module, "bring_about", no_driver)
    monkeypatch.setattr(mps_service, "MpsHost", lambda: mps)
    monkeypatch.setattr(mps_observe, "Daemons", lambda: mps)
    monkeypatch.delenv("GPUSIM_STATE", raising=False)
    return found


@pytest.fixture
def serve(tmp_path):
    def run(check=False, state="absent", on_busy="fail"):
        params = {"layout": [], "state": state, "on_busy": on_busy, "busy_timeout": 0, "grace_period": 60}
        params.update(lock_timeout=0, state_directory=str(tmp_path / "state"))
        return service_module.serve(mps_service.MpsService, "daemons", mps_observe.report, params, check)

    return run


class Living:
    """The list of a server's clients, which has one process until that process ends."""

    def __init__(self, process: subprocess.Popen) -> None:
        self._process = process

    def __iter__(self):
        return iter([self._process.pid] if self._process.poll() is None else [])


@pytest.fixture
def client(host, tmp_path):
    (host.root / "proc").symlink_to("/proc")
    host.units[UNIT]["MainPID"] = str(os.getpid())
    # Until exec, the command line is empty. After exec, the process prints a line.
    process = subprocess.Popen(["sh", "-c", "echo; read _"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline()
    with opened(program=named(tmp_path, "nvidia-cuda-mps-server")) as server:
        host.servers = {server.pid: {"percentage": 25.0, "limits": {}, "clients": Living(process)}}
        yield process
    process.kill()
    process.communicate()


def test_without_a_driver_daemons_are_removed(host, serve):
    lines = ["mps inference: stop on GPU-a and GPU-b", "mps other: stop on GPU-c"]
    assert serve(check=True) == {"changed": True, "driver_present": False, "plan": lines}
    assert host.called == []
    assert serve() == {"changed": True, "driver_present": False, "plan": lines}
    assert [word for word in host.called if word.startswith("stop")] == [
        "stop -- " + UNIT,
        "stop -- openfleet-mps@other.service",
    ]
    assert not list(host.root.rglob("*mps*.json")) and not (host.root / "etc/openfleet-gpu/mps").exists()
    assert not list((host.root / "etc/cdi").iterdir())
    assert serve() == {"changed": False, "driver_present": False, "plan": []}


def test_without_a_driver_none_can_be_started(host, serve):
    with pytest.raises(DriverAbsentError):
        serve(state="present")
    assert serve(check=True, state="present")["msg"] == "no driver"
    assert host.called == []


def test_clients_are_ended_only_with_permission(host, serve, client):
    for check in (True, False):
        with pytest.raises(BusyError, match="mps inference .*pid %d " % client.pid) as error:
            serve(check=check)
        assert error.value.outcome == "old"
    assert host.called == [] and client.poll() is None
    with pytest.raises(BusyError):
        serve(on_busy="wait")
    told = serve(check=True, on_busy="wait")
    assert "pid %d" % client.pid in told["busy"][0]["who"][0]


def test_clients_are_ended_with_permission(host, serve, client):
    told = serve(on_busy="force")
    assert told["changed"] and "pid %d" % client.pid in told["ended"][0]
    assert client.wait() == -signal.SIGTERM


def test_daemons_of_the_host_do_not_belong_to_simulated_gpus(host, serve, monkeypatch):
    assert [daemon["name"] for daemon in mps_observe.report(False)] == ["inference", "other"]
    assert mps_observe.report(True) == []
    monkeypatch.setitem(os.environ, "GPUSIM_STATE", "/somewhere")
    assert serve() == {"changed": False, "driver_present": False, "plan": []}
    assert host.called == []


def test_unreadable_daemons_are_reported_and_block_no_other(host):
    (well, _other) = mps_observe.report(False)
    spec = host.root / "etc/openfleet-gpu/mps/inference.json"
    text = spec.read_text()
    spec.write_text("{")
    (told,) = mps_observe.report(False)
    assert "inference.json" in told["problem"] and told["name"] is None
    assert set(told) == set(well)
    spec.write_text(text)
    host.broken["systemctl"] = "Failed to connect to bus"
    (told,) = mps_observe.report(False)
    assert "Failed to connect to bus" in told["problem"]
