# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Control a lab host with tenants.

Programs use GPU memory with and without a tenant.
"""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.lab.lab_fixtures import REPOSITORY, container_name

SCENARIO = Path(__file__).resolve().parents[1]
RUN_SECONDS = 300
WAIT_SECONDS = 180
CLIENT = "/opt/client/build/client"
#: The stub's settings for processes without their own environment.
ENVIRONMENT = "/opt/client/environment"
DIRECTORY = "/usr/lib/openfleet-gpu/vgpu"
IMAGE = "localhost/openfleet-tenant"
#: The image's programs and the stub. Their libraries are all from glibc. The CDI device provides the limiter's library.
FILES = f"{CLIENT} /bin/sh /bin/cat /usr/bin/sleep /opt/stub/build/libcuda.so.1"
MAKE_IMAGE = (
    f"tar -chf /tmp/tenant.tar -C / $(echo {FILES} $(LD_LIBRARY_PATH=/opt/stub/build "
    f"ldd {FILES} {DIRECTORY}/libopenfleet-vgpu.so | tr -s '[:space:]' '\\n' | grep '^/lib.*[^:]$') | "
    f"tr ' ' '\\n' | sort -u | sed 's,^/,,') && podman import --quiet /tmp/tenant.tar {IMAGE}"
)
GIB_IN_MIB = 1024
CARD_MIB = 46068
OUT_OF_MEMORY = 2


class VgpuHost:
    def __init__(self, name: str, host: Any) -> None:
        self.name, self.host = name, host

    def ask(self, command: str) -> str:
        """Run a shell command, which must succeed, and return its output."""
        return self.host.check_output(command)

    def name_gpus(self) -> None:
        """Give the stub's cards the UUIDs of the simulated GPUs.

        On real hosts too, CUDA and NVML report the same GPUs.
        """
        uuids = self.ask("nvidia-smi --query-gpu=uuid --format=csv,noheader").split()
        memory = CARD_MIB * 2**20
        settings = {
            "LD_LIBRARY_PATH": "/opt/stub/build:/usr/local/lib/gpusim",
            "STUB_CARD": "/run/stub-card",
            "STUB_UUIDS": ",".join(uuids),
            "STUB_GPUS": str(len(uuids)),
            "STUB_MEMORY": str(memory),
        }
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        # Each user's processes write to the card's file, as they open the driver's device nodes on a real host.
        self.ask(f"printf '%s' '{text}' >{ENVIRONMENT}; touch /run/stub-card; chmod 0666 /run/stub-card")
        self.uuids = uuids

    # -------------------------------------------------------------- clients

    def shell(self, command: str, tenant: str | None = None) -> str:
        """Return a shell command that uses the stub as its driver, maybe as a tenant."""
        return f"env $(cat {ENVIRONMENT}) {f'vgpu-run {tenant} ' if tenant else ''}{command}"

    def client(self, tenant: str | None, *words: str) -> list[int]:
        return [int(word) for word in self.ask(self.shell(f"{CLIENT} {' '.join(words)}", tenant)).split()]

    def filled(self, tenant: str | None, gpu: int = 0) -> list[int]:
        """Return [MiB that a process can allocate, error of the next allocation]."""
        return self.client(tenant, "fill", "64", str(gpu))

    @contextmanager
    def serving(self, tenant: str):
        """Return a running process of the tenant."""
        file = f"/run/client-{tenant}"
        unit = f"client-{tenant}"
        self.ask(f"rm -f {file}.in {file}.out")
        command = f"vgpu-run {tenant} {CLIENT} serve {file}"
        self.ask(f"systemd-run --quiet --collect --unit={unit} -p EnvironmentFile={ENVIRONMENT} {command}")
        try:
            yield Served(self, file)
        finally:
            self.host.run(f"systemctl stop {unit}")

    # -------------------------------------------------------------- changes -----------------------------------------

    def layout(self) -> list[dict]:
        text = (SCENARIO / "inventory/host_vars" / f"{self.name}.yml").read_text()
        return yaml.safe_load(text)["gpu_layout"]

    def apply(self, layout: list[dict]) -> dict:
        """Run `gpu-layout apply` with this layout, and return its result.

        Passes the layout on standard input, so that no shell interprets it.
        """
        command = ["podman", "exec", "--interactive", container_name(self.name), "gpu-layout", "apply", "--json"]
        done = subprocess.run(
            [*command, "--layout", "-"],
            input=json.dumps(layout),
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def play(self, playbook: str, *options: str, **variables: Any) -> str:
        """Run a playbook on this host, which must succeed, and return its output."""
        command = ["ansible-playbook", "-i", str(SCENARIO / "inventory"), playbook, *options]
        done = subprocess.run(
            [*command, "-e", json.dumps(variables)],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr
        return done.stdout

    # -------------------------------------------------------------- reading -----------------------------------------

    def versions(self) -> list[str]:
        return self.ask(f"ls {DIRECTORY} | grep '^libopenfleet-vgpu.so[.]'").split()

    def current(self) -> str:
        return self.ask(f"readlink {DIRECTORY}/libopenfleet-vgpu.so")

    def smi(self, tenant: str | None) -> list[list[int]]:
        """Return [total, used] in MiB of each GPU, as the real nvidia-smi shows it."""
        query = "nvidia-smi --query-gpu=memory.total,memory.used --format=csv,noheader,nounits"
        told = self.ask(f"{f'vgpu-run {tenant} ' if tenant else ''}{query}")
        return [[int(word) for word in line.split(",")] for line in told.splitlines()]


class Served:
    """A running process that responds to lines (client.c)."""

    def __init__(self, host: VgpuHost, file: str) -> None:
        self.host, self.file, self.asked = host, file, 0

    def __call__(self, line: str) -> list[int]:
        self.asked += 1
        self.host.ask(
            f"for i in $(seq {WAIT_SECONDS * 10}); do [ -p {self.file}.in ] && break; sleep 0.1; done; "
            f"timeout {WAIT_SECONDS} sh -c 'echo {line} >{self.file}.in'; "
            f"for i in $(seq {WAIT_SECONDS * 10}); do "
            f'[ "$(wc -l <{self.file}.out)" -ge {self.asked} ] && exit 0; sleep 0.1; done; exit 1'
        )
        return [int(word) for word in self.host.ask(f"sed -n {self.asked}p {self.file}.out").split()]

    def until(self, line: str, answer: list[int]) -> None:
        """Repeat a request until its response is `answer`.

        A process reads its quota once a second.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while (last := self(line)) != answer:
            assert time.monotonic() < deadline, f"{line}: still {last}, not {answer}"
            time.sleep(0.2)
