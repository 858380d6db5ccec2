# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve the kubelet on two sockets: its registration of plugins, and DRA."""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict, Iterator

import grpc

from . import kubelet_api, wire
from .devices import DRIVER

#: Maximum number of calls at once. The kubelet prepares the claims of a pod in one call.
_WORKERS = 4


@contextlib.contextmanager
def serving(plugin: Any, kubelet: Path, log: Callable[[str], None]) -> Iterator[None]:
    """Serve the kubelet with this root folder until the block ends."""
    endpoint = kubelet / "plugins" / DRIVER / "dra.sock"
    registration = kubelet / "plugins_registry" / ("%s-reg.sock" % DRIVER)

    def info(_request: Dict[str, Any]) -> Dict[str, Any]:
        return {
            "type": kubelet_api.PLUGIN_TYPE,
            "name": DRIVER,
            "endpoint": str(endpoint),
            "supported_versions": list(kubelet_api.SERVICES),
        }

    def registered(status: Dict[str, Any]) -> Dict[str, Any]:
        text = "registered the plugin" if status["plugin_registered"] else "refused the plugin: %s" % status["error"]
        log("the kubelet %s" % text)
        return {}

    calls = {
        "NodePrepareResources": _method(plugin.prepare, kubelet_api.PREPARE_REQUEST, kubelet_api.PREPARE_RESPONSE),
        "NodeUnprepareResources": _method(
            plugin.unprepare, kubelet_api.UNPREPARE_REQUEST, kubelet_api.UNPREPARE_RESPONSE
        ),
    }
    registering = {
        "GetInfo": _method(info, kubelet_api.INFO_REQUEST, kubelet_api.PLUGIN_INFO),
        "NotifyRegistrationStatus": _method(
            registered, kubelet_api.REGISTRATION_STATUS, kubelet_api.REGISTRATION_STATUS_RESPONSE
        ),
    }
    with contextlib.ExitStack() as ending:
        # The kubelet calls the endpoint as soon as it finds the other socket.
        ending.enter_context(_listening(endpoint, dict.fromkeys(kubelet_api.SERVICES.values(), calls)))
        ending.enter_context(_listening(registration, {kubelet_api.REGISTRATION: registering}))
        yield


@contextlib.contextmanager
def _listening(path: Path, services: Dict[str, Dict[str, Any]]) -> Iterator[None]:
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    server = grpc.server(ThreadPoolExecutor(_WORKERS))
    handlers = [grpc.method_handlers_generic_handler(name, methods) for name, methods in services.items()]
    server.add_generic_rpc_handlers(tuple(handlers))
    before = os.umask(0o077)
    try:
        server.add_insecure_port("unix:%s" % path)
    finally:
        os.umask(before)
    server.start()
    try:
        yield
    finally:
        server.stop(grace=5).wait()
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def _method(call: Callable[[Dict[str, Any]], Dict[str, Any]], request: Any, response: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        lambda message, _context: call(message),
        request_deserializer=lambda data: wire.decode(request, data),
        response_serializer=lambda values: wire.encode(response, values),
    )
