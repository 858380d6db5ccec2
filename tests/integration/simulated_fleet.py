# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbooks by the real ansible-playbook, on hosts that are folders of this machine, with a state file each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import warm_playbook
import yaml
from simulated_host import ROOT, SimulatedHost
from warm_ansible import interpreter


class Fleet:
    """A few hosts and the inventory that names them."""

    def __init__(self, folder: Path, library: Path, names) -> None:
        self.folder = folder
        #: Variables of a host besides, by its name.
        self.more: dict[str, dict] = {}
        #: The ansible.cfg of the runs. None: they find none, in the folder of the fleet.
        self.config: Path | None = ROOT / "ansible.cfg"
        #: Groups besides, as in an inventory.
        self.groups: dict[str, dict] = {}
        #: Hosts that have no gpu_layout.
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
        """Run a playbook, which is a file of the checkout or a name (openfleet.gpu.site), with an inventory's file."""
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
            # One that is not there counts as none.
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
            # Nothing is installed on the machine that runs the tests.
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
        """A Python that sees the GPUs of one host."""
        host = self.hosts[name]
        environment = host.environment
        names = ("PATH", "LD_LIBRARY_PATH", "GPUSIM_STATE", "GPUSIM_LIBRARY", "PYTHONPATH")
        return interpreter(host.bin / "python3", {key: environment[key] for key in names}, host.python)

    def seen(self):
        return {name: host.seen()[0] for name, host in self.hosts.items()}


class BareFleet(Fleet):
    """Hosts whose Python has only its own library."""

    def interpreter(self, name):
        host = self.hosts[name]
        names = ("PATH", "LD_LIBRARY_PATH", "GPUSIM_STATE", "GPUSIM_LIBRARY")
        exports = "".join(f'export {key}="{host.environment[key]}"\n' for key in names)
        wrapper = host.bin / "python3"
        # -S: without the packages of the machine that runs the tests.
        wrapper.write_text(f'#!/bin/sh\nunset PYTHONPATH\n{exports}exec {sys._base_executable} -S "$@"\n')
        wrapper.chmod(0o755)
        return wrapper
