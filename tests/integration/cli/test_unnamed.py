# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test GPUs that no longer have an entry in the layout.

The GPUs keep their state over reboots, or a run releases them.
"""

from __future__ import annotations

import json
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

H100 = [{"model": "H100-80GB", "count": 3}]
HALVES = {"sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}
BOTH = [dict(HALVES, gpus=[0]), dict(HALVES, gpus=[1])]
FIRST = BOTH[:1]
SECOND_GPU = [("3g.40gb", 0), ("3g.40gb", 4)]


@pytest.fixture(name="shared")
def of_two_partitioned_gpus(host):
    host.simulated.create(H100)
    host("apply", "--layout", host.layout(BOTH))
    return host


def apply(host, layout, *arguments, **options):
    return host("apply", "--layout", host.layout(layout), *arguments, **options)


def planned(host, layout, *arguments):
    return json.loads(host("plan", "--json", "--layout", host.layout(layout), *arguments).stdout)


def record(host):
    return json.loads((host.folder / "state.d" / "applied.json").read_text())["gpu_layout"]


@pytest.mark.host_python
def test_gpu_without_an_entry_keeps_its_instances_over_a_reboot(shared):
    done = apply(shared, FIRST)
    line = "gpu 1: unmanaged, without an entry: keeps mig (3g.40gb@0, 3g.40gb@4)"
    assert line in done.stdout.splitlines() and "nothing changed" in done.stdout
    assert planned(shared, FIRST)["plan"].count(line) == 1
    shared.gpusim("reboot")
    restored = planned(shared, FIRST)
    assert "gpu 1: unmanaged, without an entry: restores mig (3g.40gb@0, 3g.40gb@4)" in restored["plan"]
    assert restored["counts"]["create"] == 4
    assert apply(shared, FIRST, "--unnamed", "keep").stdout.count("create 3g.40gb") == 4
    assert shared.seen()[1] == SECOND_GPU
    assert "nothing changed" in apply(shared, FIRST).stdout


@pytest.mark.host_python
def test_released_gpus_lose_their_instances_at_once(shared):
    told = planned(shared, FIRST, "--unnamed", "release")
    assert told["counts"] == {"create": 0, "destroy": 2, "keep": 2, "gpus_changed": 1}
    assert any(line.startswith("gpu 1: released, without an entry") for line in told["plan"])
    assert shared.seen()[1] == SECOND_GPU
    apply(shared, FIRST, "--unnamed", "release")
    assert shared.seen()[1] == []
    assert [entry["gpus"] for entry in record(shared)] != [] and len(record(shared)) == 1
    again = apply(shared, FIRST, "--unnamed", "release")
    assert "nothing changed" in again.stdout and "gpu 1" not in again.stdout
    shared.gpusim("reboot")
    apply(shared, FIRST)
    assert shared.seen()[1] == []


@pytest.mark.host_python
def test_module_names_unmanaged_gpus_and_carries_out_a_saved_release(shared):
    directory = str(shared.folder / "state.d")
    kept = shared.module("layout", check=True, layout=FIRST, state_directory=directory)
    (unmanaged,) = kept["unmanaged"]
    assert (unmanaged["index"], unmanaged["action"]) == (1, "keep") and not kept["changed"]
    assert unmanaged["current"] == unmanaged["recorded"] == "mig (3g.40gb@0, 3g.40gb@4)"
    assert [line.get("unmanaged", False) for line in kept["plan_lines"]] == [False, True]
    options = {"layout": FIRST, "state_directory": directory, "unnamed": "release"}
    saved = shared.module("layout", check=True, **options)
    assert shared.seen()[1] == SECOND_GPU
    refused = shared.module("layout", layout=FIRST, state_directory=directory, plan=saved["plan_data"])
    assert refused["failed"] and "gpu_layout has changed: gpu 1" in refused["msg"]
    done = shared.module("layout", plan=saved["plan_data"], **options)
    assert done["counts"]["destroy"] == 2 and shared.seen()[1] == []
    again = shared.module("layout", plan=saved["plan_data"], **options)
    assert again["changed"] is False, again
    assert not shared.module("layout", **options)["changed"]


@pytest.mark.host_python
def test_a_saved_plan_restores_once_and_is_then_carried_out(shared):
    options = {"layout": FIRST, "state_directory": str(shared.folder / "state.d")}
    shared.module("layout", **options)
    shared.gpusim("reboot")
    saved = shared.module("layout", check=True, **options)["plan_data"]
    assert shared.module("layout", plan=saved, **options)["counts"]["create"] == 4
    assert shared.seen()[1] == SECOND_GPU
    again = shared.module("layout", plan=saved, **options)
    assert again["changed"] is False, again


@pytest.mark.host_python
def test_show_and_metrics_name_unmanaged_gpus(shared):
    apply(shared, FIRST)
    arguments = ["--layout", shared.layout(FIRST), "--state-directory", str(shared.folder / "state.d")]
    shown = shared("show", *arguments)
    assert "gpu 1: unmanaged, without an entry: keeps mig (3g.40gb@0, 3g.40gb@4)" in shown.stdout
    (told,) = json.loads(shared("show", "--json", *arguments).stdout)["unmanaged"]
    assert told["index"] == 1
    shared.gpusim("reboot")
    text = shared("metrics", "--layout", shared.layout(FIRST)).stdout
    samples = {family.name: family.samples for family in text_string_to_metric_families(text)}
    (sample,) = samples["openfleet_layout_unmanaged_info"]
    assert sample.labels["gpu_index"] == "1" and sample.labels["recorded"] == "mig (3g.40gb@0, 3g.40gb@4)"
    assert sample.labels["current"] != sample.labels["recorded"]
    assert {each.labels["gpu_index"] for each in samples["openfleet_layout_drift"]} == {"0"}
    data = json.loads(shared("metrics", "--json", "--layout", shared.layout(FIRST)).stdout)
    assert [each["index"] for each in data["unmanaged"]] == [1]


def test_a_released_gpu_in_use_stops_the_run_and_a_kept_one_does_not(shared):
    instance = shared.module("gpu_info")["gpus"][1]["mig"]["instances"][0]["id"]
    command = ["gpusim", "run", "--gpu", "1", "--gi", str(instance), "--", "sh", "-c", "echo ready; exec sleep 600"]
    with shared.simulated.popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            refused = apply(shared, FIRST, "--unnamed", "release", status=1)
            assert "pid %d" % process.pid in refused.stderr
            apply(shared, FIRST)
        finally:
            process.kill()
    assert shared.seen()[1] == SECOND_GPU and len(record(shared)) == 2
    apply(shared, FIRST, "--unnamed", "release")
    assert shared.seen()[1] == []


def interrupted_release(host):
    """Kill a release after it began to destroy instances, and return its journal."""
    host.gpusim("fail", "nvmlGpuInstanceDestroy", "--nth", "2", "--code", "kill")
    apply(host, FIRST, "--unnamed", "release", status=-9)
    return (host.folder / "state.d" / "journal.json").read_text()


@pytest.mark.parametrize("written", [False, True])
def test_an_interrupted_release_is_taken_back_with_its_record(shared, written):
    journal = interrupted_release(shared)
    if written:
        # Write the record that a run leaves if a kill ends it right after this step.
        (shared.folder / "state.d" / "applied.json").write_text(json.dumps(json.loads(journal)["applied"]["new"]))
    apply(shared, FIRST)
    assert shared.seen()[1] == SECOND_GPU
    shared.gpusim("reboot")
    apply(shared, FIRST)
    assert shared.seen()[1] == SECOND_GPU
    apply(shared, FIRST, "--unnamed", "release")
    assert shared.seen()[1] == []


def test_a_release_that_was_killed_at_its_end_is_completed_with_its_record(shared):
    before = (shared.folder / "state.d" / "applied.json").read_text()
    journal = interrupted_release(shared)
    apply(shared, FIRST, "--unnamed", "release")
    assert shared.seen()[1] == []
    (shared.folder / "state.d" / "applied.json").write_text(before)
    (shared.folder / "state.d" / "journal.json").write_text(journal)
    done = apply(shared, FIRST)
    assert "this run started from the new layout" in done.stdout
    assert shared.seen()[1] == [] and len(record(shared)) == 1


def test_a_restore_that_fails_keeps_no_other_gpu_from_its_layout(shared):
    apply(shared, FIRST)
    shared.gpusim("reboot")
    shared.gpusim(
        "fail", "DeviceCreateGpuInstanceWithPlacement", "--gpu", "1", "--lasting", "--code", "INSUFFICIENT_RESOURCES"
    )
    done = apply(shared, FIRST)
    assert "unmanaged GPUs are not restored: " in done.stderr
    assert shared.seen()[0] == SECOND_GPU and shared.seen()[1] == []
    shared.gpusim("fail", "--clear")
    apply(shared, FIRST)
    assert shared.seen()[1] == SECOND_GPU


@pytest.mark.host_python
def test_a_state_directory_without_the_record_is_completed_from_the_collections_instances(shared):
    (shared.folder / "state.d" / "applied.json").unlink()
    apply(shared, FIRST)
    shared.gpusim("reboot")
    apply(shared, FIRST)
    assert shared.seen()[1] == SECOND_GPU


@pytest.mark.host_python
def test_settings_and_tenants_are_kept_and_released(host, monkeypatch):
    root = host.folder / "root"
    monkeypatch.setenv("OPENFLEET_VGPU_ROOT", str(root))
    library = root / "usr/lib/openfleet-gpu/vgpu/libopenfleet-vgpu.so"
    library.parent.mkdir(parents=True)
    library.touch()
    host.simulated.create(H100)
    tenants = {"tenants": [{"name": "a", "memory": "8GiB", "sm_percent": 30}]}
    layout = [{"gpus": [1], "sharing": "exclusive"}, {"gpus": [0, 2], "sharing": "vgpu", "vgpu": tenants}]
    apply(host, layout)
    kept = apply(host, [])
    assert "gpu 1: unmanaged, without an entry: keeps exclusive" in kept.stdout
    assert "gpu 0: unmanaged, without an entry: keeps vgpu (a)" in kept.stdout
    host.gpusim("reboot")
    assert "set compute mode exclusive_process" in apply(host, []).stdout
    assert "nothing changed" in apply(host, []).stdout
    released = apply(host, [], "--unnamed", "release")
    assert "vgpu a: remove" in released.stdout and "set compute mode default" in released.stdout
    assert json.loads(host("show", "--json").stdout)["vgpu_tenants"] == []
    assert record(host) == []
