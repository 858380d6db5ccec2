# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulate a host with MPS daemons.

The module replaces systemctl, journalctl and nvidia-cuda-mps-control.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps.model import MpsDaemon, MpsPlace

MIB, GIB = 2**20, 2**30
DEVICES = ("GPU-a", "GPU-b")
DAEMON = MpsDaemon("inference", (MpsPlace("GPU-a"), MpsPlace("GPU-b")), 4, 25, 2 * GIB)
OTHER = MpsDaemon("other", (MpsPlace("GPU-c"),), 2, 50)
UNIT = "openfleet-mps@inference.service"


class Host:
    """A simulated host with systemd 252 and MPS daemons of driver release 550.

    `servers` maps the pid of a server to the limits and clients of the server.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = "running"
        self.boot_unit = self.basic_target = "active"
        #: For each unit, the properties that differ from those of a stopped unit.
        self.units: dict[str, dict[str, str]] = {}
        self.called: list[str] = []
        #: For each daemon name, the percentage, and the limits by GPU index.
        self.daemons: dict[str, dict] = {}
        self.servers: dict[int, dict] = {}
        self.broken: dict[str, str] = {}
        #: This function is called when systemd would mount a pipe directory.
        self.on_enable = lambda: None
        #: The simulated systemd calls `coming` during the query with the number `until`. `shown` counts the queries.
        self.shown, self.until, self.coming = 0, 0, lambda: None

    def __call__(self, command, input="", env=None, timeout_seconds=0):
        tool, *words = command
        if tool in self.broken:
            return subprocess.CompletedProcess(command, 1, "", self.broken[tool])
        if tool == "systemctl":
            return self.systemctl(command, words)
        if tool == "journalctl":
            text = "Starting\n[2026-11-21 Control 9] NEW UI\n[2026-11-21 Control 9] cannot allocate\n"
            return subprocess.CompletedProcess(command, 0, text, "")
        assert tool == "nvidia-cuda-mps-control"
        name = Path(env["CUDA_MPS_PIPE_DIRECTORY"]).name
        assert env["CUDA_MPS_PIPE_DIRECTORY"] == str(self.root / "run/openfleet-mps" / name)
        if name not in self.daemons:
            return subprocess.CompletedProcess(command, 1, "", "Cannot find MPS control daemon process\n")
        return subprocess.CompletedProcess(command, 0, self.daemon(self.daemons[name], *input.split()), "")

    def systemctl(self, command, words):
        verbs = [word for word in words if not word.startswith("-")]
        if verbs[0] != "show":
            self.called.append(" ".join(words))
            if "systemctl " + verbs[0] in self.broken:
                return subprocess.CompletedProcess(command, 1, "", self.broken["systemctl " + verbs[0]])
            if verbs[0] == "enable":
                self.on_enable()
            if verbs[0] == "restart" and "--no-block" not in words:
                self.start(verbs[1])
            if verbs[0] == "stop":
                self.units.pop(verbs[1], None)
                self.daemons.pop(instance(verbs[1]), None)
            return subprocess.CompletedProcess(command, 0, "", "")
        if "--" not in words:
            return subprocess.CompletedProcess(command, 0, "SystemState=%s\n" % self.state, "")
        self.shown += 1
        if self.shown == self.until:
            self.coming()
        blocks = [self.block(name) for name in words[words.index("--") + 1 :]]
        return subprocess.CompletedProcess(command, 0, "\n".join(blocks), "")

    def block(self, name):
        if name in ("gpu-layout.service", "basic.target"):
            return "ActiveState=%s\n" % (self.basic_target if name == "basic.target" else self.boot_unit)
        shown = {"Id": name, "LoadState": "loaded", "ActiveState": "inactive", "Result": "success", "MainPID": "0"}
        shown.update({"Job": "", "NeedDaemonReload": "no"}, **self.units.get(name, {}))
        return "".join("%s=%s\n" % item for item in shown.items())

    def start(self, unit):
        """Start a unit. The daemon reads its devices and limits from the unit's files."""
        name = instance(unit)
        self.units[unit] = {"ActiveState": "active", "MainPID": "9"}
        self.daemons[name] = {"percentage": 100.0, "limits": {}}
        for line in (self.root / "etc/openfleet-gpu/mps" / (name + ".limits")).read_text().splitlines():
            self.daemon(self.daemons[name], *line.split())

    def daemon(self, daemon, verb, *words):
        if verb == "get_server_list":
            return "".join("%d\n" % pid for pid in self.servers)
        if verb == "get_client_list":
            return "".join("%d\n" % pid for pid in self.servers[int(words[0])]["clients"])
        server = None if "default" in verb else int(words[0])
        at = daemon if server is None else self.servers.get(server, {})
        words = words if "default" in verb else words[1:]
        if "percentage" in verb:
            if at.get("busy"):
                at["busy"] -= 1
                return ""
            if "percentage" not in at:
                return "Server %s not found\n" % server
            at["percentage"] = float(words[0]) if verb.startswith("set") else at["percentage"]
            return "%.1f\n" % at["percentage"]
        if verb.startswith("set"):
            at["limits"][int(words[0])] = int(re.fullmatch("([0-9]+)M", words[1])[1])
            return ""
        found = at["limits"].get(int(words[0]))
        return "" if found is None else "%dM\n" % found if found < 1024 else "%dG\n" % (found // 1024)


def instance(unit):
    return re.fullmatch(r"openfleet-mps@(.+)\.service", unit)[1]


def make_host(root: Path) -> Host:
    """Return a host with everything that a daemon needs."""
    (root / "run/systemd/system").mkdir(parents=True)
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/nvidia-cuda-mps-control").touch()
    return Host(root)
