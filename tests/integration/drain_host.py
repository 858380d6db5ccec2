# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulate a host with stand-ins for systemctl, scontrol and squeue.

The stand-ins implement what the module needs from the real commands. molecule/gpu_drain runs the module with the real
commands. Any call of a stand-in can fail, or can kill its caller after the call. So a test can place a fault between
any two of the module's steps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

from ansible_collections.openfleet.gpu.plugins.module_utils.drain.host import Wanted, drain, resume
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from tests.documented import check_documented
from tests.integration.simulated_host import module_path

#: The services and the scheduler that the tests drain.
CLIENTS = {"services": ["dcgm", "api", "idle", "absent"], "slurm": True}

REASON = "openfleet.gpu: clients taken off the GPUs"
#: The state before a drain. If the service dcgm is stopped, the service exporter stops too. The service api has an
#: active socket.
BEFORE = {
    "units": {
        "dcgm.service": "active",
        "exporter.service": "active",
        "api.service": "active",
        "api.socket": "active",
        "idle.service": "inactive",
    },
    "node": "IDLE",
    "reason": "",
    "jobs": [],
}
PROGRAM = """#!%s -IS
import json, os, signal, sys
folder = os.path.dirname(os.path.abspath(__file__))
def load(name, default):
    try:
        with open(os.path.join(folder, name)) as file:
            return json.load(file)
    except FileNotFoundError:
        return default
host, fault = load("host.json", None), load("fault.json", {})
calls = load("calls.json", []) + [[os.path.basename(sys.argv[0])] + sys.argv[1:]]
with open(os.path.join(folder, "calls.json"), "w") as file:
    json.dump(calls, file)
due = fault.get("nth") == len(calls)
if due and fault["kind"] == "fail":
    sys.exit("made to fail")
ALONG = {"dcgm.service": ["exporter.service"]}
NEEDS = {"exporter.service": ["dcgm.service"]}
TRIGGERS = {"api.service": "api.socket"}
def systemctl(verb, *names):
    units = host["units"]
    names = [name for name in names if not name.startswith("-")]
    for name in names:
        if verb == "show":
            print("Id=%%s\\nLoadState=%%s\\nActiveState=%%s\\nTriggeredBy=%%s\\nRequiredBy=%%s\\nTriggers=%%s\\n" %% (
                name, "loaded" if name in units else "not-found", units.get(name, "inactive"),
                TRIGGERS.get(name, ""), " ".join(ALONG.get(name, [])),
                " ".join(key for key in TRIGGERS if TRIGGERS[key] == name)))
        elif verb == "stop":
            units.update({one: "inactive" for one in [name] + ALONG.get(name, [])})
        elif verb == "start":
            if name.endswith(".socket") and units[name.replace("socket", "service")] == "active":
                sys.exit("Socket service %%s already active, refusing." %% name)
            units.update({one: "active" for one in [name] + NEEDS.get(name, [])})
def scontrol(*words):
    words = [word for word in words if not word.startswith("-")]
    if words[:2] == ["show", "slurmd"]:
        print("Hostname                 = gpu-a")
    elif words[:2] == ["show", "node"]:
        reason = " Reason=%%s [root@2026-11-21T03:27:11]" %% host["reason"] if host["reason"] else ""
        print("NodeName=gpu-a State=%%s Partitions=main%%s" %% (host["node"], reason))
    elif words[2] == "State=DRAIN":
        host.update(node="IDLE+DRAIN", reason=words[3].partition("=")[2])
    elif words[2] == "State=RESUME":
        host.update(node="IDLE", reason="")
def squeue(*words):
    print("".join(job + "\\n" for job in host["jobs"]), end="")
words = [word for word in sys.argv[1:] if word not in ("--no-ask-password", "--no-pager")]
{"systemctl": systemctl, "scontrol": scontrol, "squeue": squeue}[os.path.basename(sys.argv[0])](*words)
with open(os.path.join(folder, "host.json"), "w") as file:
    json.dump(host, file)
if due and fault["kind"] == "kill":
    os.kill(os.getppid(), signal.SIGKILL)
"""


class DrainHost:
    """A host whose files are in a folder."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.state = folder / "bin", folder / "state.d"
        self.bin.mkdir()
        self.record = self.state / "drain.json"
        self.python = os.environ.get("OPENFLEET_HOST_PYTHON") or sys.executable
        for name in ("systemctl", "scontrol", "squeue"):
            (self.bin / name).write_text(PROGRAM % self.python)
            (self.bin / name).chmod(0o755)
        self.set(**BEFORE)

    def set(self, **changes) -> None:
        (self.bin / "host.json").write_text(json.dumps({**(self.shown() if changes is not BEFORE else {}), **changes}))

    def shown(self) -> dict:
        path = self.bin / "host.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def calls(self) -> list[list[str]]:
        path = self.bin / "calls.json"
        return json.loads(path.read_text()) if path.exists() else []

    def fault(self, nth: int | None = None, kind: str = "fail") -> None:
        """Let the nth call from now on fail.

        Without a number, no call fails.
        """
        (self.bin / "calls.json").write_text("[]")
        (self.bin / "fault.json").write_text(json.dumps({"nth": nth, "kind": kind}))

    def module(self, state: str, check: bool = False, **arguments) -> dict | None:
        """Return the module's result.

        Return None if the module was killed.
        """
        arguments.update(state=state, state_directory=str(self.state), _ansible_check_mode=check, _ansible_diff=True)
        environment = dict(os.environ, PATH=f"{self.bin}:{os.environ['PATH']}", PYTHONPATH=module_path())
        done = subprocess.run(
            [self.python, "-m", "ansible_collections.openfleet.gpu.plugins.modules.drain"],
            input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == -9:
            return None
        assert "Traceback" not in done.stderr, done.stderr
        result = json.loads(done.stdout)
        check_documented("drain", result)
        return result

    def drain(self, check: bool = False, **arguments) -> dict | None:
        return self.module("drained", check, **{**CLIENTS, **arguments})

    def resume(self, check: bool = False, **arguments) -> dict | None:
        return self.module("resumed", check, **arguments)

    def sweep(self, state: str, **arguments) -> str | None:
        """Run the module in a process that has already loaded it.

        Return the module's message, which is `""` on success, or None if the module was killed. A sweep executes the
        module hundreds of times, and starting an interpreter each time would take most of the test's time.
        """
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.environ["PATH"] = f"{self.bin}:{os.environ['PATH']}"
                said = _execute(state, str(self.state), arguments)
                os.write(writing, said.encode())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            said = pipe.read()
        _pid, status = os.waitpid(child, 0)
        return None if os.WIFSIGNALED(status) else said


def _execute(state: str, directory: str, arguments: dict) -> str:
    try:
        if state == "drained":
            drain(Wanted(**{**CLIENTS, **arguments}), directory)
        else:
            resume(directory)
    except FleetError as error:
        return str(error)
    except BaseException:
        return traceback.format_exc()
    return ""
