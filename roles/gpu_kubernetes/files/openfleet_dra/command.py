# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the plugin until a signal ends it."""

from __future__ import annotations

import argparse
import asyncio
import signal
import threading
from pathlib import Path

from .cluster import Cluster
from .device_plugin import DevicePlugins
from .lease_client import SOCKET, Leases
from .plugin import Plugin
from .server import serving

#: Seconds between two checks of the layout and of the leases.
_PERIOD_SECONDS = 10.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main() -> int:
    """Serve the kubelet. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Give leases of GPUs to pods.")
    parser.add_argument("--node", required=True, help="name of the node")
    parser.add_argument("--kubeconfig", required=True, type=Path, help="kubeconfig of the kubelet")
    parser.add_argument("--kubelet", default=Path("/var/lib/kubelet"), type=Path, help="root folder of the kubelet")
    parser.add_argument("--api", choices=("dra", "device-plugin"), default="dra", help="API of the kubelet to use")
    parser.add_argument("--leases", default=SOCKET, help="socket of the lease service")
    options = parser.parse_args()
    if options.api == "device-plugin":
        asyncio.run(_serve_tenants(DevicePlugins(Leases(options.leases), options.kubelet, _log)))
        return 0
    ended = threading.Event()
    for number in _SIGNALS:
        signal.signal(number, lambda *_signal: ended.set())
    plugin = Plugin(options.node, Cluster(options.kubeconfig), Leases(options.leases), options.kubelet, _log)
    with serving(plugin, options.kubelet, _log):
        plugin.tick()
        while not ended.wait(_PERIOD_SECONDS):
            plugin.tick()
    return 0


async def _serve_tenants(plugins: DevicePlugins) -> None:
    ended = asyncio.Event()
    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await plugins.run(ended)


def _log(text: str) -> None:
    """Write a line, with other programs' control characters escaped."""
    print("".join(each if each.isprintable() else repr(each)[1:-1] for each in text), flush=True)
