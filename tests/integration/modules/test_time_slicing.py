# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the module time_slicing, and time slices in the module layout.

The tests cover plan, apply, a kill at the step, recovery and a saved plan. nvidia-smi is a stand-in that stores the
slices in a file, because the real one does not see simulated GPUs. The scenario `sharing` runs the real one.
"""

from __future__ import annotations

import json
import sys

import pytest

from tests.integration.slicing_nvidia_smi import NVIDIA_SMI


def slicing(name, gpus):
    return {"gpus": gpus, "sharing": "time_slicing", "time_slicing": {"slice": name}}


@pytest.fixture(name="sliced")
def host_with_slices(host):
    """Return a host with two GPUs and a stand-in for nvidia-smi."""
    host.create([{"model": "L40S-48GB", "count": 2}])
    tool = host.bin / "nvidia-smi"
    tool.write_text(NVIDIA_SMI % sys.executable)
    tool.chmod(0o755)
    uuids = [gpu["uuid"] for gpu in host.module("gpu_info", telemetry=False, holders=False)["gpus"]]
    (host.folder / "slices.json").write_text(json.dumps(dict.fromkeys(uuids, "Default")))
    return host


def slices(host):
    return list(json.loads((host.folder / "slices.json").read_text()).values())


def run(host, layout, name="time_slicing", **options):
    return host.module(name, layout=layout, state_directory=str(host.folder / "state.d"), **options)


def killed(host, when, layout):
    """Run the module in a separate process, and kill that process at the step."""
    (host.folder / "kill").write_text(when)
    arguments = {"layout": layout, "state_directory": str(host.folder / "state.d")}
    module = "ansible_collections.openfleet.gpu.plugins.modules.time_slicing"
    done = host.run([sys.executable, "-m", module], check=False, input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}))
    (host.folder / "kill").unlink()
    assert done.returncode == -9, done.stderr


def test_slice_is_planned_set_kept_and_restored(sliced):
    layout = [slicing("long", [0]), {"gpus": [1], "sharing": "shared"}]
    planned = run(sliced, layout, check=True)
    assert planned["plan"] == ["gpu 0: set time slice long", "gpu 1: nothing to do"]
    assert planned["diff"]["before"].splitlines()[0] == "gpu 0: MIG off, compute mode default"
    assert planned["diff"]["after"].splitlines()[0] == "gpu 0: MIG off, compute mode default, time slice long"
    assert [gpu["asked"] for gpu in planned["gpus"]] == ["time_slicing: long", "shared"]
    assert slices(sliced) == ["Default", "Default"]

    done = run(sliced, layout)
    assert done["changed"] and "followed" not in done
    assert slices(sliced) == ["Long", "Default"]
    assert not run(sliced, layout)["changed"]

    back = run(sliced, [{"gpus": "all", "sharing": "shared"}])
    assert back["plan"] == ["gpu 0: set time slice default", "gpu 1: nothing to do"]
    assert slices(sliced) == ["Default", "Default"]


def test_other_gpus_are_not_changed(sliced):
    exclusive = [{"gpus": "all", "sharing": "exclusive"}]
    run(sliced, [slicing("long", "all")])
    assert run(sliced, exclusive, "mig")["plan"] == ["gpu %d: set compute mode exclusive_process" % n for n in (0, 1)]
    assert slices(sliced) == ["Long", "Long"]
    assert run(sliced, [slicing("short", "all")])["plan"] == ["gpu %d: set time slice short" % n for n in (0, 1)]


@pytest.mark.parametrize(("when", "outcome"), [("before", "old"), ("after", "new")])
def test_next_run_recovers_from_a_kill_at_the_step(sliced, when, outcome):
    run(sliced, [slicing("medium", [0])])
    killed(sliced, when, [slicing("long", [0])])
    # The next run's layout has no time slices, but the run still recovers the interrupted run.
    done = run(sliced, [], "mig")
    assert done["recovered"] == outcome
    assert slices(sliced)[0] == {"old": "Medium", "new": "Long"}[outcome]
    assert not run(sliced, [slicing(slices(sliced)[0].lower(), [0])])["changed"]


def test_kill_between_two_gpus_is_rolled_back(sliced):
    run(sliced, [slicing("medium", "all")])
    killed(sliced, "after", [slicing("long", "all")])
    assert slices(sliced) == ["Long", "Medium"]
    assert run(sliced, [slicing("medium", "all")])["recovered"] == "old"
    assert slices(sliced) == ["Medium", "Medium"]


def test_saved_plan_is_applied_or_reports_changes(sliced):
    layout = [slicing("long", "all")]
    plan = run(sliced, layout, "layout", check=True)["plan_data"]
    assert [gpu["observed"]["time_slice"] for gpu in plan["gpus"]] == ["default", "default"]
    assert [gpu["steps"] for gpu in plan["gpus"]] == [[{"step": "SetTimeSlice", "time_slice": "long"}]] * 2

    uuid = plan["gpus"][0]["uuid"]
    moved = dict(json.loads((sliced.folder / "slices.json").read_text()), **{uuid: "Short"})
    (sliced.folder / "slices.json").write_text(json.dumps(moved))
    failed = run(sliced, layout, "layout", plan=plan)
    assert failed["failed"] and "gpu 0: time slice was default and is short" in failed["msg"]
    assert slices(sliced) == ["Short", "Default"]
    asked = run(sliced, [slicing("medium", "all")], "layout", plan=plan)
    assert "is to be time_slicing: medium" in asked["msg"]

    (sliced.folder / "slices.json").write_text(json.dumps(dict(moved, **{uuid: "Default"})))
    assert run(sliced, layout, "layout", plan=plan)["changed"]
    assert slices(sliced) == ["Long", "Long"]
