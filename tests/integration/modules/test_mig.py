# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the module mig with the simulated NVML.

The tests cover changes, kept instances, refusals and rollbacks.
"""

from __future__ import annotations

import pytest

from tests.integration.patience import wait_until

H100 = [{"model": "H100-80GB", "count": 2}]
HALVES = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}]


def mig(gpu, *profiles):
    return {"gpus": [gpu], "sharing": "mig", "mig": [{"profile": p} for p in profiles]}


def uuids(result, index=0):
    return {i["profile"] + "@%d" % i["placement"]["start"]: i["mig_uuids"] for i in result["gpus"][index]["instances"]}


def busy(host, *where):
    """Start a process that NVML counts as a GPU process on a GPU or instance."""
    process = host.popen(["gpusim", "run", *where, "--memory", "1GiB", "--", "sleep", "300"])
    wait_until(
        lambda: process.poll() is not None or any(gpu["processes"] for gpu in host.module("gpu_info")["gpus"]),
        "the process in NVML",
    )
    assert process.poll() is None, "gpusim run ended"
    return process


@pytest.mark.host_python
@pytest.mark.core
def test_layout_is_applied_once(host):
    host.create(H100)
    first = host.module("mig", layout=HALVES)
    assert first["changed"], first
    assert host.seen() == {0: [("3g.40gb", 0), ("3g.40gb", 4)], 1: []}
    assert first["counts"] == {"create": 2, "destroy": 0, "keep": 0, "gpus_changed": 1}
    assert first["plan"] == ["gpu 0: enable MIG mode, create 3g.40gb@0, create 3g.40gb@4"]
    second = host.module("mig", layout=HALVES)
    assert not second["changed"]
    assert uuids(second) == uuids(first)
    assert all(u[0].startswith("MIG-") for u in uuids(first).values())


@pytest.mark.host_python
@pytest.mark.core
def test_check_mode_predicts_and_changes_nothing(host):
    host.create(H100)
    foretold = host.module("mig", check=True, layout=HALVES)
    assert foretold["changed"]
    assert host.seen() == {0: [], 1: []}
    done = host.module("mig", layout=HALVES)
    assert foretold["plan"] == done["plan"]
    assert foretold["diff"] == done["diff"]
    assert done["diff"]["before"] == "gpu 0: MIG off, compute mode default\n"
    assert done["diff"]["after"] == "gpu 0: MIG on: 3g.40gb@0, 3g.40gb@4\n"
    assert not host.module("mig", check=True, layout=HALVES)["changed"]


def test_kept_instance_keeps_its_uuid_and_its_process(host):
    host.create(H100)
    before = host.module("mig", layout=[mig(0, "3g.40gb", "3g.40gb")])
    instance = next(i for i in host.module("gpu_info")["gpus"][0]["mig"]["instances"] if i["placement"]["start"] == 4)
    process = busy(host, "--gpu", "0", "--gi", str(instance["id"]))
    after = host.module("mig", layout=[mig(0, "3g.40gb", "2g.20gb", "1g.10gb")])
    assert after["changed"], after
    assert "keep 3g.40gb@4 (1 process)" in after["plan"][0]
    assert uuids(after)["3g.40gb@4"] == uuids(before)["3g.40gb@4"]
    assert process.poll() is None
    process.kill()
    process.wait()


def test_running_processes_are_never_ended(host):
    host.create(H100)
    host.module("mig", layout=[mig(0, "7g.80gb")])
    process = busy(host, "--gpu", "0", "--gi", "0")
    for check in (True, False):
        refused = host.module("mig", check=check, layout=HALVES)
        assert refused["failed"]
        assert refused["outcome"] == "old"
        assert "7g.80gb@0 (1 process) is in use by pid" in refused["msg"]
        assert "nothing was changed" in refused["msg"]
    assert host.seen()[0] == [("7g.80gb", 0)]
    process.kill()
    process.wait()
    assert host.module("mig", layout=HALVES)["changed"]


def test_whole_gpus_disable_mig(host):
    host.create(H100)
    host.module("mig", layout=[mig(0, "7g.80gb"), mig(1)])
    result = host.module("mig", layout=[{"gpus": [0], "sharing": "exclusive"}, {"gpus": [1], "sharing": "shared"}])
    assert result["changed"], result
    gpus = host.module("gpu_info")["gpus"]
    assert [g["mig"]["enabled"] for g in gpus] == [False, False]
    assert [g["compute_mode"] for g in gpus] == ["exclusive_process", "default"]
    again = host.module("mig", layout=[{"gpus": [0], "sharing": "exclusive"}, {"gpus": [1], "sharing": "shared"}])
    assert not again["changed"]


def test_gpus_without_an_entry_are_not_changed(host):
    host.create(H100)
    host.module("mig", layout=[mig(0, "7g.80gb"), mig(1, "4g.40gb")])
    host.module("mig", layout=[{"gpus": [0], "sharing": "shared"}])
    assert host.seen() == {0: [], 1: [("4g.40gb", 0)]}
    assert not host.module("mig", layout=[])["changed"]


@pytest.mark.parametrize(
    "model", ["A100-40GB", "A100-80GB", "A30-24GB", "H100-80GB", "H200-141GB", "B200-180GB", "RTXPRO6000-96GB"]
)
def test_maximum_instances_of_every_profile_and_model(host, model):
    host.create([{"model": model, "count": 1}])
    for profile in host.module("gpu_info", profiles=True)["gpus"][0]["mig"]["profiles"]:
        entry = {
            "gpus": "all",
            "sharing": "mig",
            "mig": [{"profile": profile["name"], "count": profile["max_instances"]}],
        }
        result = host.module("mig", layout=[entry])
        assert not result.get("failed"), result
        assert [name for name, _ in host.seen()[0]] == [profile["name"]] * profile["max_instances"]


def test_layouts_that_the_driver_places_badly_are_created(host):
    """Create layouts for which the driver would choose bad placements.

    If the driver chooses placements for 1g, 1g, 2g, 3g in this order, the 3g has no room.
    """
    host.create([{"model": "A100-40GB", "count": 1}])
    result = host.module("mig", layout=[mig(0, "1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb")])
    assert result["changed"], result
    assert sorted(name for name, _ in host.seen()[0]) == ["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"]


def test_compute_instances_split_a_gpu_instance(host):
    host.create(H100)
    split = [
        {
            "gpus": [0],
            "sharing": "mig",
            "mig": [{"profile": "4g.40gb", "compute_instances": ["2c.4g.40gb", "1c.4g.40gb"]}],
        }
    ]
    result = host.module("mig", layout=split)
    assert result["changed"], result
    compute = host.module("gpu_info")["gpus"][0]["mig"]["instances"][0]["compute_instances"]
    assert sorted(c["compute_slices"] for c in compute) == [1, 2]
    assert len({c["mig_uuid"] for c in compute}) == 2
    assert not host.module("mig", layout=split)["changed"]


@pytest.mark.parametrize(("profile", "parts"), [("7g.80gb", (3, 2, 2)), ("7g.80gb", (4, 3)), ("4g.40gb", (2, 1, 1))])
def test_splits_that_need_chosen_placements(host, profile, parts):
    host.create(H100)
    names = [f"{part}c.{profile}" for part in parts]
    layout = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": profile, "compute_instances": names}]}]
    assert host.module("mig", layout=layout)["changed"]
    compute = host.module("gpu_info")["gpus"][0]["mig"]["instances"][0]["compute_instances"]
    assert sorted(c["compute_slices"] for c in compute) == sorted(parts)


def test_ampere_changes_mode_only_when_idle(host):
    host.create([{"model": "A100-80GB", "count": 1}])
    process = busy(host, "--gpu", "0")
    refused = host.module("mig", layout=[mig(0, "7g.80gb")])
    assert refused["failed"]
    assert "whose MIG mode would change, is in use by" in refused["msg"]
    process.kill()
    process.wait()
    assert host.module("mig", layout=[mig(0, "7g.80gb")])["changed"]
    assert host.seen()[0] == [("7g.80gb", 0)]


def test_pending_mode_gets_its_reset(host):
    host.create([{"model": "A100-80GB", "count": 2}])
    host.gpusim("set", "0", "passthrough", "on")
    result = host.module("mig", layout=[mig(0, "7g.80gb")])
    assert result["changed"], result
    assert host.seen() == {0: [("7g.80gb", 0)], 1: []}


@pytest.mark.host_python
@pytest.mark.core
@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceSetMigMode",
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceCreateComputeInstance",
        "nvmlGpuInstanceDestroy",
        "nvmlComputeInstanceDestroy",
    ],
)
@pytest.mark.parametrize("nth", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_failed_step_rolls_back(host, call, nth):
    host.create(H100)
    old = [mig(0, "3g.40gb", "2g.20gb", "1g.10gb"), {"gpus": [1], "sharing": "shared"}]
    new = [mig(0, "3g.40gb", "1g.20gb", "1g.20gb"), mig(1, "4g.40gb")]
    host.module("mig", layout=old)
    there = host.seen()
    host.gpusim("fail", call, "--nth", str(nth), "--code", "UNKNOWN")
    failed = host.module("mig", layout=new)
    if not failed.get("failed"):
        # The plan makes fewer than `nth` calls of this function, so the fault has not happened. Clear the fault before
        # the next test.
        assert (call, nth) == ("nvmlDeviceSetMigMode", 2)
        return
    assert failed["outcome"] == "old", failed
    assert call in failed["msg"]
    assert "the previous layout was restored" in failed["msg"]
    assert host.seen() == there
    assert host.module("mig", layout=new)["changed"]


@pytest.mark.host_python
@pytest.mark.core
@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("3g.40gb", ["gpu_layout", "list"]),
        (
            [{"gpus": [0], "sharing": "mig", "mig": [{"profil": "3g.40gb"}]}],
            ["gpu_layout[0].mig[0]", "profil", "profile"],
        ),
        ([mig(0, "3g.20gb")], ["gpu_layout[0]", "gpu 0", "3g.20gb", "1g.10gb, 1g.10gb+me"]),
        ([mig(0, "4g.40gb", "4g.40gb")], ["gpu_layout[0]", "do not fit", "The largest part that fits is: 1x 4g.40gb"]),
        ([mig(0, "7g.80gb"), {"gpus": [0], "sharing": "shared"}], ["gpu_layout[1].gpus[0]", "gpu_layout[0].gpus[0]"]),
        ([mig(0, "7g.80gb"), {"gpus": [{"model": "H100*"}], "sharing": "shared"}], ["gpu_layout[1].gpus[0]", "gpu 0"]),
        ([mig(5, "7g.80gb")], ["gpu_layout[0].gpus[0]", "this host has no GPU 5", "It has GPUs 0 to 2"]),
        ([mig(2, "1g.10gb")], ["gpu_layout[0]", "gpu 2", "no MIG"]),
        (
            [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "1g.10gb", "count": "two"}]}],
            ["gpu_layout[0].mig[0].count", "two"],
        ),
    ],
)
def test_invalid_input_names_place_and_fix_and_changes_nothing(host, layout, words):
    host.create([*H100, {"model": "L40S-48GB", "count": 1}])
    for check in (True, False):
        result = host.module("mig", check=check, layout=layout)
        assert result["failed"]
        for word in words:
            assert word in result["msg"]
        assert result["cure"]
    assert host.seen() == {0: [], 1: [], 2: []}


def test_without_root_it_is_refused(host):
    host.create(H100)
    result = host.module("mig", user=65534, layout=HALVES)
    assert result["failed"]
    assert "become: true" in result["msg"]
    assert host.seen() == {0: [], 1: []}


def test_without_a_driver_a_dry_run_checks_the_form(host):
    foretold = host.module("mig", check=True, layout=HALVES)
    assert (foretold["driver_present"], foretold["changed"]) == (False, True)
    assert host.module("mig", check=True, layout=[{"gpus": [0]}])["failed"]
    real = host.module("mig", layout=HALVES)
    assert real["failed"]
    assert "driver" in real["msg"]
