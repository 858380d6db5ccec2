# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that a run applies a saved plan exactly or not at all."""

from __future__ import annotations

import json
import stat

import pytest

from tests.integration.patience import wait_until
from tests.integration.simulated_fleet import Fleet
from tests.thorough import THOROUGH

H100 = [{"model": "H100-80GB", "count": 2}]
HALVES = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}]


@pytest.fixture
def fleet(host, library, tmp_path):
    return Fleet(tmp_path, library, ["one", "two", "three"])


@pytest.fixture
def pair(host, library, tmp_path):
    return Fleet(tmp_path, library, ["one", "two"])


def untouched(fleet):
    return not any(fleet.seen().values())


def said(run):
    """Return the run's output as one line, because YAML folds long messages."""
    return " ".join((run.stdout + run.stderr).split())


@pytest.mark.core
def test_saved_plan_is_refused_if_stale_applied_once_and_idempotent(pair, tmp_path):
    """Create two halves on every GPU in the fleet from a plan file."""
    saved = tmp_path / "plan.json"
    saved.write_text("of an earlier release")
    saved.chmod(0o644)
    layouts = dict.fromkeys(pair.hosts, HALVES)
    run = pair.play(layouts, "--check", "-e", f"gpu_layout_plan_out={saved}")
    assert run.returncode == 0, run.stdout + run.stderr
    # The file contains blocking holders' command lines, so other users must not read the file.
    assert stat.S_IMODE(saved.stat().st_mode) == 0o640
    assert "Plan: 4 to create, 0 to destroy, 0 kept; 2 GPUs to change on 2 of 2 hosts" in run.stdout
    assert untouched(pair)

    # If one host has changed since, the run stops for the whole fleet and names the host.
    pair.hosts["two"].module("mig", layout=[{"gpus": [0], "sharing": "exclusive"}])
    run = pair.play(layouts, "-e", f"gpu_layout_plan={saved}")
    assert run.returncode != 0
    assert "gpu 0: compute mode was default and is exclusive_process" in said(run)
    assert "Failed: two: the saved plan: the host has changed since the plan was made" in run.stdout
    assert "Applied: nothing, on 0 of 2 hosts" in run.stdout
    assert untouched(pair)
    pair.hosts["two"].module("mig", layout=[{"gpus": [0], "sharing": "shared"}])

    first = pair.play(layouts, "-e", f"gpu_layout_plan={saved}", waves=["100%"])
    assert first.returncode == 0, first.stdout + first.stderr
    assert all(seen == [("3g.40gb", 0), ("3g.40gb", 4)] for seen in pair.seen().values())
    assert "Applied: 4 created, 0 destroyed, 0 kept; 2 GPUs changed on 2 of 2 hosts" in first.stdout
    if not THOROUGH:
        return
    second = pair.play(layouts, "-e", f"gpu_layout_plan={saved}", waves=["100%"])
    assert second.returncode == 0, second.stdout + second.stderr
    assert second.stdout.count("changed=0") == 2
    assert "Applied: 0 created, 0 destroyed, 4 kept; 0 GPUs changed on 0 of 2 hosts" in second.stdout


@pytest.mark.thorough
def test_saved_plan_without_the_host_or_of_another_schema_is_refused(fleet, tmp_path):
    saved, changed = tmp_path / "plan.json", tmp_path / "changed.json"
    run = fleet.play(dict.fromkeys(fleet.hosts, HALVES), "--check", "-e", f"gpu_layout_plan_out={saved}")
    assert run.returncode == 0, run.stdout + run.stderr

    # If a host is missing from the file, the run stops for the whole fleet.
    data = json.loads(saved.read_text())
    two = data["hosts"].pop("two")
    changed.write_text(json.dumps(data))
    run = fleet.play({"one": HALVES, "two": HALVES}, "-e", f"gpu_layout_plan={changed}")
    assert run.returncode != 0
    assert "fatal: [two]" in run.stdout
    assert "the saved plan: two is not in it" in said(run)
    assert "The file has: one, three." in said(run)
    assert untouched(fleet)

    # The run refuses a file with another schema version, and the error says how to fix it.
    data["hosts"]["two"] = two
    changed.write_text(json.dumps(dict(data, schema=5)))
    run = fleet.play({"one": HALVES}, "-e", f"gpu_layout_plan={changed}")
    assert run.returncode != 0
    assert "it has schema 5 and this release reads 4. Save it again with this release" in said(run)
    assert untouched(fleet)


def test_failed_run_ends_its_waves_and_reports_progress(fleet):
    # The inventory lists the hosts in the order one, three, two.
    fleet.hosts["three"].gpusim("fail", "nvmlDeviceCreateGpuInstanceWithPlacement", "--code", "UNKNOWN")
    run = fleet.play(dict.fromkeys(fleet.hosts, HALVES), waves=[1])
    assert run.returncode != 0
    assert "the previous layout was restored" in said(run)
    assert "Applied: 2 created, 0 destroyed, 0 kept; 1 GPU changed on 1 of 3 hosts" in run.stdout
    assert "Failed: three: gpu 0 (GPU-" in run.stdout
    assert run.stdout.count("Failed: ") == 1
    assert fleet.seen() == {"one": [("3g.40gb", 0), ("3g.40gb", 4)], "two": [], "three": []}


# ---------------------------------------------------------------------- one host, only the module -------------------


def mig(gpu, *profiles):
    return {"gpus": [gpu], "sharing": "mig", "mig": [{"profile": p} for p in profiles]}


OLD = [mig(0, "3g.40gb", "2g.20gb", "1g.10gb"), {"gpus": [1], "sharing": "shared"}]
NEW = [mig(0, "3g.40gb", "1g.20gb", "1g.20gb"), mig(1, "4g.40gb")]


@pytest.fixture
def planned(host):
    """Return the plan from the current layout OLD to NEW.

    The function converts the plan to JSON and back, like every saved plan.
    """
    host.create(H100)
    host.module("mig", layout=OLD)
    return json.loads(json.dumps(host.module("mig", check=True, layout=NEW)["plan_data"]))


def refused(host, plan, layout=NEW):
    """Return the error for a refused plan, which changes nothing.

    A dry run and a real run have the same error.
    """
    before = host.seen()
    (said,) = {host.module("mig", check=check, layout=layout, plan=plan)["msg"] for check in (True, False)}
    assert host.seen() == before
    return said


def test_exactly_the_saved_steps_are_applied(host, planned):
    there = {i["placement"]["start"]: i for i in host.module("gpu_info")["gpus"][0]["mig"]["instances"]}
    done = host.module("mig", layout=NEW, plan=planned)
    assert done["changed"], done
    assert done["plan"] == [gpu["plan"] for gpu in planned["gpus"]]
    assert host.seen()[1] == [("4g.40gb", 0)]
    (kept,) = [i for i in host.module("gpu_info")["gpus"][0]["mig"]["instances"] if i["profile"] == "3g.40gb"]
    assert kept == there[kept["placement"]["start"]]
    again = host.module("mig", layout=NEW, plan=planned)
    assert not again["changed"] and not again.get("failed")


def test_every_moved_instance_is_named(host, planned):
    host.module("mig", layout=[mig(0, "3g.40gb", "1g.10gb"), {"gpus": [1], "sharing": "exclusive"}])
    host.module("mig", layout=[mig(0, "3g.40gb", "1g.10gb", "1g.10gb+me")])
    was, now = (dict(map(reversed, seen)) for seen in (planned_instances(planned), host.seen()[0]))
    said = refused(host, planned)
    for start in set(was) | set(now):
        if was.get(start) != now.get(start):
            assert start not in was or "gpu 0: %s@%d is gone" % (was[start], start) in said
            assert start not in now or "gpu 0: %s@%d appeared" % (now[start], start) in said
        else:
            assert "%s@%d" % (was[start], start) not in said
    assert "gpu 1: compute mode was default and is exclusive_process" in said
    assert "Check the difference and save a new plan" in said


def planned_instances(plan):
    return [(i["profile"], i["start"]) for i in plan["gpus"][0]["observed"]["instances"]]


def test_changed_mode_is_named(host, planned):
    host.module("mig", layout=[mig(1, "7g.80gb")])
    said = refused(host, planned)
    assert "gpu 1: MIG mode was off and is on" in said
    assert "gpu 1: 7g.80gb@0 appeared" in said
    assert "gpu 0" not in said


def test_changed_driver_and_missing_card_are_named(host):
    host.create(H100, driver_version="570.86.15")
    plan = host.module("mig", check=True, layout=NEW[:1])["plan_data"]
    host.create([{"model": "H100-80GB", "count": 2}], driver_version="580.105.08")
    assert "the driver was 570.86.15 and is 580.105.08" in refused(host, plan, NEW[:1])
    gone = dict(plan, gpus=[dict(plan["gpus"][0], uuid="GPU-00000000-0000-0000-0000-000000000000")])
    assert "(NVIDIA H100 80GB HBM3, GPU-00000000-0000-0000-0000-000000000000) is gone" in refused(host, gone, [])


def test_another_layout_needs_another_plan(host, planned):
    moved_entries = list(reversed(NEW))
    assert host.module("mig", check=True, layout=moved_entries, plan=planned)["changed"]
    said = refused(host, planned, [NEW[0], mig(1, "3g.40gb")])
    assert "gpu_layout has changed: gpu 1" in said
    assert "is to be mig: 1x 3g.40gb" in said
    assert "is no longer in gpu_layout" in refused(host, planned, NEW[:1])


def test_process_started_after_saving_is_not_ended(host, planned):
    doomed = next(step for step in planned["gpus"][0]["steps"] if step["step"] == "DestroyGpuInstance")
    process = host.popen(
        [
            "gpusim",
            "run",
            "--gpu",
            "0",
            "--gi",
            str(doomed["gpu_instance_id"]),
            "--memory",
            "1GiB",
            "--",
            "sleep",
            "300",
        ]
    )
    wait_until(lambda: host.module("gpu_info")["gpus"][0]["processes"], "the process in NVML")
    try:
        assert "%s@%d" % (doomed["profile"], doomed["placement"]["start"]) in refused(host, planned)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    assert host.module("mig", layout=NEW, plan=planned)["changed"]


def test_steps_that_the_planner_would_not_make_are_refused(host, planned):
    """Compare a plan file with the planner's own result.

    The module never applies the file directly, because someone may have changed it.
    """
    planned["gpus"][0]["steps"].pop()
    assert "the steps have changed: gpu 0: " in refused(host, planned)
    assert "it was not written by this collection" in refused(host, {"schema": 4})
    assert "it has schema None" in refused(host, {})


def test_killed_run_is_completed_before_the_plan_is_checked(host, planned):
    host.gpusim("fail", "nvmlDeviceCreateGpuInstanceWithPlacement", "--code", "kill")
    with pytest.raises(AssertionError, match="exit -9"):
        host.module("mig", layout=NEW, plan=planned)
    assert "gpu 1: MIG mode was off and is on" in host.module("mig", check=True, layout=NEW, plan=planned)["msg"]
    done = host.module("mig", layout=NEW, plan=planned)
    assert done["recovered"] == "old", done
    assert done["plan"] == [gpu["plan"] for gpu in planned["gpus"]]
    assert host.seen()[1] == [("4g.40gb", 0)]
