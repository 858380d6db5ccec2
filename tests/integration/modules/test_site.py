# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""site.yml by the real ansible-playbook, on hosts that are folders of this machine, with a state file each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from simulated_host import ROOT, SimulatedHost

LAYOUT = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}]


class Fleet:
    """A few hosts and the inventory that names them."""

    def __init__(self, folder: Path, library: Path, names) -> None:
        self.folder = folder
        self.hosts = {
            name: SimulatedHost(folder / name, library).create([{"model": "H100-80GB", "count": 1}]) for name in names
        }

    def play(self, layouts, *arguments, waves=None, playbook="site.yml"):
        inventory = {name: self.variables(name, layout) for name, layout in layouts.items()}
        file = self.folder / "hosts.yml"
        group = {"hosts": inventory, "vars": {"gpu_site_waves": waves} if waves else {}}
        file.write_text(yaml.safe_dump({"gpu_hosts": group}))
        command = [
            str(Path(sys.executable).with_name("ansible-playbook")),
            "-i",
            str(file),
            str(ROOT / playbook),
            *arguments,
        ]
        environment = dict(
            os.environ,
            ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"),
            ANSIBLE_STDOUT_CALLBACK="default",
            ANSIBLE_COLLECTIONS_PATH=str(ROOT / "collections"),
            ANSIBLE_CACHE_PLUGIN="memory",
            ANSIBLE_NOCOLOR="1",
        )
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)

    def variables(self, name, layout):
        return {
            "ansible_connection": "local",
            "ansible_become": False,
            "ansible_python_interpreter": str(self.interpreter(name)),
            "gpu_layout": layout,
            # Nothing is installed on the machine that runs the tests.
            "gpu_layout_nvml_source": "none",
            "gpu_layout__root": str(self.hosts[name].folder / "root"),
            "gpu_layout_state_directory": str(self.hosts[name].folder / "state.d"),
        }

    def interpreter(self, name):
        """A Python that sees the GPUs of one host."""
        host = self.hosts[name]
        environment = host.environment
        wrapper = host.bin / "python3"
        exports = "".join(
            f"export {key}='{environment[key]}'\n"
            for key in ("PATH", "LD_LIBRARY_PATH", "GPUSIM_STATE", "GPUSIM_LIBRARY", "PYTHONPATH")
        )
        wrapper.write_text(f'#!/bin/sh\n{exports}exec "{host.python}" "$@"\n')
        wrapper.chmod(0o755)
        return wrapper

    def seen(self):
        return {name: host.seen()[0] for name, host in self.hosts.items()}


@pytest.fixture
def fleet(host, library, tmp_path):
    return Fleet(tmp_path, library, ["one", "two", "three"])


def test_it_applies_reports_and_is_idempotent(fleet, tmp_path):
    report = tmp_path / "report"
    report.mkdir()
    first = fleet.play(dict.fromkeys(fleet.hosts, LAYOUT), "-e", f"gpu_report_dir={report}")
    assert first.returncode == 0, first.stdout + first.stderr
    assert all(seen == [("3g.40gb", 0), ("3g.40gb", 4)] for seen in fleet.seen().values())
    for host in fleet.hosts.values():
        assert json.loads((host.folder / "root/etc/openfleet-gpu/layout.json").read_text()) == LAYOUT
        assert (host.folder / "root/etc/systemd/system/gpu-layout.service").exists()
    written = json.loads((report / "report.json").read_text())
    assert written["totals"]["create"] == 6
    assert written["totals"]["hosts_changed"] == 3
    assert "asked    mig: 2x 3g.40gb" in (report / "report.txt").read_text()
    assert (report / "report.html").read_text().count("grid-column: ") == 6
    second = fleet.play(dict.fromkeys(fleet.hosts, LAYOUT))
    assert second.returncode == 0, second.stdout + second.stderr
    assert second.stdout.count("changed=0") == 3
    assert "0 created, 0 destroyed, 6 kept; 0 of 3 hosts changed" in " ".join(second.stdout.split())


def test_the_typo_of_the_last_host_stops_the_run_before_the_first_is_touched(fleet):
    typo = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.45gb"}]}]
    run = fleet.play({"one": LAYOUT, "two": LAYOUT, "three": typo})
    assert run.returncode != 0
    assert "there is no profile 3g.45gb" in run.stdout + run.stderr
    assert "fatal: [three]" in run.stdout + run.stderr
    assert fleet.seen() == {"one": [], "two": [], "three": []}


def test_a_host_that_fails_stops_the_waves_after_it(fleet):
    fleet.hosts["one"].gpusim("fail", "nvmlDeviceCreateGpuInstanceWithPlacement", "--code", "UNKNOWN")
    run = fleet.play(dict.fromkeys(fleet.hosts, LAYOUT), waves=[1])
    assert run.returncode != 0
    assert "the layout of before is back" in run.stdout + run.stderr
    assert fleet.seen() == {"one": [], "two": [], "three": []}


@pytest.mark.parametrize(("waves", "plays"), [([1], 3), ([3], 1), (None, 3)])
def test_waves_come_from_the_inventory(fleet, waves, plays):
    run = fleet.play(dict.fromkeys(fleet.hosts, LAYOUT), "--check", waves=waves)
    assert run.stdout.count("PLAY [Apply (in waves, a canary first)]") == plays


def test_a_dry_run_shows_the_steps_and_changes_nothing(fleet):
    run = fleet.play(dict.fromkeys(fleet.hosts, LAYOUT), "--check", "--diff")
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("gpu 0: enable MIG mode, create 3g.40gb@0, create 3g.40gb@4") >= 3
    assert "+gpu 0: MIG on: 3g.40gb@0, 3g.40gb@4" in run.stdout
    assert fleet.seen() == {"one": [], "two": [], "three": []}


def test_a_host_without_a_layout_is_named(fleet):
    run = fleet.play({"one": LAYOUT, "two": None, "three": LAYOUT})
    assert run.returncode != 0
    assert "fatal: [two]" in run.stdout + run.stderr
    assert "gpu_layout" in run.stdout + run.stderr
    assert fleet.seen() == {"one": [], "two": [], "three": []}
