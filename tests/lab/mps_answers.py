# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The MPS control daemons of a lab host, as systemd, /proc and the daemons report them.

Nothing here comes from the collection, as in nvidia_smi.
"""

from __future__ import annotations

import re
import shlex
import time
from dataclasses import dataclass
from typing import Callable

WAIT_SECONDS = 120

# Runs a shell command on a host and gives (exit status, standard output).
Run = Callable[[str], "tuple[int, str]"]


@dataclass
class Daemon:
    """A daemon that runs: UUIDs of what it serves, and its default limits; those of memory in the daemon's own words."""

    pid: int
    devices: list[str]
    percentage: float
    limits: list[str]


class DaemonError(Exception):
    """A daemon could not be queried."""


def read_daemons(run: Run) -> dict[str, Daemon]:
    """By the name that the unit has; raises DaemonError."""
    units = _ask(run, "systemctl list-units --plain --no-legend --state=active 'openfleet-mps@*'")
    return {name: _daemon(run, name) for name in re.findall(r"openfleet-mps@(\S+)\.service", units)}


def _daemon(run: Run, name: str) -> Daemon:
    pid = int(_ask(run, f"systemctl show --property=MainPID --value openfleet-mps@{name}"))
    lines = _ask(run, f"tr '\\0' '\\n' </proc/{pid}/environ").splitlines()
    environment = dict(line.partition("=")[::2] for line in lines)
    devices = environment["CUDA_VISIBLE_DEVICES"].split(",")

    def answer(command: str) -> str:
        pipes = shlex.quote(environment["CUDA_MPS_PIPE_DIRECTORY"])
        return _ask(run, f"echo {command} | CUDA_MPS_PIPE_DIRECTORY={pipes} nvidia-cuda-mps-control").strip()

    def answers() -> list[str]:
        limits = [answer(f"get_default_device_pinned_mem_limit {number}") for number in range(len(devices))]
        return [answer("get_default_active_thread_percentage"), *limits]

    percentage, *limits = _settled(answers)
    return Daemon(pid, devices, float(percentage), limits)


def _settled(answers: Callable[[], list[str]]) -> list[str]:
    """Return what is answered twice in succession, the first of it not empty.

    A daemon that another client queries at that moment (gpu-layout metrics does, once a minute) may answer nothing.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    before = answers()
    while True:
        now = answers()
        if now == before and now[0]:
            return now
        if time.monotonic() > deadline:
            raise DaemonError(f"it answers {now} after {before}")
        before = now


def _ask(run: Run, command: str) -> str:
    status, output = run(command)
    if status != 0:
        raise DaemonError(f"`{command}` ended with {status}: {output.strip()[-300:]}")
    return output
