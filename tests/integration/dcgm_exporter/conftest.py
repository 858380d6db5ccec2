# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the embedded exporter as a separate process on a simulated host."""

from __future__ import annotations

import base64
import json
import os
import re
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.simulated_host import SimulatedHost

FILES = Path(__file__).resolve().parents[3] / "roles" / "dcgm_exporter" / "files"
DEADLINE = 180


class Exporter:
    """A running exporter, with methods that scrape it."""

    def __init__(self, host: SimulatedHost, **settings) -> None:
        self.host, self.folder = host, host.folder
        settings = {"port": 0, "hostname": "here", "sample_interval": 1, **settings}
        config = self.folder / "exporter.json"
        config.write_text(json.dumps(settings))
        state = self.folder / "exporter.d"
        state.mkdir(exist_ok=True)
        environment = dict(host.environment, STATE_DIRECTORY=str(state), PYTHONUNBUFFERED="1")
        environment["PYTHONPATH"] += f":{FILES}"
        self.log = self.folder / "exporter.log"
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "openfleet_exporter", str(config)]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        self.secure = (
            bool(settings.get("web_config")) and "tls_server_config" in Path(settings["web_config"]).read_text()
        )
        self.port = int(self.wait(lambda: re.search(r"serving on \S+ port (\d+)", self.log.read_text())).group(1))

    def wait(self, what):
        """Poll `what` until its result is true, and return this result."""
        deadline = time.monotonic() + DEADLINE
        while True:
            found = what()
            if found:
                return found
            assert self.process.poll() is None, f"the exporter ended:\n{self.log.read_text()}"
            assert time.monotonic() < deadline, f"not in {DEADLINE} s; its log:\n{self.log.read_text()}"
            time.sleep(0.1)

    def get(self, path="/metrics", user=None, headers=()):
        """Return the HTTP status and the body."""
        request = urllib.request.Request(
            f"{'https' if self.secure else 'http'}://127.0.0.1:{self.port}{path}", headers=dict(headers)
        )
        if user is not None:
            request.add_header("Authorization", "Basic " + base64.b64encode(user.encode()).decode())
        context = None
        if self.secure:
            context = ssl.create_default_context(cafile=str(self.folder / "tls.crt"))
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE, context=context) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def samples(self):
        """Scrape the exporter, and return the samples."""
        status, body = self.get()
        assert status == 200, f"{body}{self.log.read_text()}"
        return Samples(body)

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()


class Samples:
    def __init__(self, text: str) -> None:
        self.text = text
        self.all = [s for family in text_string_to_metric_families(text) for s in family.samples]

    def of(self, name, **labels):
        """Return the values of the metric `name` with these labels."""
        return [s.value for s in self.all if s.name == name and labels.items() <= s.labels.items()]

    def labels(self, name, **labels):
        return [s.labels for s in self.all if s.name == name and labels.items() <= s.labels.items()]

    @property
    def names(self):
        return {s.name for s in self.all}


@pytest.fixture(scope="session")
def library():
    with tempfile.TemporaryDirectory(prefix="openfleet-") as folder:
        yield SimulatedHost.build(Path(folder)).library


@pytest.fixture
def host(library):
    if os.geteuid() != 0:
        pytest.skip("partitioning GPUs needs root, also on the simulator: run as root")
    with tempfile.TemporaryDirectory(prefix="openfleet-") as folder:
        yield SimulatedHost(Path(folder), library)


@pytest.fixture
def start(host):
    """Return a function that starts an exporter on the host.

    The fixture stops the exporters after the test.
    """
    running = []

    def one(**settings):
        running.append(Exporter(host, **settings))
        return running[-1]

    yield one
    for exporter in running:
        exporter.stop()


@pytest.fixture
def instance():
    """Return a function that creates an instance: instance(host, gpu, profile, start)."""
    script = Path(__file__).resolve().parents[1] / "make_instance.py"

    def make(host, gpu, profile, at):
        host.run([sys.executable, str(script), str(gpu), profile, str(at)])

    return make
