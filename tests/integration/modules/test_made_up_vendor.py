# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add a vendor from a folder and a line, and test its divider's features.

The tests cover plans, the disturbance of all programs on the host, apply, verification, kills at each step, recovery,
saved plans and removal. The tests add the vendor to a copy of the collection, and run this copy in place of the
collection.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.simulated_host import ROOT, module_path

MADE_UP = Path(__file__).with_name("made_up_vendor")
VENDOR = "ansible_collections.openfleet.gpu.plugins.module_utils.vendors.acme"
#: Pairs of a pattern in the registry and its replacement.
REGISTRY = (
    (r"(?=^from \.nvidia\.vendor import NvidiaVendor$)", "from .acme.vendor import MadeUpVendor\n"),
    (r"^(VENDORS\b[^=]*= \([\s\S]*?),?\s*\)$", r"\1, MadeUpVendor())"),
)
POINTS = (
    *("before request 0", "after request 0", "before request 1", "after request 1"),
    *("before reload", "reloaded 0", "reloaded 1", "after reload"),
)


class Machine:
    """A host with two made-up devices."""

    def __init__(self, copy, folder):
        self.copy, self.files, self.state = copy, copy / "devices", folder / "state.d"
        shutil.rmtree(self.files, ignore_errors=True)
        self.files.mkdir()
        for index in (0, 1):
            state = {"index": index, "uuid": "ACME-%d" % index, "active": 1, "requested": 1}
            (self.files / ("device-%d.json" % index)).write_text(json.dumps(state))

    def process(self, *counts, **options):
        request = dict(options, counts=dict(enumerate(counts)), directory=str(self.state))
        return subprocess.run(
            [sys.executable, "-m", VENDOR + ".run"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            check=False,
            env=dict(os.environ, PYTHONPATH="%s:%s" % (self.copy, module_path())),
        )

    def run(self, *counts, **options):
        done = self.process(*counts, **options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def killed(self, point, *counts):
        """Run until a certain point, at which the test kills the process."""
        (self.files / "kill").write_text(point)
        done = self.process(*counts)
        assert done.returncode == -9, (done.stdout, done.stderr)
        (self.files / "kill").unlink()

    def use(self, *users):
        """Let programs have devices open.

        `users` are (index, name).
        """
        (self.files / "users").write_text(json.dumps([("ACME-%d" % index, name) for index, name in users]))

    def slices(self):
        states = [json.loads(path.read_text()) for path in sorted(self.files.glob("device-*.json"))]
        return [(state["active"], state["requested"]) for state in states]

    def reloads(self):
        path = self.files / "reloads"
        return len(path.read_text().splitlines()) if path.exists() else 0

    @property
    def journal(self):
        return self.state / "journal.json"


@pytest.fixture(scope="module", name="copy")
def copy_with_made_up_vendor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("copy")
    utils = folder / "ansible_collections/openfleet/gpu/plugins/module_utils"
    shutil.copytree(ROOT / "plugins/module_utils", utils, ignore=shutil.ignore_patterns("__pycache__"))
    vendor = utils / "vendors/acme"
    shutil.copytree(MADE_UP, vendor, ignore=shutil.ignore_patterns("__pycache__"))
    model = vendor / "model.py"
    model.write_text(model.read_text().replace("@FOLDER@", str(folder / "devices")))
    registry = utils / "vendors/registry.py"
    text = registry.read_text()
    for pattern, added in REGISTRY:
        text, number = re.subn(pattern, added, text, flags=re.MULTILINE)
        assert number == 1, pattern
    registry.write_text(text)
    return folder


@pytest.fixture(name="machine")
def machine_with_whole_devices(copy, tmp_path):
    return Machine(copy, tmp_path)


def test_devices_are_planned_divided_and_verified(machine):
    assert "it cannot have 3 slices" in machine.run(3, check=True)["msg"]

    planned = machine.run(2, 4, check=True)
    assert planned["changed"] and machine.slices() == [(1, 1), (1, 1)]
    assert planned["plan"] == ["gpu 0: split into 2", "gpu 1: split into 4"]
    assert [(each["before"], each["after"]) for each in planned["gpus"]] == [
        ("1 slices", "2 slices"),
        ("1 slices", "4 slices"),
    ]

    done = machine.run(2, 4)
    assert done["changed"] and [each["slices"] for each in done["gpus"]] == [2, 4]
    assert [each["asked"] for each in done["gpus"]] == ["slices: 2 slices", "slices: 4 slices"]
    assert machine.slices() == [(2, 2), (4, 4)] and machine.reloads() == 1
    assert not machine.journal.exists()


def test_second_run_changes_nothing(machine):
    machine.run(2, 4)
    again = machine.run(2, 4)
    assert not again["changed"] and again["plan"] == ["gpu 0: nothing to do", "gpu 1: nothing to do"]
    assert machine.reloads() == 1


def test_reload_disturbs_programs_on_all_devices(machine):
    machine.use((1, "pid 7 (training)"))
    for options in ({"check": True}, {}):
        refused = machine.run(2, **options)
        assert "device 1 (ACME-1), whose driver would be reloaded, is in use by pid 7 (training)" in refused["msg"]
    assert machine.slices() == [(1, 1), (1, 1)] and machine.reloads() == 0
    # If nothing changes, the run disturbs no program, so it succeeds.
    assert not machine.run(1)["changed"]
    machine.use()
    assert machine.run(2)["changed"]
    assert machine.slices() == [(2, 2), (1, 1)]


def test_division_without_effect_is_rolled_back(machine):
    (machine.files / "stuck").touch()
    failed = machine.run(2, 4)
    assert "every step succeeded, yet acme-smi shows another layout: gpu 0: split into 2" in failed["msg"]
    assert failed["outcome"] == "old"
    assert machine.slices() == [(1, 1), (1, 1)] and not machine.journal.exists()


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("counts", [(2, 1), (4, 2)], ids=["old", "new"])
def test_next_run_recovers_from_a_kill_at_a_step(machine, point, counts):
    machine.run(2, 1)
    machine.killed(point, 4, 2)
    assert machine.journal.exists()
    planned = machine.run(*counts, check=True)
    assert not planned.get("failed"), planned
    done = machine.run(*counts)
    # The layout counts as complete only if the driver had reloaded both devices.
    assert done["recovered"] == ("new" if point in ("reloaded 1", "after reload") else "old")
    assert machine.slices() == [(count, count) for count in counts]
    assert not machine.journal.exists() and not machine.run(*counts)["changed"]


def test_recovery_disturbs_no_program(machine):
    machine.killed("reloaded 0", 2, 4)
    machine.use((0, "pid 9 (notebook)"))
    refused = machine.run(2, 4)
    assert refused["failed"] and "pid 9 (notebook)" in refused["msg"]
    assert machine.slices() == [(2, 2), (1, 4)] and machine.journal.exists()
    machine.use()
    assert machine.run(2, 4)["recovered"] == "old"
    assert machine.slices() == [(2, 2), (4, 4)]


def test_saved_plan_is_applied_or_reports_changes(machine):
    saved = machine.run(2, 4, check=True)["saved"]
    assert "is to be slices: 4 slices" in machine.run(4, 4, saved=saved)["msg"]
    machine.run(4, 1)
    moved = machine.run(2, 4, saved=saved)["msg"]
    assert "gpu 0: the slices were 1 and are 4" in moved
    machine.run(1, 1)
    assert machine.run(2, 4, saved=saved)["changed"]
    assert machine.slices() == [(2, 2), (4, 4)]


def test_division_is_removed(machine):
    machine.run(2, 4)
    done = machine.run(1)
    assert done["changed"] and done["plan"] == ["gpu 0: split into 1"]
    assert machine.slices() == [(1, 1), (4, 4)]
