# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read and set the compute policy "timeslice" with nvidia-smi.

NVML has no public call for this policy.
"""

from __future__ import annotations

import re

from ...processes.command import FAILURES, Run
from .model import TIME_SLICES, UNKNOWN

LIST = ("nvidia-smi", "compute-policy", "-l")
NOT_INSTALLED = "nvidia-smi is not installed"
_ROW = re.compile(r"^\|\s+(\d+)\s+Timeslice\s+(\w+)\s+\|", re.MULTILINE)


def ask(command: list[str], run: Run) -> tuple[str, str]:
    """Run an nvidia-smi command, and return (output, reason of a failure).

    nvidia-smi writes its errors to standard output too. If a GPU fails, the output ends before this GPU.
    """
    try:
        done = run(command)
    except FileNotFoundError:
        return "", NOT_INSTALLED
    except FAILURES as error:
        return "", str(error)
    if done.returncode == 0:
        return done.stdout, ""
    failed = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.startswith("Failed")]
    return done.stdout, (failed or [" ".join(done.stdout.split()[-20:]) or "exit status %d" % done.returncode])[0]


def read_rows(listed: str) -> dict[int, str]:
    """Return time slices, with the layout's names, by GPU index."""
    return {int(index): _word(value) for index, value in _ROW.findall(listed)}


def _word(value: str) -> str:
    return value.lower() if value.lower() in TIME_SLICES else UNKNOWN
