# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long a process runs on a GPU before the next one gets its turn: nvidia-smi's compute policy "timeslice".

NVML has no public call for it, so nvidia-smi is asked. It takes numbers that mean nothing and calls that a success, and
the driver forgets the setting when it is reloaded: what counts is what nvidia-smi lists afterwards.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path
from typing import Iterable, Sequence

from . import durable
from .command import Run, run_tool
from .errors import NvmlError
from .layout_types import TIME_SLICES
from .model import Gpu

_LIST = ("nvidia-smi", "compute-policy", "-l")
_ROW = re.compile(r"^\|\s+(\d+)\s+Timeslice\s+(\w+)\s+\|", re.MULTILINE)
#: What nvidia-smi calls a number that the driver took and that means nothing.
UNKNOWN = "unknown"
SCHEMA = 1


def with_time_slices(gpus: Sequence[Gpu], run: Run = run_tool) -> tuple[Gpu, ...]:
    """The GPUs with their time slices; where one has none, with the reason."""
    listed, reason = _ask([*_LIST], run)
    rows = _rows(listed)
    return tuple(_with(gpu, rows, reason, run) for gpu in gpus)


def set_time_slice(gpu_uuid: str, name: str, run: Run = run_tool) -> None:
    """Set it, and see it set. Raises NvmlError where nvidia-smi lists anything else afterwards."""
    number = TIME_SLICES.index(name)
    # 470 wants the number as a word of its own; later ones take that too (their --help).
    said, reason = _ask(["nvidia-smi", "compute-policy", "-i", gpu_uuid, "--set-timeslice", str(number)], run)
    listed, unread = _ask([*_LIST, "-i", gpu_uuid], run)
    found = list(_rows(listed).values())
    if found != [name]:
        if reason == unread == _NOT_INSTALLED:
            raise NvmlError(
                "gpu %s" % gpu_uuid,
                "the time slice was to be %s, and %s" % (name, reason),
                "Install it (nvidia-utils or nvidia-driver-cuda, in the driver's version), and run again.",
                gpu=gpu_uuid,
            )
        shown = "shows %s" % found[0] if found else "does not show it (%s)" % unread
        raise NvmlError(
            "gpu %s" % gpu_uuid,
            "the time slice was to be %s, and nvidia-smi %s; it said: %s"
            % (name, shown, reason or " ".join(said.split())),
            "See whether this GPU has time slices (nvidia-smi compute-policy -i %s -l)." % gpu_uuid,
            gpu=gpu_uuid,
        )


_NOT_INSTALLED = "nvidia-smi is not installed"


class Record:
    """The GPUs of a host that were given a time slice: where there are none, a run that gives none need not look."""

    def __init__(self, directory: str) -> None:
        self.path = Path(directory) / "time_slices.json"

    def any(self) -> bool:
        """Raises ApplyError for a file that this release cannot read."""
        data = durable.read(self.path, SCHEMA)
        return bool(data and data["gpus"])

    def write(self, gpu_uuids: Iterable[str]) -> None:
        data = {"schema": SCHEMA, "gpus": sorted(gpu_uuids)}
        known = durable.read(self.path, SCHEMA) or {"schema": SCHEMA, "gpus": []}
        if known != data:
            durable.write(self.path, data)


def _with(gpu: Gpu, rows: dict[int, str], reason: str, run: Run) -> Gpu:
    if gpu.index in rows:
        return dataclasses.replace(gpu, time_slice=rows[gpu.index], no_time_slice=None)
    if rows:
        # The list ends at the first GPU that has none.
        listed, reason = _ask([*_LIST, "-i", gpu.uuid], run)
        found = list(_rows(listed).values())
        if found:
            return dataclasses.replace(gpu, time_slice=found[0], no_time_slice=None)
    return dataclasses.replace(gpu, time_slice=None, no_time_slice=reason or "nvidia-smi lists none")


def _rows(listed: str) -> dict[int, str]:
    """By index of the GPU, in the layout's words."""
    return {int(index): _word(value) for index, value in _ROW.findall(listed)}


def _word(value: str) -> str:
    return value.lower() if value.lower() in TIME_SLICES else UNKNOWN


def _ask(command: list[str], run: Run) -> tuple[str, str]:
    """(what it printed, why it failed): it prints GPUs before the one that makes it fail, all on standard output."""
    try:
        done = run(command)
    except FileNotFoundError:
        return "", _NOT_INSTALLED
    except (OSError, subprocess.SubprocessError) as error:
        return "", str(error)
    if done.returncode == 0:
        return done.stdout, ""
    failed = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.startswith("Failed")]
    return done.stdout, (failed or [" ".join(done.stdout.split()[-20:]) or "exit status %d" % done.returncode])[0]
