# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command gpu-layout on a host of simulated GPUs, and its installer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from simulated_host import ROOT, SimulatedHost

INSTALLER = ROOT / "roles" / "gpu_layout" / "files" / "install.py"
#: The interpreter of the host, as in simulated_host.
PYTHON = os.environ.get("OPENFLEET_HOST_PYTHON") or sys.executable


def run_installer(*arguments: str, **options) -> subprocess.CompletedProcess:
    command = [PYTHON, str(INSTALLER), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


class CommandHost:
    """A host with the command: what a person at its terminal has."""

    def __init__(self, simulated: SimulatedHost, command: Path) -> None:
        self.simulated, self.command = simulated, command
        self.gpusim, self.seen, self.module = simulated.gpusim, simulated.seen, simulated.module
        self.folder = simulated.folder

    def layout(self, data, name="layout.json") -> str:
        path = self.folder / name
        path.write_text(data if isinstance(data, str) else json.dumps(data))
        return str(path)

    def words(self, *arguments: str) -> list[str]:
        more = []
        if arguments[0] in ("plan", "apply", "metrics"):
            # The module's own directory: both must see one lock, one journal, one record.
            more = ["--state-directory", str(self.folder / "state.d")]
        return [PYTHON, str(self.command), *arguments, *more]

    def __call__(self, *arguments: str, status: int = 0, **options) -> subprocess.CompletedProcess:
        done = self.simulated.run(self.words(*arguments), check=False, **options)
        assert done.returncode == status, f"exit {done.returncode}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done


def build_command(file: Path) -> Path:
    """The command as one file, pynvml included, as `install.py --build` makes it."""
    import pynvml

    done = run_installer("--build", str(file), env=dict(os.environ, PYTHONPATH=str(Path(pynvml.__file__).parent)))
    if done.returncode:
        raise AssertionError(done.stderr)
    return file
