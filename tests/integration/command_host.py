# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the command gpu-layout and its installer on a host of simulated GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ansible_collections.openfleet.gpu.plugins.module_utils.install.build_command import read_sources, sources_digest
from ansible_collections.openfleet.gpu.plugins.module_utils.install.sources import pack
from tests.documented import check_documented
from tests.integration.simulated_host import ROOT, SimulatedHost, module_path

INSTALLER = "ansible_collections.openfleet.gpu.plugins.modules.layout_boot"
BUILDER = "plugins.module_utils.install.build_command"
#: The interpreter that represents the host's Python, as in simulated_host.
PYTHON = os.environ.get("OPENFLEET_HOST_PYTHON") or sys.executable


def installer_environment() -> dict[str, str]:
    return dict(os.environ, PYTHONPATH=module_path(), LC_ALL="C.UTF-8")


def installer_input(root: Path, check: bool = False, sources: dict[str, str] | None = None, **arguments) -> str:
    """Return the input of the module layout_boot.

    The input includes the command's source files, as the action plugin sends them to a host.
    """
    sources = read_sources() if sources is None else sources
    known = {"root": str(root), "sources_digest": sources_digest(sources), **arguments}
    if known.pop("send", True):
        known["sources"] = pack(sources)
    return json.dumps({"ANSIBLE_MODULE_ARGS": {**known, "_ansible_check_mode": check, "_ansible_diff": True}})


def run_installer(root: Path, **arguments) -> dict:
    """Run the module layout_boot below `root`; return its result."""
    command, given = [PYTHON, "-m", INSTALLER], installer_input(root, **arguments)
    done = subprocess.run(
        command, input=given, env=installer_environment(), capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    result = json.loads(done.stdout)
    check_documented("layout_boot", result)
    return result


class CommandHost:
    """A host on which an operator uses the command gpu-layout at the terminal."""

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
            # The command and the module use the same directory, so that both see the same lock, journal and record.
            more = ["--state-directory", str(self.folder / "state.d")]
        return [PYTHON, str(self.command), *arguments, *more]

    def __call__(self, *arguments: str, status: int = 0, **options) -> subprocess.CompletedProcess:
        done = self.simulated.run(self.words(*arguments), check=False, **options)
        assert done.returncode == status, f"exit {done.returncode}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done


def build_command(file: Path) -> Path:
    """Build the command as one file that includes pynvml."""
    import pynvml

    environment = dict(os.environ, PYTHONPATH=str(Path(pynvml.__file__).parent))
    command = [PYTHON, "-m", BUILDER, str(file)]
    done = subprocess.run(command, env=environment, cwd=str(ROOT), capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(done.stderr)
    return file
