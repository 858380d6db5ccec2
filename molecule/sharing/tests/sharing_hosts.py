# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a host shares its GPUs, by the word of NVIDIA's own programs: nvidia-smi and the MPS control daemons themselves."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from lab_fixtures import REPOSITORY, container_name
from mps_answers import Daemon, read_daemons
from nvidia_smi import read_gpus

SCENARIO = Path(__file__).resolve().parents[1]
GIB = 2**30
RUN_SECONDS = 300


class SharingHost:
    def __init__(self, name: str, host: Any) -> None:
        self.name, self.host = name, host

    def ask(self, command: str) -> str:
        """What a shell command printed, which must succeed."""
        return self.host.check_output(command)

    # -------------------------------------------------------------- doing

    def apply(self, *entries: dict) -> dict:
        """`gpu-layout apply` with this layout: what it returned, as JSON, also where it failed."""
        return self._command("apply", entries)

    def nothing_to_do(self, *entries: dict) -> bool:
        return self._command("plan", entries)["changed"] is False

    def _command(self, verb: str, entries: tuple[dict, ...]) -> dict:
        # The layout is standard input, so that no shell reads it.
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

    def play(self, playbook: str, *options: str, **variables: Any) -> subprocess.CompletedProcess:
        """A playbook on this host alone."""
        command = ["ansible-playbook", "-i", str(SCENARIO / "inventory"), playbook, "--limit", self.name]
        return subprocess.run(
            [*command, *options, "-e", json.dumps(variables)],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )

    # -------------------------------------------------------------- looking

    def gpu(self, index: int) -> dict:
        """Compute mode, instances and time slice of a GPU, in nvidia-smi's words."""
        gpu = read_gpus(self._run)[index]
        instances = sorted((i.start, i.profile) for i in gpu.instances.values())
        return {
            "mig": gpu.mig_mode == "Enabled",
            "instances": [profile for _start, profile in instances],
            # It tells no mode of a GPU in MIG mode that would mean anything.
            "compute_mode": None if gpu.mig_mode == "Enabled" else gpu.compute_mode,
            "time_slice": gpu.time_slice,
        }

    def time_slices(self) -> list[str | None]:
        return [gpu.time_slice for gpu in read_gpus(self._run)]

    def device(self, gpu: int, profile: str | None = None) -> str:
        """The UUID of a GPU, or of the first MIG device of a profile on it."""
        found = read_gpus(self._run)[gpu]
        if profile is None:
            return found.uuid
        return next(i.uuids[0] for i in found.instances.values() if i.profile == profile)

    def daemons(self) -> dict[str, Daemon]:
        return read_daemons(self._run)

    def _run(self, command: str) -> tuple[int, str]:
        done = self.host.run(command)
        return done.rc, done.stdout
