# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on a host on which calls to one GPU fail, with any code and in any call."""

from __future__ import annotations

import json

import pytest
from command_host import CommandHost, build_command

HALVES = {"sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}
CODES = {"UNKNOWN": 999, "IRQ_ISSUE": 11, "INSUFFICIENT_POWER": 8, "RESET_REQUIRED": 16, "GPU_IS_LOST": 15}
#: Calls without which a GPU cannot be planned, with those on its instances.
CALLS = (
    "any",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetComputeRunningProcesses",
)
CALLS_OF_MIG = (
    "nvmlDeviceGetGpuInstances",
    "nvmlGpuInstanceGetInfo",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlGpuInstanceGetComputeInstances",
    "nvmlComputeInstanceGetInfo",
    "nvmlGpuInstanceGetComputeInstanceProfileInfo",
)


@pytest.fixture(name="three")
def three_gpus(host):
    return host.create([{"model": "H100-80GB", "count": 3}])


def fail(host, call, code="UNKNOWN", gpu=1):
    host.gpusim("fail", call, "--gpu", str(gpu), "--code", code, "--lasting")


def instances(host):
    """The number of MIG instances of each GPU that works, by index."""
    return {gpu["index"]: len(gpu["mig"]["instances"]) for gpu in host.module("gpu_info")["gpus"]}


@pytest.mark.host_python
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("call", CALLS)
def test_a_sick_gpu_is_named_and_blocks_no_other(three, call, code):
    fail(three, call, code)
    (sick,) = three.module("gpu_info")["lost_gpus"]
    assert (sick["index"], sick["code"]) == (1, CODES[code]), sick
    assert "(NVML code %d)" % CODES[code] in sick["problem"], sick
    done = three.module("mig", layout=[dict(HALVES, gpus=[0]), dict(HALVES, gpus=[2])])
    assert done["changed"] and "the layout does not name it" in done["lost"][0], done
    assert done["lost"][0].startswith("gpu 1"), done
    assert instances(three) == {0: 2, 2: 2}


@pytest.mark.parametrize("call", CALLS_OF_MIG)
def test_a_failure_in_an_instance_makes_its_gpu_sick(three, call):
    three.module("mig", layout=[dict(HALVES, gpus="all")])
    uuid = three.module("gpu_info")["gpus"][1]["uuid"]
    fail(three, call)
    (sick,) = three.module("gpu_info")["lost_gpus"]
    assert (sick["index"], sick["uuid"], sick["code"]) == (1, uuid, 999)
    layout = [{"gpus": [0, 2], "sharing": "shared"}]
    assert three.module("mig", layout=layout)["changed"]
    assert instances(three) == {0: 0, 2: 0}


@pytest.mark.host_python
def test_an_entry_that_names_it_fails_by_name_or_leaves_it_out(three):
    uuid = three.module("gpu_info")["gpus"][1]["uuid"]
    fail(three, "nvmlDeviceGetMemoryInfo")
    layout = [dict(HALVES, gpus="all")]
    failed = three.module("mig", layout=layout)
    text = "gpu 1 (%s) does not work: nvmlDeviceGetMemoryInfo failed: Unknown Error (NVML code 999)" % uuid
    assert failed["failed"] and text in failed["msg"] and "gpu_layout_lost: skip" in failed["msg"], failed
    assert failed["nvml"] == {
        "call": "nvmlDeviceGetMemoryInfo",
        "code": 999,
        "code_name": "Unknown",
        "gpu": uuid,
    }
    assert instances(three) == {0: 0, 2: 0}
    done = three.module("mig", layout=layout, lost="skip")
    assert done["lost"] == [
        "gpu 1 (%s) does not work: gpu_layout[0] is applied to its other GPUs (%s)" % (uuid, text.partition(": ")[2])
    ]
    assert instances(three) == {0: 2, 2: 2}


def test_a_sick_gpu_whose_name_is_known_is_matched_exactly(host):
    """By UUID, PCI address and model: no entry is refused for what it might mean."""
    host.create([{"model": "H100-80GB", "count": 1}, {"model": "L40S-48GB", "count": 1}])
    fail(host, "nvmlDeviceGetMigMode")
    (sick,) = host.module("gpu_info")["lost_gpus"]
    assert sick["name"] == "NVIDIA L40S" and sick["pci_address"]
    assert host.module("mig", layout=[dict(HALVES, gpus={"model": "H100*"})])["changed"]
    for gpus in ([sick["uuid"]], [sick["pci_address"]], {"model": "L40S"}):
        failed = host.module("mig", layout=[{"gpus": gpus, "sharing": "shared"}])
        assert "gpu 1 (%s) does not work" % sick["uuid"] in failed["msg"], failed
    gone = host.module("mig", layout=[{"gpus": ["GPU-00000000-1111-2222-3333-444444444444"], "sharing": "shared"}])
    assert "no GPU of this host matches" in gone["msg"], gone


@pytest.fixture(name="command")
def of_the_terminal(three, tmp_path):
    return CommandHost(three, build_command(tmp_path / "gpu-layout"))


def test_the_command_names_it_and_continues(three, command):
    fail(three, "any")
    assert "gpu 1  does not work: " in command("show").stdout
    (told,) = json.loads(command("show", "--json").stdout)["lost"]
    assert (told["index"], told["code"], told["code_name"]) == (1, 999, "Unknown")
    all_gpus = command.layout([dict(HALVES, gpus="all")])
    assert "gpu 1 does not work" in command("plan", "--layout", all_gpus, status=1).stderr
    command("apply", "--layout", all_gpus, "--lost", "skip")
    assert instances(three) == {0: 2, 2: 2}
    assert "gpu 1 does not work" in command("export").stderr


def test_a_failure_of_a_call_that_is_about_the_host_stays_one(three):
    for code in ("LIB_RM_VERSION_MISMATCH", "DRIVER_NOT_LOADED"):
        fail(three, "nvmlDeviceGetHandleByIndex", code)
        failed = three.module("mig", layout=[dict(HALVES, gpus=[0])], lost="skip")
        assert failed["failed"] and "this host" in failed["msg"], failed
        three.gpusim("fail", "--clear")


@pytest.mark.parametrize("call", ["nvmlDeviceGetPowerUsage", "nvmlDeviceGetSerial"])
def test_an_optional_figure_makes_a_gpu_sick_only_by_a_code_that_says_so(three, call):
    fail(three, call)
    seen = three.module("gpu_info")
    assert not seen["lost_gpus"] and len(seen["gpus"]) == 3
    three.gpusim("fail", "--clear")
    fail(three, call, "RESET_REQUIRED")
    assert [gpu["index"] for gpu in three.module("gpu_info")["lost_gpus"]] == [1]
