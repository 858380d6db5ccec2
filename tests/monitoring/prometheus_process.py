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
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [TOOLS / "prometheus", f"--config.file={config}", f"--storage.tsdb.path={place / 'data'}"]
    with (place / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}", *arguments], stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + 300
        while True:
            try:
                urllib.request.urlopen(f"{url}/-/ready", timeout=10).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, (place / "log").read_text()
                time.sleep(0.2)
        yield Prometheus(url)
    finally:
        process.terminate()
        process.wait(timeout=60)
