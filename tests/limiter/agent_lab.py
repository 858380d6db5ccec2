# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the agent that distributes turnstiles, and clients that attack the agent.

`Agent` replaces the service manager, and keeps the agent's file descriptors for it.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import files as vgpu_files
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.agent_client import socket_folder
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.model import VgpuSeat, VgpuTenant
from tests.limiter.limiter_lab import DEADLINE, Tenant
from tests.limiter.sm import Worker, World
from tests.limiter.turnstile_lab import Seat

ROOT = Path(__file__).resolve().parents[2]
#: The Python interpreter of the simulated host.
PYTHON = os.environ.get("OPENFLEET_HOST_PYTHON") or sys.executable
MAIN = "import sys; from ansible_collections.openfleet.gpu.plugins.module_utils.cli.main import main; sys.exit(main())"
FIRST = 3


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"not in {DEADLINE} s: {what}"
        time.sleep(0.02)


def wait_until_read(path: Path) -> None:
    """Wait until the agent has read a file twice.

    At the second read, the agent has finished all actions for the first one. A changed access time shows a read. The
    kernel updates the access time only if it is older than the modification time (mount(8), relatime), so the function
    sets both times before it waits.
    """
    for _ in range(2):
        os.utime(path, (0, time.time()))
        wait_until(lambda: path.stat().st_atime > 0, "%s is read, on a file system with access times" % path)


class Agent:
    """Run `gpu-layout vgpu-agent` below a root directory.

    Like systemd, this class receives the agent's readiness message and keeps its file descriptors.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.kept, self.ready, self.process = root, {}, 0, None
        #: Additional environment variables for the agent's process, for example the location of NVML.
        self.environment: dict[str, str] = {}
        self.log = root.parent / "agent.log"
        self._address = f"openfleet-test-{os.getpid()}-{id(self)}"
        self._manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._manager.bind("\0" + self._address)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            text, control, _flags, _from = self._manager.recvmsg(4096, socket.CMSG_SPACE(4))
            if text == b"END":
                return
            passed = [array.array("i", part[2])[0] for part in control]
            lines = dict(line.split("=", 1) for line in text.decode().splitlines())
            if "FDSTORE" in lines:
                self.kept[lines["FDNAME"]] = passed.pop()
            if "FDSTOREREMOVE" in lines:
                os.close(self.kept.pop(lines["FDNAME"]))
            self.ready += "READY" in lines
            for descriptor in passed:
                os.close(descriptor)

    def start(self) -> Agent:
        """Start the agent with the stored descriptors, and wait until it is ready."""
        before, descriptors = self.ready, list(self.kept.values())

        def hand_over() -> None:
            # Use high numbers, so that dup2 overwrites no descriptor before it is copied.
            high = [os.dup2(descriptor, 200 + n) for n, descriptor in enumerate(descriptors)]
            for n, descriptor in enumerate(high):
                os.dup2(descriptor, FIRST + n)

        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join([str(ROOT / "collections"), *filter(None, sys.path)]),
            "OPENFLEET_VGPU_ROOT": str(self.root),
            "NOTIFY_SOCKET": "@" + self._address,
            "LISTEN_FDS": str(len(descriptors)),
            "LISTEN_FDNAMES": ":".join(self.kept),
            **self.environment,
        }
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                ["sh", "-c", 'LISTEN_PID=$$ exec "$@"', "sh", PYTHON, "-c", MAIN, "vgpu-agent"],
                env=environment,
                stdout=log,
                stderr=log,
                close_fds=False,
                preexec_fn=hand_over,
            )
        wait_until(lambda: self.ready > before or self.process.poll() is not None, "the agent is ready")
        assert self.process.poll() is None, self.log.read_text()
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE)

    def restart(self, lose: bool = False) -> None:
        """Restart the agent as systemd does after the agent was killed.

        If `lose` is true, close the stored descriptors first, as `systemctl stop` and `start` do.
        """
        self.kill()
        if lose:
            self.lose()
        self.start()

    def lose(self) -> None:
        while self.kept:
            os.close(self.kept.popitem()[1])

    def end(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()
        self.lose()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"END", "\0" + self._address)

    def page(self, gpu_uuid: str, tenant: str) -> bytes:
        """Return the content of a tenant's page."""
        return os.pread(self.kept[f"seat-1-{gpu_uuid}-{tenant}"], 1 << 20, 0)


def spec_of(tenant: Tenant, group: str | None = None) -> VgpuTenant:
    """Return a specification of the tenant, with the seats and shares of its quota."""
    said = [line.split() for line in (tenant.folder / "quota").read_text().splitlines() if not line.startswith("#")]
    words = {line[0]: line[1] for line in said}
    gpus = [line for line in said if line[0] == "gpu"]
    return VgpuTenant(
        tenant.name,
        1 << 30,
        int(gpus[0][5]),
        tuple(VgpuSeat(line[1], int(line[7])) for line in gpus),
        words["policy"],
        int(words["priority"]),
        group=group,
    )


def make_tenant(tenant: Tenant, group: str | None = None) -> Tenant:
    """Write the files of a tenant that the agent reads."""
    spec = vgpu_files.to_data(spec_of(tenant, group))
    (tenant.root / vgpu_files.agent_folder(tenant.name)).mkdir(parents=True, exist_ok=True)
    new = tenant.folder / "tenant.json.new"
    new.write_text(json.dumps(spec))
    new.rename(tenant.root / vgpu_files.spec_path(tenant.name))
    return tenant


@contextlib.contextmanager
def connected(folder: Path) -> Iterator[socket.socket]:
    """Connect to the agent's socket in the folder."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(DEADLINE)
        with socket_folder(folder) as path:
            connection.connect(path + vgpu_files.AGENT_SOCKET)
        yield connection


@contextlib.contextmanager
def handed(folder: Path) -> Iterator[dict[str, int]]:
    """Connect as a client, and return the received descriptors by their lines."""
    found: dict[str, int] = {}
    with connected(folder) as connection:
        while True:
            text, control, _flags, _from = connection.recvmsg(1 << 16, socket.CMSG_SPACE(4 * 64))
            if not text:
                break
            passed = array.array("i", b"".join(part[2] for part in control))
            found.update(zip(text.decode().splitlines(), passed))
    try:
        yield found
    finally:
        for descriptor in found.values():
            os.close(descriptor)


class Pause:
    """Stop the simulated clock at a given time, until the test continues it."""

    def __init__(self, world: World, tenant: Tenant, seconds: float) -> None:
        self._folder = world.folder / f"pause-{len(world.workers)}"
        self._folder.mkdir()
        script = self._folder / "run"
        script.write_text(
            f"#!/bin/sh\ntouch {self._folder}/here\nuntil [ -e {self._folder}/on ]; do sleep 0.02; done\n"
        )
        script.chmod(0o755)
        self.worker: Worker = world.worker(tenant, f"--run {script} --start {seconds} --seconds 0", preload=False)

    def __enter__(self) -> None:
        wait_until(lambda: (self._folder / "here").exists(), "the world pauses")

    def __exit__(self, *_: object) -> None:
        (self._folder / "on").touch()


POINTS = 5  # The tolerance for a tenant's share, in percentage points. A turn is 2 percent of a second.
HALF_MS = "--kernel 500000 --report 0.1"


def pair(world: World, words: str, percents: tuple[int, int] = (50, 50)) -> list[Worker]:
    """Create two tenants on one GPU.

    The agent knows both tenants, and each has one worker.
    """
    tenants = [make_tenant(world.tenant(sm, f"tenant-{seat}", seat)) for seat, sm in enumerate(percents)]
    return [world.worker(tenant, words) for tenant in tenants]


def own(tenant: Tenant) -> Path:
    """Return the folder that is mounted only in the containers of this tenant."""
    return tenant.root / vgpu_files.agent_folder(tenant.name)


def seat_of(agent: Agent, tenant: Tenant) -> Seat:
    """Return the seat in the tenant's page."""
    return Seat.from_buffer_copy(agent.page(tenant.card.uuid(), tenant.name))


def own_page(world: World, found: dict[str, int], number: int = 0) -> int:
    return found[f"{world.card.uuid()} own {number}"]


def file_of(world: World) -> Path:
    return world.workers[0].tenant.gpus / f"{world.card.uuid()}.1"


def folder_of(tenant: Tenant) -> int:
    return os.open(own(tenant), os.O_PATH | os.O_DIRECTORY)
