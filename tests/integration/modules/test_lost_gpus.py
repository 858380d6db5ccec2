# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run modules on a host with a GPU that fell off the bus."""

from __future__ import annotations

import json

import pytest

from tests.integration.command_host import CommandHost, build_command

HALVES = {"sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}
LOST = "gpu 1 is lost: nvmlDeviceGetHandleByIndex failed: GPU is lost (NVML code 15)"


@pytest.fixture(name="sick")
def of_three_gpus_one_is_lost(host):
    host.create([{"model": "H100-80GB", "count": 3}])
    host.gpusim("lose", "1")
    return host


def instances(host):
    """Return the MIG instances of the GPUs that respond, by GPU index."""
    return {gpu["index"]: len(gpu["mig"]["instances"]) for gpu in host.module("gpu_info")["gpus"]}


@pytest.mark.host_python
def test_lost_gpu_without_an_entry_does_not_block(sick):
    seen = sick.module("gpu_info")
    assert [gpu["index"] for gpu in seen["gpus"]] == [0, 2]
    assert [gpu["index"] for gpu in seen["lost_gpus"]] == [1]
    layout = [dict(HALVES, gpus=[0]), dict(HALVES, gpus=[2])]
    planned = sick.module("mig", check=True, layout=layout)
    assert planned["lost"] == ["gpu 1 is lost: the layout does not name it (%s)" % LOST.partition(": ")[2]]
    done = sick.module("mig", layout=layout, plan=planned["plan_data"])
    assert done["changed"] and done["lost"] == planned["lost"], done
    assert instances(sick) == {0: 2, 2: 2}
    assert not sick.module("mig", layout=layout)["changed"]


@pytest.mark.host_python
@pytest.mark.parametrize("gpus", [[0, 1, 2], "all"], ids=["index", "all"])
def test_entry_with_a_missing_gpu_fails_or_skips_it(sick, gpus):
    layout = [dict(HALVES, gpus=gpus)]
    failed = sick.module("mig", layout=layout)
    assert failed["failed"] and LOST in failed["msg"] and "gpu_layout_lost: skip" in failed["msg"], failed
    assert failed["msg"].startswith("gpu_layout[0].gpus[")
    assert instances(sick) == {0: 0, 2: 0}
    done = sick.module("mig", layout=layout, lost="skip")
    assert "gpu_layout[0] is applied to its other GPUs" in done["lost"][0]
    assert instances(sick) == {0: 2, 2: 2}


def test_plan_is_refused_after_a_gpu_is_lost(host):
    host.create([{"model": "H100-80GB", "count": 2}])
    layout = [dict(HALVES, gpus=[0, 1])]
    saved = host.module("mig", check=True, layout=layout)["plan_data"]
    host.gpusim("lose", "1")
    for lost in ("fail", "skip"):
        refused = host.module("mig", layout=layout, plan=saved, lost=lost)
        assert refused["failed"], refused
    assert instances(host) == {0: 0}


def test_interrupted_run_is_completed_despite_a_lost_gpu(sick):
    """Complete an interrupted run that did not change the lost GPU."""
    sick.gpusim("fail", "nvmlGpuInstanceCreateComputeInstance", "--code", "kill")
    layout = [dict(HALVES, gpus=[0])]
    with pytest.raises(AssertionError):
        sick.module("mig", layout=layout)
    done = sick.module("mig", layout=layout)
    assert done["recovered"] in ("old", "new"), done
    assert instances(sick) == {0: 2, 2: 0}


@pytest.fixture(name="command")
def of_the_terminal(sick, tmp_path):
    return CommandHost(sick, build_command(tmp_path / "gpu-layout"))


def test_command_names_the_lost_gpu_and_continues(sick, command):
    assert "gpu 1  lost: " in command("show").stdout
    assert [gpu["index"] for gpu in json.loads(command("show", "--json").stdout)["lost"]] == [1]
    all_gpus = command.layout([dict(HALVES, gpus="all")])
    assert LOST in command("plan", "--layout", all_gpus, status=1).stderr
    planned = command("plan", "--layout", all_gpus, "--lost", "skip")
    assert "gpu 1" not in planned.stdout and "gpu-layout: gpu 1 is lost: gpu_layout[0]" in planned.stderr
    command("apply", "--layout", all_gpus, "--lost", "skip")
    assert instances(sick) == {0: 2, 2: 2}
    assert "gpu 1 is lost" in command("export").stderr


def test_unknown_error_of_the_library_without_a_driver_is_no_driver(host):
    """Treat NVML's error "unknown" as a missing driver.

    NVIDIA's library returns this error in a container if the host has no driver.
    """
    host.create([{"model": "H100-80GB", "count": 1}])
    host.gpusim("fail", "nvmlInitWithFlags", "--code", "UNKNOWN")
    seen = host.module("gpu_info")
    assert not seen["driver_present"] and "Unknown Error" in seen["driver_absent_reason"], seen
