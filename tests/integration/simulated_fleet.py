# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run playbooks with the real ansible-playbook on hosts that are local folders.

Each host has its own folder and its own state file of simulated GPUs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml

from tests.integration.simulated_host import ROOT, SimulatedHost
from tests.integration.warm_ansible import interpreter
from tests.lab import warm_playbook


class Fleet:
    """A fleet: some hosts, and the inventory that lists them."""

    def __init__(self, folder: Path, library: Path, names) -> None:
        self.folder = folder
        #: Each host's additional variables, by host name.
        self.more: dict[str, dict] = {}
        #: The runs' ansible.cfg. If it is None, the runs use a missing file in the fleet's folder, so they have no
        #: configuration.
        self.config: Path | None = ROOT / "ansible.cfg"
        #: Additional inventory groups.
        self.groups: dict[str, dict] = {}
        #: Names of hosts without a gpu_layout.
        self.without_layout: set[str] = set()
        self.hosts = {
            name: SimulatedHost(folder / name, library).create([{"model": "H100-80GB", "count": 1}]) for name in names
        }

    def play(self, layouts, *arguments, waves=None, playbook="site.yml"):
        inventory = {name: self.variables(name, layout) for name, layout in layouts.items()}
        file = self.folder / "hosts.yml"
        group = {"hosts": inventory, "vars": {"gpu_site_waves": waves} if waves else {}}
        file.write_text(yaml.safe_dump({"gpu_hosts": group, **self.groups}))
        return self.run(playbook, file, *arguments)

    def run(self, playbook, inventory, *arguments):
        """Run a playbook with an inventory file.

        The playbook is a file of the checkout or a name, for example openfleet.gpu.site.
        """
        command = [
            *warm_playbook.COMMAND,
            "-i",
            str(inventory),
            str(ROOT / playbook) if str(playbook).endswith(".yml") else playbook,
            *arguments,
        ]
        folder = ROOT if self.config else self.folder
        environment = dict(
            os.environ,
            # A missing file counts as no configuration.
            ANSIBLE_CONFIG=str(self.config or self.folder / "none.cfg"),
            PWD=str(folder),
            ANSIBLE_STDOUT_CALLBACK="default",
            ANSIBLE_COLLECTIONS_PATH=str(ROOT / "collections"),
            ANSIBLE_CACHE_PLUGIN="memory",
            ANSIBLE_NOCOLOR="1",
        )
        return self.execute(command, environment, folder)

    def execute(self, command, environment, folder):
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=folder)

    def variables(self, name, layout):
        found = {
            "ansible_connection": "local",
            "ansible_become": False,
            "ansible_python_interpreter": str(self.interpreter(name)),
            "gpu_layout": layout,
            # The tests must not install anything on this machine.
            "gpu_layout_nvml_source": "none",
            "gpu_layout__root": str(self.hosts[name].folder / "root"),
            "vgpu_limiter__root": str(self.hosts[name].folder / "root"),
            "gpu_layout_state_directory": str(self.hosts[name].folder / "state.d"),
            "gpu_drain_state_directory": str(self.hosts[name].folder / "state.d"),
            **self.more.get(name, {}),
        }
        if name in self.without_layout:
            del found["gpu_layout"]
        return found

    def interpreter(self, name):
        """Return a Python interpreter that sees one host's GPUs."""
        host = self.hosts[name]
        environment = host.environment
        names = ("PATH", "LD_LIBRARY_PATH", "GPUSIM_STATE", "GPUSIM_LIBRARY", "PYTHONPATH")
        return interpreter(host.bin / "python3", {key: environment[key] for key in names}, host.python)

    def seen(self):
        return {name: host.seen()[0] for name, host in self.hosts.items()}


class BareFleet(Fleet):
    """Hosts whose Python has only the standard library."""

    def interpreter(self, name):
        host = self.hosts[name]
        names = ("PATH", "LD_LIBRARY_PATH", "GPUSIM_STATE", "GPUSIM_LIBRARY")
        exports = "".join(f'export {key}="{host.environment[key]}"\n' for key in names)
        wrapper = host.bin / "python3"
        # -S excludes the packages on the machine that runs the tests.
        wrapper.write_text(f'#!/bin/sh\nunset PYTHONPATH\n{exports}exec {sys._base_executable} -S "$@"\n')
        wrapper.chmod(0o755)
        return wrapper
