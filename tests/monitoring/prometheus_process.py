# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Prometheus of Debian's that runs for some tests, on a free port of the loopback interface."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from rule_files import TOOLS


class Prometheus:
    """The HTTP API of one that runs."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path, **parameters):
        """The `data` of an answer; AssertionError with Prometheus' own words where it refuses."""
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def running(place: Path, config: Path, *arguments: str):
    """One with its data in `place`/data; stopped at the end."""
    command = [TOOLS / "prometheus", f"--config.file={config}", f"--storage.tsdb.path={place / 'data'}", *arguments]
    for last in (False, False, False, True):
        try:
            process, url = _start(command, place / "log")
            break
        except PortTaken:
            if last:
                raise
    try:
        yield Prometheus(url)
    finally:
        process.terminate()
        process.wait(timeout=300)


class PortTaken(Exception):
    """Somebody else has it, who asked after this process had found it free."""


def _start(command: list, log: Path) -> tuple[subprocess.Popen, str]:
    """The process and its address, once it answers."""
    address = f"127.0.0.1:{free_port()}"
    with log.open("w") as said:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=said, stderr=said)
    deadline = time.monotonic() + 300
    try:
        while True:
            ended = process.poll() is not None
            if ended and "address already in use" in log.read_text():
                raise PortTaken(address)
            assert not ended and time.monotonic() < deadline, log.read_text()[-2000:]
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://{address}/-/ready", timeout=10).close()
                return process, f"http://{address}"
            time.sleep(0.2)
    except BaseException:
        process.kill()
        process.wait()
        raise
