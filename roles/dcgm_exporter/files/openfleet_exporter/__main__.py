# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve the metrics of this host's GPUs until NVML fails.

usage: python3 -m openfleet_exporter CONFIG
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any, Dict, Optional

import pynvml as nvml
from prometheus_client import CollectorRegistry, make_wsgi_app

from .collector import HostCollector
from .events import XidErrors
from .from_nvitop import FromNvitop
from .gpm import Gpm
from .gpus import Gpus
from .web import Passwords, Server, WebConfigError, guarded, metrics_only, read_config, tls_context

#: Settings and their defaults.
DEFAULTS: Dict[str, Any] = {
    "address": "127.0.0.1",
    "port": 9400,
    "web_config": "",
    "textfile_dir": "",
    "hpc_job_mapping_dir": "",
    # usage, none or commands
    "processes": "usage",
    "nvlink_links": False,
    "sample_interval": 10,
    "hostname": "",
}
#: Process name by which the detection of GPU holders recognizes the exporter (docs/holders.md).
PROCESS_NAME = b"dcgm-exporter"
_PR_SET_NAME = 15


def read_settings(path: Path) -> Dict[str, Any]:
    settings = json.loads(path.read_text())
    unknown = set(settings) - set(DEFAULTS)
    if unknown:
        raise ValueError("%s: unknown settings: %s" % (path, ", ".join(sorted(unknown))))
    return dict(DEFAULTS, **settings)


def folder(path: str) -> Optional[Path]:
    return Path(path) if path else None


def leave(reason: str) -> None:
    """End the process. systemd restarts it with the new driver's library."""
    print("NVML no longer works, so the exporter exits, and systemd restarts it: %s" % reason, flush=True)
    os._exit(1)


def serve(settings: Dict[str, Any]) -> None:
    state = os.environ.get("STATE_DIRECTORY")
    config = read_config(folder(settings["web_config"]))
    context = tls_context(config)
    nvml.nvmlInit()
    gpus = Gpus(Path(state, "gpus.json") if state else None)
    xids, gpm = XidErrors(gpus), Gpm(gpus, float(settings["sample_interval"]))
    collector = HostCollector(
        gpus,
        FromNvitop(settings["hostname"] or socket.gethostname(), settings["processes"], bool(settings["nvlink_links"])),
        xids,
        gpm,
        (folder(settings["textfile_dir"]), folder(settings["hpc_job_mapping_dir"])),
        leave,
    )
    registry = CollectorRegistry()
    registry.register(collector)
    application = guarded(metrics_only(make_wsgi_app(registry)), Passwords(config.get("basic_auth_users", {})))
    server = Server(settings["address"], int(settings["port"]), application, context)
    for thread in (xids, gpm):
        thread.start()
    # Count Xid errors before the first scrape is answered.
    xids.ready.wait(10)
    for thread in (xids, gpm):
        threading.Thread(target=end_with, args=(thread,), daemon=True).start()
    print(
        "serving on %s port %d%s" % (settings["address"], server.server_port, " with TLS" if context else ""),
        flush=True,
    )
    server.serve_forever()


def end_with(thread: Any) -> None:
    thread.join()
    leave(thread.gone or "%s ended" % thread.name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path, help="settings, as JSON")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_NAME, PROCESS_NAME, 0, 0, 0)
    try:
        serve(read_settings(options.config))
    except nvml.NVMLError as error:
        print("NVML does not answer: %s. Is the driver loaded?" % error, file=sys.stderr)
        return 1
    except (WebConfigError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
