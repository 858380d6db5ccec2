# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Offer each fixed tenant to the kubelet as a resource with one device.

This is for clusters without DRA.

https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from pathlib import Path
from typing import Any, AsyncIterator, Callable, Dict, Mapping, Optional, Tuple

import grpc
import grpc.aio

from . import kubelet_api, wire
from .devices import DRIVER, tenant_device
from .lease_client import LeaseError, Leases

#: Seconds between two checks of the kubelet's socket, and between two checks of the layout.
_CHECK_SECONDS, _LAYOUT_SECONDS = 1.0, 10.0
#: Time limit of the registration in seconds.
_REGISTER_SECONDS = 10.0


def resources(pool: Mapping[str, Any]) -> Dict[str, Tuple[str, ...]]:
    """Return the CDI devices of each tenant by resource name.

    `pool` is the answer of the lease service.
    """
    return {"%s/%s" % (DRIVER, tenant_device(each["name"])): tuple(each["cdi"]) for each in pool["tenants"]}


class DevicePlugins:
    """A device plugin for each fixed tenant.

    The kubelet wants a socket for each resource. When it restarts, it deletes all of these sockets, and each plugin must
    register again. `kubelet` is the root folder of the kubelet. `log` writes one line.
    """

    def __init__(self, leases: Leases, kubelet: Path, log: Callable[[str], None]) -> None:
        self._leases, self._folder, self._log = leases, kubelet / "device-plugins", log
        self._resources: Dict[str, Tuple[str, ...]] = {}
        self._servers: Dict[str, _Server] = {}
        #: Identity of the kubelet's socket at which the servers have registered.
        self._registered: Any = None
        #: The last problem of the lease service, and of each resource.
        self._problems: Dict[str, str] = {}

    async def run(self, ended: asyncio.Event) -> None:
        """Serve the kubelet until `ended` is set."""
        loop = asyncio.get_running_loop()
        next_layout = loop.time()
        try:
            while not ended.is_set():
                if loop.time() >= next_layout:
                    next_layout = loop.time() + _LAYOUT_SECONDS
                    await self.read_layout()
                await self.follow_kubelet()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(ended.wait(), _CHECK_SECONDS)
        finally:
            for name in list(self._servers):
                await self._servers.pop(name).stop()

    async def read_layout(self) -> None:
        """Read the tenants of the layout.

        If the service does not answer, the known tenants are kept.
        """
        loop = asyncio.get_running_loop()
        try:
            pool = await loop.run_in_executor(None, lambda: self._leases.ask(op="pool"))
        except LeaseError as error:
            self._report("", str(error))
            return
        self._report("", "")
        new = resources(pool)
        if new != self._resources:
            self._log("offers %d tenants: %s" % (len(new), ", ".join(sorted(new))))
        self._resources = new

    async def follow_kubelet(self) -> None:
        """Make the servers match the tenants, and register them at the kubelet."""
        identity = _identity(self._folder / "kubelet.sock")
        if identity is None:
            # The kubelet does not run.
            return
        if identity != self._registered:
            for name in list(self._servers):
                await self._servers.pop(name).stop()
            self._registered = identity
        for name in sorted(self._servers.keys() - self._resources.keys()):
            # Without its server, the kubelet offers the resource no more. Pods keep it.
            await self._servers.pop(name).stop()
        for name, cdi in self._resources.items():
            if name in self._servers:
                self._servers[name].cdi = cdi
            else:
                # If the kubelet refuses it, the next check tries again.
                await self._start(name, cdi)

    async def _start(self, name: str, cdi: Tuple[str, ...]) -> None:
        server = _Server(self._folder, name, cdi)
        await server.start()
        try:
            async with grpc.aio.insecure_channel("unix:%s" % (self._folder / "kubelet.sock")) as channel:
                register = channel.unary_unary(
                    "/%s/Register" % kubelet_api.DEVICE_PLUGIN_REGISTRATION,
                    request_serializer=lambda values: wire.encode(kubelet_api.REGISTER_REQUEST, values),
                    response_deserializer=lambda data: wire.decode(kubelet_api.EMPTY, data),
                )
                request = {
                    "version": kubelet_api.DEVICE_PLUGIN_VERSION,
                    "endpoint": server.path.name,
                    "resource_name": name,
                }
                await register(request, timeout=_REGISTER_SECONDS)
        except grpc.aio.AioRpcError as error:
            await server.stop()
            self._report(name, "the kubelet refused %s: %s" % (name, error.details()))
            return
        self._servers[name] = server
        self._problems.pop(name, None)
        self._log("the kubelet registered %s" % name)

    def _report(self, subject: str, problem: str) -> None:
        """Log a problem once."""
        if problem and problem != self._problems.get(subject):
            self._log(problem)
        self._problems[subject] = problem


class _Server:
    """Serves the kubelet for one resource.

    `cdi` are the CDI devices of its only device.
    """

    def __init__(self, folder: Path, name: str, cdi: Tuple[str, ...]) -> None:
        # The path of a socket has at most 107 bytes.
        self.path = folder / ("openfleet-%s.sock" % hashlib.sha256(name.encode()).hexdigest()[:16])
        self.cdi, self._device = cdi, name.partition("/")[2]
        self._stopped = asyncio.Event()
        self._server: Any = None

    async def start(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        self._server = grpc.aio.server()
        methods = {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(
                self._options,
                response_serializer=lambda values: wire.encode(kubelet_api.DEVICE_PLUGIN_OPTIONS, values),
            ),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self._watch, response_serializer=lambda values: wire.encode(kubelet_api.DEVICE_LIST, values)
            ),
            "Allocate": grpc.unary_unary_rpc_method_handler(
                self._allocate,
                request_deserializer=lambda data: wire.decode(kubelet_api.ALLOCATE_REQUEST, data),
                response_serializer=lambda values: wire.encode(kubelet_api.ALLOCATE_RESPONSE, values),
            ),
        }
        handler = grpc.method_handlers_generic_handler(kubelet_api.DEVICE_PLUGIN, methods)
        self._server.add_generic_rpc_handlers((handler,))
        before = os.umask(0o077)
        try:
            self._server.add_insecure_port("unix:%s" % self.path)
        finally:
            os.umask(before)
        await self._server.start()

    async def stop(self) -> None:
        self._stopped.set()
        await self._server.stop(None)
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    async def _options(self, _request: Any, _context: Any) -> Dict[str, Any]:
        return {}

    async def _watch(self, _request: Any, _context: Any) -> AsyncIterator[Dict[str, Any]]:
        """Yield the device once. It does not change while the server runs."""
        yield {"devices": [{"id": self._device, "health": kubelet_api.HEALTHY}]}
        await self._stopped.wait()

    async def _allocate(self, request: Mapping[str, Any], context: Any) -> Dict[str, Any]:
        if any(each["device_ids"] != [self._device] for each in request["container_requests"]):
            await context.abort(grpc.StatusCode.NOT_FOUND, "the only device is %s" % self._device)
        devices = [{"name": name} for name in self.cdi]
        return {"container_responses": [{"cdi_devices": devices} for _each in request["container_requests"]]}


def _identity(path: Path) -> Optional[Tuple[int, int]]:
    """Return inode and time of a socket, or None if it does not exist."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_ctime_ns
