# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test first runs on hosts that have a driver but no pynvml.

The runs are a dry run and export.yml.
"""

from __future__ import annotations

import re

import pytest
import yaml
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.vars.manager import VariableManager

from tests.integration.simulated_fleet import BareFleet
from tests.integration.simulated_host import ROOT

LAYOUT = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}]
THERE = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "7g.80gb"}]}]


@pytest.fixture
def fleet(host, library, tmp_path):
    return BareFleet(tmp_path, library, ["one", "two"])


def files(fleet):
    return {path for host in fleet.hosts.values() for path in host.folder.rglob("*pynvml*")}


@pytest.mark.core
def test_first_dry_run_shows_the_steps_and_leaves_nothing(fleet):
    assert fleet.hosts["two"].module("mig", layout=THERE)["changed"]
    run = fleet.play({"two": LAYOUT}, "--check", "--diff")
    said = run.stdout + run.stderr
    assert run.returncode == 0, said
    # Only the driver knows the current instance.
    assert re.search(r"gpu 0 \(GPU-[0-9a-f]{8}\): destroy 7g\.80gb@0, create 3g\.40gb@0, create 3g\.40gb@4", said)
    assert "Only the form of the layout was checked" not in said
    # No output contains the source text of pynvml.
    assert "nvmlDeviceGetHandleByIndex" not in said
    assert files(fleet) == set()
    assert fleet.seen() == {"one": [], "two": [("7g.80gb", 0)]}


def test_minimal_inventory_has_a_plan(host):
    """Plan the minimal inventory, which new users copy.

    Ansible reads it and plans the GPUs that it names.
    """
    loader = DataLoader()
    inventory = InventoryManager(loader=loader, sources=[str(ROOT / "inventories" / "minimal" / "hosts.yml")])
    members = inventory.get_hosts("gpu_hosts")
    assert [member.name for member in members] == ["gpu-01.example.org", "gpu-02.example.org"]
    layout = VariableManager(loader=loader, inventory=inventory).get_vars(host=members[0])["gpu_layout"]
    host.create([{"model": "H100-80GB", "count": 3}])
    # An MPS daemon cannot serve GPUs that allow only one process.
    # tests/unit/module_utils/layout/test_layout_examples.py plans the README's entry.
    assert layout.pop()["sharing"] == "mps"
    planned = host.module("layout", check=True, layout=layout, state_directory=str(host.folder / "state.d"))
    assert planned["plan"] == [
        "gpu 0: enable MIG mode, create 2g.20gb@0, create 2g.20gb@2, create 3g.40gb@4",
        "gpu 1: set compute mode exclusive_process",
    ]


def test_plan_without_any_pynvml_fails_with_a_reason(fleet, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "pynvml.py").write_text("# another one\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "other"))
    run = fleet.play(dict.fromkeys(fleet.hosts, LAYOUT), "--check")
    said = " ".join((run.stdout + run.stderr).split())
    assert run.returncode != 0
    assert (
        "pynvml is missing on the host and on the controller, so its GPUs cannot be read. Install nvidia-ml-py on the"
        in said
    )
    assert "fatal: [one]" in said and "fatal: [two]" in said
    assert "Traceback" not in said


def test_export_adopts_the_current_layout_and_overwrites_nothing(fleet, tmp_path):
    assert fleet.hosts["one"].module("mig", layout=LAYOUT)["changed"]
    nothing = dict.fromkeys(fleet.hosts)
    first = fleet.play(nothing, playbook="playbooks/export.yml")
    said = " ".join((first.stdout + first.stderr).split())
    assert first.returncode == 0, said
    written = {name: tmp_path / "host_vars" / name / "gpu_layout.yml" for name in fleet.hosts}
    assert yaml.safe_load(written["one"].read_text()) == {"gpu_layout": [{**LAYOUT[0], "gpus": "all"}]}
    assert yaml.safe_load(written["two"].read_text()) == {"gpu_layout": [{"gpus": "all", "sharing": "shared"}]}
    assert all(f"{name}: wrote {path} (1 entry)" in said for name, path in written.items())
    assert files(fleet) == set()
    written["two"].write_text("gpu_layout: []\n")
    # Remove these host variables, because they would override the files.
    for name in nothing:
        fleet.more[name] = {"gpu_layout": [] if name == "two" else [{**LAYOUT[0], "gpus": "all"}]}
    second = fleet.play(nothing, playbook="playbooks/export.yml")
    said = " ".join((second.stdout + second.stderr).split())
    assert second.returncode != 0
    assert "one: the inventory has this layout already" in said
    assert f"two: {written['two']} has another gpu_layout than the host" in said
    assert written["two"].read_text() == "gpu_layout: []\n"
