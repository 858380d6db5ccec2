# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test one GPU's faults, and faults that last until a command clears them."""

from __future__ import annotations

import os
import signal

import pytest

from tests.integration.patience import PATIENCE_SECONDS

NO_GPU, UNKNOWN, IRQ_ISSUE, NOT_SUPPORTED = -1, 999, 11, 3

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NVML's setters need root: run as root")


@pytest.fixture
def gpus(simulator, nvml):
    """Return the handles of GPU 0, whose calls fail, and GPU 1, which works."""
    simulator.create("h100", "h100")
    nvml.nvmlInit()
    return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(2)]


def code_of(nvml, call, *arguments):
    """Return 0 or the error code."""
    try:
        call(*arguments)
    except nvml.NVMLError as error:
        return error.value
    return 0


def test_lasting_fault_of_a_gpu_affects_each_call_until_cleared(simulator, nvml, gpus):
    simulator.do("gpusimFailOn", "nvmlDeviceGetMemoryInfo", 0, 1, 1, "UNKNOWN")
    for _ in range(3):
        assert code_of(nvml, nvml.nvmlDeviceGetMemoryInfo, gpus[0]) == UNKNOWN
        assert code_of(nvml, nvml.nvmlDeviceGetMemoryInfo, gpus[0], nvml.nvmlMemory_v2) == UNKNOWN
    assert code_of(nvml, nvml.nvmlDeviceGetMemoryInfo, gpus[1]) == code_of(nvml, nvml.nvmlDeviceGetName, gpus[0]) == 0
    assert simulator.dump()["faults"] == [
        {"function": "nvmlDeviceGetMemoryInfo", "gpu": 0, "nth": 1, "lasting": 1, "action": "UNKNOWN"}
    ]
    simulator.do("gpusimReboot")
    assert code_of(nvml, nvml.nvmlDeviceGetMemoryInfo, gpus[0]) == UNKNOWN
    simulator.do("gpusimFailClear")
    assert code_of(nvml, nvml.nvmlDeviceGetMemoryInfo, gpus[0]) == 0


def test_every_handle_of_the_gpu_can_fail(simulator, nvml, gpus):
    names = [
        ("nvmlDeviceGetHandleByIndex", nvml.nvmlDeviceGetHandleByIndex, 0, 1),
        (
            "nvmlDeviceGetHandleByUUID",
            nvml.nvmlDeviceGetHandleByUUID,
            *[nvml.nvmlDeviceGetUUID(gpu) for gpu in gpus],
        ),
        (
            "nvmlDeviceGetHandleBySerial",
            nvml.nvmlDeviceGetHandleBySerial,
            *[nvml.nvmlDeviceGetSerial(gpu) for gpu in gpus],
        ),
        (
            "nvmlDeviceGetHandleByPciBusId",
            nvml.nvmlDeviceGetHandleByPciBusId,
            *[nvml.nvmlDeviceGetPciInfo(gpu).busId for gpu in gpus],
        ),
    ]
    for name, call, sick, healthy in names:
        simulator.do("gpusimFailOn", name, 0, 1, 1, "11")
        assert (code_of(nvml, call, sick), code_of(nvml, call, healthy)) == (IRQ_ISSUE, 0), name
        simulator.do("gpusimFailClear")
        assert code_of(nvml, call, sick) == 0


def test_any_call_on_one_gpu(simulator, nvml, gpus):
    questions = [nvml.nvmlDeviceGetName, nvml.nvmlDeviceGetUUID, nvml.nvmlDeviceGetMigMode, nvml.nvmlDeviceGetSerial]
    simulator.do("gpusimFailOn", "any", 0, 1, 1, "IRQ_ISSUE")
    assert {code_of(nvml, question, gpus[0]) for question in questions} == {IRQ_ISSUE}
    assert {code_of(nvml, question, gpus[1]) for question in questions} == {0}
    assert code_of(nvml, nvml.nvmlDeviceGetHandleByIndex, 0) == IRQ_ISSUE
    assert nvml.nvmlDeviceGetCount() == 2
    nvml.nvmlInit()


@needs_root
def test_instances_and_mig_devices_belong_to_their_gpu(simulator, nvml, gpus):
    made = []
    for gpu in gpus:
        nvml.nvmlDeviceSetMigMode(gpu, 1)
        instance = nvml.nvmlDeviceCreateGpuInstance(gpu, 9)
        part = nvml.nvmlGpuInstanceCreateComputeInstance(instance, 2)
        made.append((instance, part, nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)))
    for name, call, place in (
        ("nvmlGpuInstanceGetInfo", nvml.nvmlGpuInstanceGetInfo, 0),
        ("nvmlComputeInstanceGetInfo", nvml.nvmlComputeInstanceGetInfo_v2, 1),
        ("nvmlDeviceGetUUID", nvml.nvmlDeviceGetUUID, 2),
        ("nvmlComputeInstanceDestroy", nvml.nvmlComputeInstanceDestroy, 1),
        ("nvmlGpuInstanceDestroy", nvml.nvmlGpuInstanceDestroy, 0),
    ):
        simulator.do("gpusimFailOn", name, 0, 1, 1, "UNKNOWN")
        assert [code_of(nvml, call, one[place]) for one in made] == [UNKNOWN, 0], name
        simulator.do("gpusimFailClear")
    uuid = nvml.nvmlDeviceGetUUID(made[0][2])
    simulator.do("gpusimFailOn", "nvmlDeviceGetHandleByUUID", 0, 1, 1, "UNKNOWN")
    assert code_of(nvml, nvml.nvmlDeviceGetHandleByUUID, uuid) == UNKNOWN


def test_the_nth_call_on_one_gpu_fails_once(simulator, nvml, gpus):
    simulator.do("gpusimFailOn", "nvmlDeviceGetName", 0, 2, 0, "UNKNOWN")
    for _ in range(3):
        assert code_of(nvml, nvml.nvmlDeviceGetName, gpus[1]) == 0
    assert [code_of(nvml, nvml.nvmlDeviceGetName, gpus[0]) for _ in range(3)] == [0, UNKNOWN, 0]


def test_a_gpu_that_fails_from_the_nth_call_on(simulator, nvml, gpus):
    simulator.do("gpusimFailOn", "any", 0, 3, 1, "UNKNOWN")
    assert [code_of(nvml, nvml.nvmlDeviceGetName, gpus[0]) for _ in range(5)] == [0, 0, UNKNOWN, UNKNOWN, UNKNOWN]
    assert code_of(nvml, nvml.nvmlDeviceGetName, gpus[1]) == 0


def test_lasting_fault_of_a_call_without_gpu(simulator, nvml, gpus):
    simulator.do("gpusimFailOn", "nvmlDeviceGetCount", NO_GPU, 1, 1, "UNKNOWN")
    assert [code_of(nvml, nvml.nvmlDeviceGetCount) for _ in range(2)] == [UNKNOWN, UNKNOWN]


def test_meaningless_lasting_faults_are_refused(simulator, nvml, gpus):
    assert simulator.call("gpusimFailOn", "any", NO_GPU, 1, 1, "UNKNOWN") == 2 and "name the GPU" in simulator.message()
    assert simulator.call("gpusimFailOn", "nvmlDeviceGetName", 2, 1, 1, "UNKNOWN") == 6
    assert simulator.call("gpusimFailOn", "nvmlNoSuchThing", 0, 1, 1, "UNKNOWN") == 6


def test_lasting_fault_affects_read_only_clients(simulator, nvml, gpus):
    simulator.do("gpusimFailOn", "nvmlDeviceGetName", 0, 1, 1, "UNKNOWN")
    simulator.state.chmod(0o444)
    child = simulator.python(
        "try:\n    nvmlDeviceGetName(gpu)\nexcept NVMLError as error:\n    print(error.value)", user=65534
    )
    assert child.stdout.read() == "999\n"


@pytest.mark.parametrize("action", ["stop", "kill"])
def test_client_that_stops_or_dies_in_a_call_holds_no_lock(simulator, nvml, gpus, action):
    simulator.do("gpusimFailOn", "nvmlDeviceGetName", 0, 1, 1, action)
    child = simulator.python("nvmlDeviceGetName(gpu)")
    _pid, status = os.waitpid(child.pid, os.WUNTRACED)
    if action == "kill":
        child.returncode = -os.WTERMSIG(status)
        assert child.returncode == -signal.SIGKILL
    else:
        assert os.WIFSTOPPED(status)
    # Both commands change the state. If the other client holds the state's lock, they wait.
    simulator.do("gpusimSet", 1, "passthrough", "1")
    assert code_of(nvml, nvml.nvmlDeviceGetName, gpus[1]) == 0
    simulator.do("gpusimFailClear")
    if action == "stop":
        child.send_signal(signal.SIGCONT)
        assert child.wait(PATIENCE_SECONDS) != 0, "the call fails after the stop"


@needs_root
def test_switches_for_missing_features(simulator, nvml, gpus):
    for key, value in (("memory_info", "0"), ("compute_mode_fixed", "1")):
        simulator.do("gpusimSet", 0, key, value)
    memory, mode = nvml.nvmlDeviceGetMemoryInfo, nvml.nvmlDeviceSetComputeMode
    assert [code_of(nvml, memory, gpu) for gpu in gpus] == [NOT_SUPPORTED, 0]
    assert [code_of(nvml, mode, gpu, nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS) for gpu in gpus] == [NOT_SUPPORTED, 0]
    simulator.do("gpusimSet", 1, "virtualization_mode", "2")
    assert nvml.nvmlDeviceGetVirtualizationMode(gpus[1]) == nvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU
    assert code_of(nvml, mode, gpus[1], nvml.NVML_COMPUTEMODE_DEFAULT) == NOT_SUPPORTED
