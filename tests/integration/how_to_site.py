# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follow how-to pages' commands in an inventory of simulated hosts."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, Mapping, Sequence

import yaml

from tests.integration.simulated_fleet import Fleet
from tests.integration.simulated_host import ROOT

#: The pages' programs that run unchanged in the inventory's directory.
TOOLS = ("ansible-vault", "grep", "sed")


class _InventoryFleet(Fleet):
    """A fleet whose playbooks run in the inventory's directory."""

    def execute(self, command: list[str], environment: Mapping[str, str], folder: Path) -> Any:
        folder = self.folder / "inventory"
        return super().execute(command, {**environment, "PWD": str(folder)}, folder)


class Site:
    """An inventory in a git repository, with a directory for each host's variables."""

    def __init__(self, folder: Path, library: Path, names: Sequence[str], gpus: int = 1) -> None:
        self.fleet = _InventoryFleet(folder, library, names)
        for name in names if gpus > 1 else ():
            self.fleet.hosts[name].create([{"model": "H100-80GB", "count": gpus}], host=name)
        self.folder = folder / "inventory"
        #: The usual directory of pynvml belongs to this machine. The hosts share another one.
        self.directory = folder / "openfleet-gpu" / "python"
        self.environment = dict(os.environ, HOME=str(folder / "home"))
        (folder / "home").mkdir()
        (self.folder / "host_vars").mkdir(parents=True)
        self.list_hosts(names)
        self.git("init", "--quiet")

    def list_hosts(self, names: Sequence[str]) -> None:
        """Write the hosts and their connections into the inventory."""
        hosts = {}
        for name in names:
            variables = self.fleet.variables(name, None)
            hosts[name] = {key: value for key, value in variables.items() if key != "gpu_layout"}
        self.write("hosts.yml", yaml.safe_dump({"gpu_hosts": {"hosts": hosts}}))

    def write(self, path: str, text: str) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def git(self, *arguments: str) -> str:
        who = ("-c", "user.name=operator", "-c", "user.email=operator@example.org")
        return self._run("git", *who, *arguments)

    def commit(self, host: str, layout: list[dict[str, Any]], subject: str) -> None:
        self.write(f"host_vars/{host}.yml", yaml.safe_dump({"gpu_layout": layout}))
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", subject)

    def seen(self) -> dict[str, dict[int, list[tuple[str, int]]]]:
        """Return the instances by host and GPU."""
        return {name: host.seen() for name, host in self.fleet.hosts.items()}

    def follow(self, command: str, status: int = 0) -> str:
        """Run a page's command, and return its output in one line."""
        program, *arguments = shlex.split(command.replace("\\\n", ""))
        arguments = [word.replace("~", self.environment["HOME"]) for word in arguments]
        if program == "git":
            return self.git(*arguments)
        if program in TOOLS:
            return self._run(program, *arguments)
        assert program == "ansible-playbook" and arguments[:2] == ["-i", "hosts.yml"]
        (playbook,) = [word for word in arguments if word.startswith("openfleet.gpu.")]
        arguments.remove(playbook)
        self.directory.mkdir(parents=True, exist_ok=True)
        # The hosts share pynvml's directory, so they change it one after the other.
        more = ("--forks=1", "-e", f"gpu_layout_nvml_directory={self.directory}")
        done = self.fleet.run(playbook, self.folder / "hosts.yml", *more, *arguments[2:])
        assert done.returncode == status, done.stdout + done.stderr
        return " ".join((done.stdout + done.stderr).split())

    def _run(self, program: str, *arguments: str) -> str:
        programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            [program, *arguments],
            cwd=self.folder,
            env={**self.environment, "PATH": programs, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        # grep ends with 1 if it finds nothing.
        assert done.returncode == 0 or (program, done.returncode) == ("grep", 1), done.stdout + done.stderr
        return done.stdout
