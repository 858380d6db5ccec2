# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the MPS control daemons of a lab host from systemd, /proc and the daemons.

This module uses no code of the collection, like nvidia_smi.
"""

from __future__ import annotations

import re
import shlex
import time
from dataclasses import dataclass
from typing import Callable

WAIT_SECONDS = 120

# A function that runs a shell command on a host, and returns (exit status, standard output).
Run = Callable[[str], "tuple[int, str]"]


@dataclass
class Daemon:
    """A running MPS daemon, with the UUIDs of its devices and its default limits.

    Memory limits are texts as the daemon prints them.
    """

    pid: int
    devices: list[str]
    percentage: float
    limits: list[str]


class DaemonError(Exception):
    """A daemon could not be queried."""


def read_daemons(run: Run) -> dict[str, Daemon]:
    """Return the daemons by the instance name of their systemd unit.

    Raises DaemonError if a daemon cannot be queried.
    """
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
    """Query until two responses in a row are equal and not empty. Return the response.

    While another client queries a daemon, it may return nothing. For example, gpu-layout metrics queries it once a
    minute.
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
