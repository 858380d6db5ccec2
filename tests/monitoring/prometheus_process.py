# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run Debian's Prometheus for tests, on a free port of the loopback interface."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from tests.monitoring.rule_files import TOOLS


class Prometheus:
    """Query the HTTP API of a running Prometheus."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path, **parameters):
        """Return the `data` of a response.

        Raises AssertionError with Prometheus' error message if the request fails.
        """
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error


@contextlib.contextmanager
def running(place: Path, config: Path, *arguments: str):
    """Run a Prometheus with its data in `place`/data, and stop it after the block."""
    command = [TOOLS / "prometheus", f"--config.file={config}", f"--storage.tsdb.path={place / 'data'}"]
    # Let the kernel choose the port, because any port that was free before may be in use by now.
    command += ["--web.listen-address=127.0.0.1:0", *arguments]
    log = place / "log"
    with log.open("w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        yield Prometheus(_ready(process, log))
    finally:
        process.terminate()
        process.wait(timeout=300)


def _ready(process: subprocess.Popen, log: Path) -> str:
    """Wait until the server responds, and return its address."""
    deadline = time.monotonic() + 300
    while True:
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        listening = re.search(r'"Listening on" address=(\S+)', log.read_text())
        with contextlib.suppress(OSError):
            if listening:
                url = f"http://{listening[1]}"
                urllib.request.urlopen(f"{url}/-/ready", timeout=10).close()
                return url
        time.sleep(0.2)
