# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Control a host's MPS daemons with the library, systemd and NVIDIA's tool."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import tarfile
from typing import Any

from tests.lab.lab_fixtures import REPOSITORY, container_name

LIBRARY = "/opt/openfleet-test"
PACKAGE = "library"
WAIT_SECONDS = 180
MIB = 2**20

#: Reads an action, runs it, and prints the result.
PROGRAM = """
import dataclasses, json, sys
sys.path.insert(0, %r)
from %s.errors import ApplyError
from %s.techniques.mps.host import MpsHost, adjustable
from %s.techniques.mps.model import MpsDaemon, MpsPlace
verb, name, devices, percentage, limit = json.loads(sys.argv[1])
host = MpsHost()
daemon = MpsDaemon(name, tuple(MpsPlace(d) for d in devices), 4, percentage, limit)
try:
    if verb == "observe":
        print(json.dumps([dataclasses.asdict(seen) for seen in host.observe()]))
    elif verb == "adjustable":
        print(json.dumps(adjustable(host.observe()[0], daemon, tuple(devices))))
    elif verb in ("start", "adjust"):
        print(json.dumps(getattr(host, verb)(daemon, devices)))
    elif verb == "server_deaths":
        print(json.dumps(host.server_deaths([name])))
    elif verb == "clear":
        for seen in host.observe():
            host.stop(seen.daemon.name)
            host.forget(seen.daemon.name)
        print("null")
    else:
        print(json.dumps(getattr(host, verb)(name)))
except ApplyError as error:
    sys.exit(str(error))
""" % (LIBRARY, PACKAGE, PACKAGE, PACKAGE)

DEVICES = ["GPU-5c89ca61-4aac-4bd7-8d0f-2bb3ae2f1f0d", "GPU-0b1f2c3d-4aac-4bd7-8d0f-2bb3ae2f1f0e"]
NAME = "inference"
UNIT = f"openfleet-mps@{NAME}.service"
PIPES = f"/run/openfleet-mps/{NAME}"
LOGS = f"/var/log/openfleet-mps/{NAME}"


class MpsDaemons:
    def __init__(self, host: Any) -> None:
        self.host = host

    @staticmethod
    def install(host: Any) -> Any:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            sources = REPOSITORY / "plugins/module_utils"
            for path in sorted(sources.rglob("*.py")):
                tar.add(path, f"{PACKAGE}/{path.relative_to(sources)}")
        name = container_name(host.check_output("hostname"))
        unpack = f"rm -rf {LIBRARY} && mkdir {LIBRARY} && tar -x -C {LIBRARY}"
        command = ["podman", "exec", "--interactive", name, "sh", "-c", unpack]
        subprocess.run(command, input=archive.getvalue(), check=True)
        return host

    # --- with the library -------------------------------------------------------------------------------------------

    def run(self, verb: str, name: str = NAME, devices: Any = DEVICES, percentage: int = 25, limit: Any = None) -> Any:
        """Run an action of the library, and return (exit status, result or error)."""
        request = json.dumps([verb, name, list(devices), percentage, limit])
        done = self.host.run(f"python3 -c {shlex.quote(PROGRAM)} {shlex.quote(request)}")
        assert "Traceback" not in done.stderr, done.stderr
        return done.rc, done.stderr if done.rc else json.loads(done.stdout)

    def do(self, verb: str, *arguments: Any, **options: Any) -> Any:
        status, result = self.run(verb, *arguments, **options)
        assert status == 0, result
        return result

    def fails(self, verb: str, *arguments: Any, **options: Any) -> str:
        status, result = self.run(verb, *arguments, **options)
        assert status != 0, f"{verb} succeeded"
        return result

    def seen(self) -> dict:
        (seen,) = self.do("observe")
        return seen

    def clear(self) -> None:
        self.do("clear")

    # --- with other programs ----------------------------------------------------------------------------------------

    def ask(self, command: str) -> str:
        """Run a shell command, which must succeed, and return its output."""
        return self.host.check_output(command)

    def wait_until(self, condition: str) -> None:
        self.ask(f"timeout {WAIT_SECONDS} sh -c {shlex.quote(f'until {condition}; do sleep 0.1; done')}")

    def tell(self, command: str, directory: str = PIPES, prefix: str = "") -> str:
        """Return what NVIDIA's own tool prints for a command."""
        tool = f"{prefix} env CUDA_MPS_PIPE_DIRECTORY={directory} nvidia-cuda-mps-control"
        return self.ask(f"echo {shlex.quote(command)} | {tool}")

    def pid(self) -> int:
        return int(self.ask(f"systemctl show --property=MainPID --value {UNIT}"))

    def limits(self) -> tuple[str, str, str]:
        """Return the percentage and two devices' memory limits in the daemon's format."""
        questions = ["get_default_active_thread_percentage"]
        questions += ["get_default_device_pinned_mem_limit %d" % index for index in (0, 1)]
        # Use one command for all queries. A response may be empty.
        tool = f"env CUDA_MPS_PIPE_DIRECTORY={PIPES} nvidia-cuda-mps-control"
        asked = [f'answer=$(echo {shlex.quote(question)} | {tool}); echo "$answer."' for question in questions]
        percentage, *memory = (answer[:-1] for answer in self.ask("set -e; " + "; ".join(asked)).splitlines())
        return (percentage, *memory)
