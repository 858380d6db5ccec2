# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""python3 -m openfleet_exporter CONFIG: serves the metrics of this host's GPUs until NVML is gone."""

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

#: Settings and what they are when left out.
DEFAULTS: Dict[str, Any] = {
    "address": "127.0.0.1",
    "port": 9400,
    "web_config": "",
    "textfile_dir": "",
    "hpc_job_mapping_dir": "",
    # usage, none, commands
    "processes": "usage",
    "nvlink_links": False,
    "sample_interval": 10,
    "hostname": "",
}
#: By this name those who look for a GPU's users know that it only watches (docs/holders.md).
PROCESS_NAME = b"dcgm-exporter"
_PR_SET_NAME = 15


def read_settings(path: Path) -> Dict[str, Any]:
    settings = json.loads(path.read_text())
    strangers = set(settings) - set(DEFAULTS)
    if strangers:
        raise ValueError("%s: %s is not known" % (path, ", ".join(sorted(strangers))))
    return dict(DEFAULTS, **settings)


def folder(path: str) -> Optional[Path]:
    return Path(path) if path else None


def leave(reason: str) -> None:
    """Only a new process can speak to another driver; systemd starts it."""
    print("NVML is gone, so the exporter ends and is started again: %s" % reason, flush=True)
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
    # A client that got an answer misses no Xid error from then on.
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
        print("NVML cannot be asked: %s. Is the driver there?" % error, file=sys.stderr)
        return 1
    except (WebConfigError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
