# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the service of `gpu-layout keep` on a simulated host, and call it as users."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Iterator

from tests.adversary.attackers import PYTHON
from tests.integration.command_host import PYTHON as HOST_PYTHON
from tests.integration.command_host import build_command
from tests.integration.simulated_host import SIMULATOR, SimulatedHost

#: Longer than any response takes on a busy machine.
PATIENCE_SECONDS = 120.0
#: Creates the socket, and starts the service for the first request, as systemd does. The service exits when it is idle.
START = """
import os, select, signal, socket, subprocess, sys
path, *command = sys.argv[1:]
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
os.chmod(path, 0o666)
listener.listen(64)
os.dup2(listener.fileno(), 3)
os.environ["LISTEN_FDS"] = "1"
running, ended = [], []
def end(_number, _frame):
    ended.append(True)
    for child in running:
        os.kill(child.pid, signal.SIGTERM)
    if not running:
        os._exit(0)
signal.signal(signal.SIGTERM, end)
while True:
    select.select([3], [], [])
    running[:] = [subprocess.Popen(command, pass_fds=[3])]
    code = running[0].wait()
    running.clear()
    if code or ended:
        sys.exit(0 if ended else code)
"""


class KeepHost:
    """The service as root, its socket, and a folder that every user can read."""

    def __init__(
        self, folder: Path, library: Path, groups: tuple[str, ...] = (), most: str = "7d", within: tuple[str, ...] = ()
    ) -> None:
        self.folder = folder
        self.simulated = SimulatedHost(folder / "host", library).create([{"model": "H100-80GB", "count": 2}])
        self.command = build_command(folder / "gpu-layout")
        self.socket = folder / "keep.sock"
        self.state = folder / "state.d"
        self.settings = {"max": most, "groups": list(groups), "state_directory": str(self.state)}
        words = [HOST_PYTHON, str(self.command), *self.words(folder)]
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.service = self.simulated.popen(
                [*within, sys.executable, "-c", START, str(self.socket), *words], stdout=log, stderr=log
            )
        wait_for(self.socket.exists, "the socket")

    def words(self, folder: Path) -> list[str]:
        """Return the arguments of the service, and write its settings."""
        settings = folder / "keep.json"
        settings.write_text(json.dumps(self.settings))
        return ["keep-serve", "--settings", str(settings)]

    def close(self) -> None:
        self.service.terminate()
        self.service.wait(PATIENCE_SECONDS)

    @contextlib.contextmanager
    def holder(self, user: int) -> Iterator[int]:
        """Start a process of the user on GPU 0, and yield its pid."""
        command = [str(PYTHON), "-m", "gpusim", "run", "--gpu", "0", "--", "sh", "-c", "echo on; exec cat"]
        environment = {**self.simulated.environment, "PYTHONPATH": str(self.tool), "PYTHONDONTWRITEBYTECODE": "1"}
        with subprocess.Popen(
            command, env=environment, cwd="/", user=user, group=user, extra_groups=[],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as made:  # fmt: skip
            try:
                assert made.stdout.readline() == "on\n"
                yield made.pid
            finally:
                made.kill()

    @property
    def tool(self) -> Path:
        """Return a copy of the simulator's tool that every user can read."""
        copy = self.folder / "tool"
        if not copy.exists():
            shutil.copytree(SIMULATOR / "gpusim", copy / "gpusim", ignore=shutil.ignore_patterns("__pycache__"))
        return copy

    def keep(self, *words: object, user: int = 0) -> subprocess.CompletedProcess:
        """Run the command as a user."""
        return subprocess.run(
            [str(PYTHON), "-I", str(self.command), "keep", "--socket", str(self.socket), *map(str, words)],
            user=user, group=user, extra_groups=[], cwd="/", env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
            capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS,
        )  # fmt: skip

    def say(self, data: bytes, end: bool = True) -> dict:
        """Send bytes as root, and return the response.

        Returns an empty result if the service sent no response.
        """
        with self.connected() as made:
            with contextlib.suppress(OSError):
                made.sendall(data)
                if end:
                    made.shutdown(socket.SHUT_WR)
            return heard(made)

    def connected(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(PATIENCE_SECONDS)
        made.connect(str(self.socket))
        return made

    def kept(self) -> list[dict]:
        """Return the content of the file that records keeps."""
        path = self.state / "reclaim" / "keeps.json"
        return json.loads(path.read_text())["keeps"] if path.exists() else []


def heard(made: socket.socket) -> dict:
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := made.recv(65536):
            said += chunk
    return json.loads(said) if said else {}


def wait_for(condition, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
