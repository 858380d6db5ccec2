# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recover journals and apply plans that an earlier version of the code wrote.

The code of 2026-11-26 wrote the files in `recorded` on a host with two simulated H100. Never regenerate them with newer
code: newer code must be able to read the old files.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.registry import target_data, target_from_data

RECORDED = Path(__file__).with_name("recorded")
OLD = [
    {"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "1g.10gb", "count": 2}]},
    {"gpus": [1], "sharing": "exclusive"},
]
NEW = [
    {"gpus": [0], "sharing": "mig", "mig": [{"profile": "2g.20gb", "count": 3}]},
    {"gpus": [1], "sharing": "mig", "mig": [{"profile": "7g.80gb"}]},
]
OLD_SEEN = {0: [("1g.10gb", 0), ("1g.10gb", 1), ("3g.40gb", 4)], 1: []}
NEW_SEEN = {0: [("2g.20gb", 0), ("2g.20gb", 2), ("2g.20gb", 4)], 1: [("7g.80gb", 0)]}
#: The NVML call at which the kill ended each journal's run.
KILLS = {
    "killed-before-create": ("nvmlDeviceCreateGpuInstanceWithPlacement", "2", "kill"),
    "killed-after-destroy": ("nvmlGpuInstanceDestroy", "2", "kill-after"),
    "killed-after-mode": ("nvmlDeviceSetMigMode", "1", "kill-after"),
}


@pytest.fixture(name="host")
def host_with_the_old_layout(host):
    host.create([{"model": "H100-80GB", "count": 2}])
    run(host, OLD)
    assert host.seen() == OLD_SEEN
    return host


def run(host, layout, **options):
    return host.module("layout", layout=layout, state_directory=str(host.folder / "state.d"), **options)


def put(host, name):
    """Replace the state directory with recorded files.

    MIG device UUIDs differ in each simulation, so insert the current UUIDs.
    """
    folder = host.folder / "state.d"
    uuids = {place(instance): instance["mig_uuids"] for instance in instances(folder)}
    shutil.rmtree(folder)
    shutil.copytree(RECORDED / name, folder)
    owned = json.loads((folder / "owned.json").read_text())
    for instance in owned["instances"]:
        instance["mig_uuids"] = uuids.get(place(instance), instance["mig_uuids"])
    (folder / "owned.json").write_text(json.dumps(owned))


def instances(folder):
    return json.loads((folder / "owned.json").read_text())["instances"]


def place(instance):
    return instance["gpu_uuid"], instance["profile"], instance["start"]


@pytest.mark.parametrize("kill", sorted(KILLS))
@pytest.mark.parametrize(("layout", "seen"), [(OLD, OLD_SEEN), (NEW, NEW_SEEN)], ids=["old", "new"])
def test_recorded_journal_is_recovered(host, kill, layout, seen):
    call, nth, code = KILLS[kill]
    host.gpusim("fail", call, "--nth", nth, "--code", code)
    with pytest.raises(AssertionError, match="exit -9"):
        run(host, NEW)
    between = host.seen()
    assert between != NEW_SEEN
    # The GPUs are in the same state, but the earlier code wrote the journal.
    put(host, kill)
    done = run(host, layout)
    assert not done.get("failed"), done
    assert done["recovered"] in ("old", "new")
    assert host.seen() == seen
    assert not (host.folder / "state.d" / "journal.json").exists()
    assert run(host, layout)["changed"] is False


def test_recorded_own_instances_can_be_removed(host):
    put(host, "applied")
    done = run(host, [{"gpus": "all", "sharing": "exclusive"}])
    assert not done.get("failed"), done
    assert host.seen() == {0: [], 1: []}


def test_recorded_saved_plan_is_applied(host):
    put(host, "applied")
    (host.folder / "state.d" / "plan.json").unlink()
    done = run(host, NEW, plan=json.loads((RECORDED / "applied" / "plan.json").read_text()))
    assert not done.get("failed"), done
    assert host.seen() == NEW_SEEN


@pytest.mark.parametrize("kill", sorted(KILLS))
def test_recorded_targets_are_written_in_the_same_form(kill):
    """Write targets in the recorded form.

    An earlier release must be able to read this release's journal.
    """
    data = json.loads((RECORDED / kill / "journal.json").read_text())
    for target in (*data["before"], *data["after"]):
        assert target_data(target_from_data(target)) == target
