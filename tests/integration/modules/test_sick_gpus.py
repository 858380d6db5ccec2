# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run modules on a host on which calls for one GPU fail.

Any call can fail, with any error code.
"""

from __future__ import annotations

import json

import pytest

from tests.integration.command_host import CommandHost, build_command

HALVES = {"sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}
CODES = {"UNKNOWN": 999, "IRQ_ISSUE": 11, "INSUFFICIENT_POWER": 8, "RESET_REQUIRED": 16, "GPU_IS_LOST": 15}
#: Calls that planning a GPU needs, including those for its instances.
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
    """Return each working GPU's number of MIG instances, by index."""
    return {gpu["index"]: len(gpu["mig"]["instances"]) for gpu in host.module("gpu_info")["gpus"]}


@pytest.mark.host_python
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("call", CALLS)
def test_failing_gpu_is_named_and_blocks_no_other(three, call, code):
    fail(three, call, code)
    (sick,) = three.module("gpu_info")["lost_gpus"]
    assert (sick["index"], sick["code"]) == (1, CODES[code]), sick
    assert "(NVML code %d)" % CODES[code] in sick["problem"], sick
    done = three.module("mig", layout=[dict(HALVES, gpus=[0]), dict(HALVES, gpus=[2])])
    assert done["changed"] and "the layout does not name it" in done["lost"][0], done
    assert done["lost"][0].startswith("gpu 1"), done
    assert instances(three) == {0: 2, 2: 2}


@pytest.mark.parametrize("call", CALLS_OF_MIG)
def test_failure_in_an_instance_marks_its_gpu_as_failing(three, call):
    three.module("mig", layout=[dict(HALVES, gpus="all")])
    uuid = three.module("gpu_info")["gpus"][1]["uuid"]
    fail(three, call)
    (sick,) = three.module("gpu_info")["lost_gpus"]
    assert (sick["index"], sick["uuid"], sick["code"]) == (1, uuid, 999)
    layout = [{"gpus": [0, 2], "sharing": "shared"}]
    assert three.module("mig", layout=layout)["changed"]
    assert instances(three) == {0: 0, 2: 0}


@pytest.mark.host_python
def test_entry_with_a_missing_gpu_fails_or_skips_it(three):
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


def test_failing_gpu_with_known_name_is_matched_exactly(host):
    """Match entries exactly if a sick GPU's UUID, PCI address and model are known.

    Otherwise, the module would refuse an entry because it might match the GPU.
    """
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


def test_command_names_the_failing_gpu_and_continues(three, command):
    fail(three, "any")
    assert "gpu 1  does not work: " in command("show").stdout
    (told,) = json.loads(command("show", "--json").stdout)["lost"]
    assert (told["index"], told["code"], told["code_name"]) == (1, 999, "Unknown")
    all_gpus = command.layout([dict(HALVES, gpus="all")])
    assert "gpu 1 does not work" in command("plan", "--layout", all_gpus, status=1).stderr
    command("apply", "--layout", all_gpus, "--lost", "skip")
    assert instances(three) == {0: 2, 2: 2}
    assert "gpu 1 does not work" in command("export").stderr


def test_failure_of_a_host_call_stays_a_failure_of_the_host(three):
    for code in ("LIB_RM_VERSION_MISMATCH", "DRIVER_NOT_LOADED"):
        fail(three, "nvmlDeviceGetHandleByIndex", code)
        failed = three.module("mig", layout=[dict(HALVES, gpus=[0])], lost="skip")
        assert failed["failed"] and "this host" in failed["msg"], failed
        three.gpusim("fail", "--clear")


@pytest.mark.parametrize("call", ["nvmlDeviceGetPowerUsage", "nvmlDeviceGetSerial"])
def test_optional_value_marks_a_gpu_as_failing_only_by_certain_codes(three, call):
    fail(three, call)
    seen = three.module("gpu_info")
    assert not seen["lost_gpus"] and len(seen["gpus"]) == 3
    three.gpusim("fail", "--clear")
    fail(three, call, "RESET_REQUIRED")
    assert [gpu["index"] for gpu in three.module("gpu_info")["lost_gpus"]] == [1]


# --- a GPU that starts to fail during a change


WHOLE = [{"profile": "7g.80gb", "count": 1}]


def calls_of(host, gpu, layout):
    """Count the NVML calls for a GPU in a successful run of this layout."""
    host.gpusim("fail", "any", "--gpu", str(gpu), "--nth", "100000", "--code", "UNKNOWN", "--lasting")
    assert host.module("mig", layout=layout)["changed"]
    (fault,) = json.loads(host.gpusim("show", "--json"))["faults"]
    host.gpusim("fail", "--clear")
    return 100000 - fault["nth"]


def seen(host):
    """Return each working GPU's profiles, by index."""
    return {gpu["index"]: [i["profile"] for i in gpu["mig"]["instances"]] for gpu in host.module("gpu_info")["gpus"]}


@pytest.mark.parametrize("lost", ["fail", "skip"])
@pytest.mark.parametrize("part", range(8))
def test_gpu_that_fails_during_a_change_leaves_others_old_or_new(three, part, lost):
    before, after = [{"gpus": "all", "sharing": "mig", "mig": WHOLE}], [dict(HALVES, gpus="all")]
    assert three.module("mig", layout=before)["changed"]
    count = calls_of(three, 1, after)
    assert three.module("mig", layout=before)["changed"]
    nth = 1 + part * count // 8 + part
    fail_from = ("--gpu", "1", "--nth", str(nth), "--code", "UNKNOWN", "--lasting")
    three.gpusim("fail", "any", *fail_from)
    done = three.module("mig", layout=after, lost=lost)
    old, new = ["7g.80gb"], ["3g.40gb", "3g.40gb"]
    if done.get("failed"):
        assert "gpu 1" in done["msg"] and "does not work" in done["msg"], done
        assert seen(three) == {0: old, 2: old}, done
        assert lost == "fail", done
    else:
        assert seen(three) == {0: new, 2: new}, done
        assert any("gpu 1" in text for text in done.get("lost", ())), done
    # Once the GPU works again, the next run applies the new layout to all GPUs.
    three.gpusim("fail", "--clear")
    again = three.module("mig", layout=after)
    assert not again.get("failed"), again
    assert seen(three) == {0: new, 1: new, 2: new}


def test_unchangeable_gpu_does_not_block_others(three):
    before, after = [{"gpus": "all", "sharing": "mig", "mig": WHOLE}], [dict(HALVES, gpus="all")]
    assert three.module("mig", layout=before)["changed"]
    fail(three, "nvmlGpuInstanceCreateComputeInstance")
    fail(three, "nvmlGpuInstanceCreateComputeInstanceWithPlacement")
    failed = three.module("mig", layout=after)
    assert failed["failed"] and failed["outcome"] == "old" and "but not on gpu 1" in failed["msg"], failed
    (healthy_0, healthy_2) = (seen(three)[index] for index in (0, 2))
    assert healthy_0 == healthy_2 == ["7g.80gb"]
    done = three.module("mig", layout=after, lost="skip")
    assert not done.get("failed") and any("gpu 1" in text for text in done["lost"]), done
    assert [seen(three)[index] for index in (0, 2)] == [["3g.40gb"] * 2] * 2
    three.gpusim("fail", "--clear")
    assert not three.module("mig", layout=after).get("failed")
    assert seen(three) == dict.fromkeys(range(3), ["3g.40gb"] * 2)


def test_unchanged_gpu_that_fails_meanwhile_is_reported(three):
    layout, other = [dict(HALVES, gpus=[0])], [{"gpus": [0], "sharing": "shared"}]
    count = calls_of(three, 1, layout)
    assert three.module("mig", layout=other)["changed"]
    fail_from = ("--gpu", "1", "--nth", str(count - 5), "--code", "UNKNOWN", "--lasting")
    three.gpusim("fail", "any", *fail_from)
    done = three.module("mig", layout=layout)
    assert done["changed"] and "it worked when the run began" in done["lost"][0], done
    assert seen(three) == {0: ["3g.40gb"] * 2, 2: []}


PROFILE_CALLS = ("nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetGpuInstancePossiblePlacements")


@pytest.mark.parametrize("call", PROFILE_CALLS)
@pytest.mark.parametrize("code", ["NOT_SUPPORTED", "INVALID_ARGUMENT", "NOT_FOUND", "NO_PERMISSION", "UNKNOWN"])
@pytest.mark.parametrize("sick", [0, 2])
def test_profiles_that_a_sick_gpu_does_not_report_stay_available_on_others(three, sick, code, call):
    """Keep other GPUs' profiles if a sick GPU does not report its own.

    The test includes the error codes that mean an unsupported profile.
    """
    fail(three, call, code, gpu=sick)
    done = three.module("mig", layout=[dict(HALVES, gpus="all")], lost="skip")
    assert done.get("changed"), done
    named = "gpu %d" % sick in " ".join(done.get("lost", []))
    assert named is (sick == 0), "the last GPU has the list on which the others agree"
    healthy = [index for index in range(3) if index != sick]
    assert {index: instances(three).get(index) for index in healthy} == dict.fromkeys(healthy, 2)
    assert not three.module("mig", layout=[dict(HALVES, gpus=healthy)])["changed"]


# --- a GPU whose calls fail with a code that also means that a healthy GPU lacks a feature


SOFT_CODES = ("NOT_SUPPORTED", "NO_PERMISSION", "NOT_FOUND")
EXCLUSIVE = {"sharing": "exclusive"}
#: The failing call, the sick GPU's entry, and whether the run changes the GPU in spite of the failure.
SOFT_CASES = [
    ("nvmlDeviceGetGpuInstanceProfileInfo", HALVES, False),
    ("nvmlDeviceGetGpuInstanceProfileInfo", EXCLUSIVE, True),
    ("nvmlDeviceGetMigMode", HALVES, False),
    ("nvmlDeviceGetComputeRunningProcesses", HALVES, False),
    ("nvmlDeviceGetComputeMode", EXCLUSIVE, False),
    ("nvmlDeviceSetComputeMode", EXCLUSIVE, False),
    ("nvmlDeviceSetMigMode", HALVES, False),
]


@pytest.mark.parametrize("code", SOFT_CODES)
@pytest.mark.parametrize(
    ("call", "entry", "changed"), SOFT_CASES, ids=lambda value: getattr(value, "get", str)("sharing")
)
@pytest.mark.parametrize("sick", [0, 2])
def test_sick_gpu_in_the_other_mode_blocks_no_other(three, sick, call, entry, changed, code):
    healthy = [index for index in range(3) if index != sick]
    assert three.module("mig", layout=[dict(HALVES, gpus=healthy)])["changed"]
    fail(three, call, code, gpu=sick)
    before = three.module("gpu_info")["gpus"][sick]
    if (sick, call) == (2, "nvmlDeviceGetGpuInstanceProfileInfo"):
        changed = True  # The model's other two GPUs report the same profiles.
    # The run changes the healthy GPUs as well.
    layout = [{"gpus": healthy, "sharing": "mig", "mig": WHOLE}, dict(entry, gpus=[sick])]
    if call.startswith("nvmlDeviceGet") and not changed:
        for check in (True, False):
            failed = three.module("mig", layout=layout, check=check)
            text = "gpu %d (%s) does not work: " % (sick, before["uuid"])
            assert failed["failed"] and text in failed["msg"] and "gpu_layout_lost: skip" in failed["msg"], failed
            assert failed["nvml"]["call"] == call and failed["nvml"]["gpu"] == before["uuid"], failed
    planned = three.module("mig", layout=layout, lost="skip", check=True)
    assert not planned.get("failed"), planned
    done = three.module("mig", layout=layout, lost="skip")
    assert done.get("changed"), done
    named = "gpu %d" % sick in " ".join(done.get("lost", []))
    assert named is not changed, done
    after = three.module("gpu_info")["gpus"]
    assert [seen(three)[index] for index in healthy] == [["7g.80gb"]] * 2
    if not changed:
        assert after[sick] == before
    again = three.module("mig", layout=layout, lost="skip")
    assert not again.get("failed") and not again["changed"], again


def test_only_gpu_of_its_model_without_profiles_blocks_no_other(host):
    host.create([{"model": "H100-80GB"}, {"model": "L40S-48GB"}])
    fail(host, "nvmlDeviceGetGpuInstanceProfileInfo", "NOT_SUPPORTED", gpu=0)
    layout = [dict(HALVES, gpus=[0]), dict(EXCLUSIVE, gpus=[1])]
    failed = host.module("mig", layout=layout)
    assert "gpu 0 (" in failed["msg"] and "it reports no MIG profiles" in failed["msg"], failed
    done = host.module("mig", layout=layout, lost="skip")
    assert done.get("changed") and "gpu 0" in done["lost"][0], done
    assert host.module("gpu_info")["gpus"][1]["compute_mode"] == "exclusive_process"


def test_mistake_in_the_layout_fails_beside_a_sick_gpu(three):
    fail(three, "nvmlDeviceGetGpuInstanceProfileInfo", "NOT_SUPPORTED", gpu=0)
    assert three.module("mig", layout=[dict(HALVES, gpus=[1, 2])])["changed"]
    typo = {"sharing": "mig", "mig": [{"profile": "3g.41gb"}]}
    for gpus in ([1], "all"):
        failed = three.module("mig", layout=[dict(typo, gpus=gpus)], lost="skip")
        assert failed["failed"] and "no profile 3g.41gb" in failed["msg"], failed


@pytest.mark.parametrize("lost", ["fail", "skip"])
def test_old_driver_that_lists_no_profiles_is_named_with_its_fix(host, lost):
    # If MIG mode is off, drivers before 550 list no placements, even for a healthy GPU.
    host.create([{"model": "H100-80GB", "count": 2}], driver_version="535.261.03")
    code = "from pynvml import *; nvmlInit(); nvmlDeviceSetMigMode(nvmlDeviceGetHandleByIndex(1), 1)"
    host.run([host.python, "-c", code])
    done = host.module("mig", layout=[dict(HALVES, gpus="all")], lost=lost)
    uuid = host.module("gpu_info")["gpus"][0]["uuid"]
    text = done["msg"] if lost == "fail" else done["lost"][0]
    assert "gpu 0 (%s)" % uuid in text and "upgrade it, or run nvidia-smi -i %s -mig 1 once" % uuid in text, done
    assert instances(host) == {0: 0, 1: 2 if lost == "skip" else 0}
