# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find and continue the child process that calls NVML for a run.

A simulated fault can stop this child.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path


def stopped_children(pid: int) -> list[int]:
    """Return a process's stopped children."""
    names = [path.name for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [int(name) for name in names if _fields(name) in (("T", str(pid)), ("t", str(pid)))]


def go_on(pid: int) -> None:
    """Continue a process's stopped children."""
    for child in stopped_children(pid):
        os.kill(child, signal.SIGCONT)


def state_of(pid: int | str) -> str:
    """Return the letter of the process's state.

    Return "" if the process does not exist.
    """
    return _fields(pid)[0]


def _fields(pid: int | str) -> tuple[str, str]:
    """Return a process's state and its parent's pid."""
    try:
        state, parent = Path("/proc/%s/stat" % pid).read_text(encoding="utf-8").rpartition(")")[2].split()[:2]
    except OSError:
        return "", ""
    return state, parent
