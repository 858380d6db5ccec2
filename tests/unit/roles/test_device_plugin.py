# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the plugin that offers fixed tenants without DRA.

The kubelet's socket and the lease service are real sockets. tests/kubernetes/test_openfleet_dra.py uses a real kubelet.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "roles" / "gpu_kubernetes" / "files"))

from openfleet_dra import kubelet_api, wire
from openfleet_dra.device_plugin import DevicePlugins
from openfleet_dra.lease_client import Leases

from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.model import VgpuSeat, VgpuTenant
from tests.unit.module_utils.leases.lease_socket import LeaseSocket
from tests.unit.module_utils.leases.lease_world import GIB, World

SERVING, NOTEBOOK = "gpu.openfleet.io/tenant-serving", "gpu.openfleet.io/tenant-notebook"
CDI = ["openfleet.io/vgpu=serving", "nvidia.com/gpu=GPU-0"]


def tenant(name):
    return VgpuTenant(name, 8 * GIB, 30, (VgpuSeat("GPU-0", 0),))


class Kubelet:
    """The kubelet's registration, on a socket.

    `refused` is the reason why it refuses plugins, and `refused_name` the only resource that it refuses.
    """

    def __init__(self, folder):
        self.folder, self.refused, self.refused_name, self.requests = folder, "", "", []
        folder.mkdir(exist_ok=True)
        # Like the kubelet, delete the sockets of all plugins.
        for path in folder.iterdir():
            path.unlink()
        register = grpc.unary_unary_rpc_method_handler(
            self._register,
            request_deserializer=lambda data: wire.decode(kubelet_api.REGISTER_REQUEST, data),
            response_serializer=lambda values: wire.encode(kubelet_api.EMPTY, values),
        )
        service = kubelet_api.DEVICE_PLUGIN_REGISTRATION
        self._server = grpc.server(ThreadPoolExecutor(2))
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Register": register}),))
        self._server.add_insecure_port("unix:%s" % (folder / "kubelet.sock"))
        self._server.start()

    def _register(self, request, context):
        if self.refused or request["resource_name"] == self.refused_name:
            context.abort(grpc.StatusCode.UNAVAILABLE, self.refused)
        self.requests.append(request)
        return {}

    def registered(self):
        return {request["resource_name"] for request in self.requests}

    def socket_of(self, name):
        [endpoint] = {request["endpoint"] for request in self.requests if request["resource_name"] == name}
        return self.folder / endpoint

    def stop(self):
        self._server.stop(None).wait()


def call(path, method, request, response, values, stream=False):
    """Call a method of the plugin as the kubelet does.

    Returns its answer, or the first answer of a stream.
    """
    with grpc.insecure_channel("unix:%s" % path) as channel:
        made = (channel.unary_stream if stream else channel.unary_unary)(
            "/v1beta1.DevicePlugin/%s" % method,
            request_serializer=lambda data: wire.encode(request, data),
            response_deserializer=lambda data: wire.decode(response, data),
        )
        answer = made(values, timeout=30)
        return next(iter(answer)) if stream else answer


def allocate(path, *devices):
    request = {"container_requests": [{"device_ids": list(each)} for each in devices]}
    return call(path, "Allocate", kubelet_api.ALLOCATE_REQUEST, kubelet_api.ALLOCATE_RESPONSE, request)


@pytest.fixture
def folder():
    """Return a short path, because a Unix socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="dp-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def world(folder):
    world = World(folder)
    world.fixed = (tenant("serving"),)
    leases = LeaseSocket(folder / "leases.sock", world.ask_as_plugin)
    yield world
    leases.close()


@pytest.fixture
def kubelet(folder):
    made = Kubelet(folder / "device-plugins")
    yield made
    made.stop()


@pytest.fixture
def log():
    return []


@pytest.fixture
def plugins(folder, world, log):
    return DevicePlugins(Leases(str(folder / "leases.sock")), folder, log.append)


def serving(plugins, steps):
    """Run `steps`, an asynchronous function, and stop the servers afterwards."""

    async def run():
        await plugins.read_layout()
        await plugins.follow_kubelet()
        try:
            await steps()
        finally:
            ended = asyncio.Event()
            ended.set()
            await plugins.run(ended)

    asyncio.run(run())


def other_thread(function, *arguments):
    """Run a call of the kubelet while the event loop serves it."""
    return asyncio.get_running_loop().run_in_executor(None, lambda: function(*arguments))


def test_tenant_is_registered_listed_and_allocated(folder, kubelet, plugins, log):
    async def steps():
        assert kubelet.requests[0]["version"] == "v1beta1" and kubelet.registered() == {SERVING}
        path = kubelet.socket_of(SERVING)
        assert path.stat().st_mode & 0o077 == 0
        listing = ("ListAndWatch", kubelet_api.EMPTY, kubelet_api.DEVICE_LIST, {}, True)
        listed = await other_thread(call, path, *listing)
        assert listed == {"devices": [{"id": "tenant-serving", "health": "Healthy"}]}
        options = ("GetDevicePluginOptions", kubelet_api.EMPTY, kubelet_api.DEVICE_PLUGIN_OPTIONS, {})
        assert not any((await other_thread(call, path, *options)).values())
        answer = await other_thread(allocate, path, ["tenant-serving"])
        assert answer == {"container_responses": [{"cdi_devices": [{"name": name} for name in CDI]}]}
        with pytest.raises(grpc.RpcError) as refused:
            await other_thread(allocate, path, ["tenant-notebook"])
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND

    serving(plugins, steps)
    assert [path.name for path in kubelet.folder.iterdir()] == ["kubelet.sock"]
    assert log[-1] == "the kubelet registered %s" % SERVING


def test_restarted_kubelet_gets_all_tenants_again(folder, kubelet, plugins):
    async def steps():
        await plugins.follow_kubelet()
        assert len(kubelet.requests) == 1
        kubelet.stop()
        again = Kubelet(folder / "device-plugins")
        try:
            await plugins.follow_kubelet()
            assert again.registered() == {SERVING}
            assert await other_thread(allocate, again.socket_of(SERVING), ["tenant-serving"])
        finally:
            again.stop()

    serving(plugins, steps)


def test_layout_change_adds_and_removes_resources(kubelet, world, plugins):
    async def steps():
        gone = kubelet.socket_of(SERVING)
        world.fixed = (tenant("notebook"),)
        await plugins.read_layout()
        await plugins.follow_kubelet()
        assert kubelet.registered() == {SERVING, NOTEBOOK} and not gone.exists()
        assert await other_thread(allocate, kubelet.socket_of(NOTEBOOK), ["tenant-notebook"])

    serving(plugins, steps)


def test_refused_registration_is_repeated_and_logged_once(kubelet, plugins, log):
    kubelet.refused = "not yet"

    async def steps():
        await plugins.read_layout()
        await plugins.follow_kubelet()
        kubelet.refused = ""
        await plugins.follow_kubelet()
        assert kubelet.registered() == {SERVING}

    serving(plugins, steps)
    assert [line for line in log if "not yet" in line] == ["the kubelet refused %s: not yet" % SERVING]


def test_refused_resource_does_not_block_the_others(kubelet, world, plugins):
    world.fixed = (tenant("notebook"), tenant("serving"))
    kubelet.refused_name = NOTEBOOK

    async def steps():
        for _turn in range(2):
            await plugins.follow_kubelet()
        assert [request["resource_name"] for request in kubelet.requests] == [SERVING]
        assert await other_thread(allocate, kubelet.socket_of(SERVING), ["tenant-serving"])

    serving(plugins, steps)


def test_tenants_are_kept_while_a_layout_change_runs(kubelet, world, plugins, monkeypatch):
    async def steps():
        monkeypatch.setattr("openfleet_dra.lease_client._SECONDS", 0.0)
        world.changing = True
        await plugins.read_layout()
        await plugins.follow_kubelet()
        assert await other_thread(allocate, kubelet.socket_of(SERVING), ["tenant-serving"])

    serving(plugins, steps)
