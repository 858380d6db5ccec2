# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change and read the sharing of a host's GPUs.

nvidia-smi and the MPS control daemons report the state.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.lab.lab_fixtures import REPOSITORY, container_name
from tests.lab.mps_answers import Daemon, read_daemons
from tests.lab.nvidia_smi import Gpu, read_gpus

SCENARIO = Path(__file__).resolve().parents[1]
GIB = 2**30
RUN_SECONDS = 300


class SharingHost:
    def __init__(self, name: str, host: Any) -> None:
        self.name, self.host = name, host

    def ask(self, command: str) -> str:
        """Run a shell command, which must succeed, and return its output."""
        return self.host.check_output(command)

    # -------------------------------------------------------------- changes -----------------------------------------

    def apply(self, *entries: dict) -> dict:
        """Run `gpu-layout apply` with this layout, and return its JSON result.

        A failed run returns a result too.
        """
        return self._command("apply", entries)

    def plan(self, *entries: dict) -> dict:
        """Run `gpu-layout plan` with this layout, and return its JSON result."""
        return self._command("plan", entries)

    def nothing_to_do(self, *entries: dict) -> bool:
        return self.plan(*entries)["changed"] is False

    def _command(self, verb: str, entries: tuple[dict, ...]) -> dict:
        # The layout is passed on standard input, so that no shell interprets it.
        done = subprocess.run(
            [
                "podman",
                "exec",
                "--interactive",
                container_name(self.name),
                "gpu-layout",
                verb,
                "--json",
                "--layout",
                "-",
            ],
            input=json.dumps(entries),
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
        return json.loads(done.stdout)

    def play(self, playbook: str, *options: str, limit: bool = True) -> subprocess.CompletedProcess:
        """Run a playbook on this host, or on the fleet if `limit` is false."""
        command = ["ansible-playbook", "-i", str(SCENARIO / "inventory"), playbook]
        return subprocess.run(
            [*command, *(["--limit", self.name] if limit else []), *options],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )

    # -------------------------------------------------------------- reading -----------------------------------------

    def read(self) -> list[Gpu]:
        """Return the GPUs with the values of nvidia-smi."""
        return read_gpus(self._run)

    def gpu(self, index: int) -> dict:
        return self.told_of(self.read()[index])

    @staticmethod
    def told_of(gpu: Gpu) -> dict:
        """Return the compute mode, instances and time slice of a GPU."""
        instances = sorted((i.start, i.profile) for i in gpu.instances.values())
        return {
            "mig": gpu.mig_mode == "Enabled",
            "instances": [profile for _start, profile in instances],
            # For a GPU in MIG mode, nvidia-smi reports no meaningful compute mode.
            "compute_mode": None if gpu.mig_mode == "Enabled" else gpu.compute_mode,
            "time_slice": gpu.time_slice,
        }

    def time_slices(self) -> list[str | None]:
        return [gpu.time_slice for gpu in self.read()]

    def device(self, gpu: int, profile: str | None = None) -> str:
        return self.device_of(self.read()[gpu], profile)

    @staticmethod
    def device_of(gpu: Gpu, profile: str | None = None) -> str:
        """Return the UUID of a GPU, or of its first MIG device with this profile."""
        if profile is None:
            return gpu.uuid
        return next(i.uuids[0] for i in gpu.instances.values() if i.profile == profile)

    def daemons(self) -> dict[str, Daemon]:
        return read_daemons(self._run)

    def _run(self, command: str) -> tuple[int, str]:
        done = self.host.run(command)
        return done.rc, done.stdout
