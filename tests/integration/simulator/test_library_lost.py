# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test a GPU that fell off the bus, from its clients and clients of other GPUs."""

from __future__ import annotations

import ctypes
import os

import pytest

GPU_IS_LOST, NOT_FOUND = 15, 6

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NVML's setters need root: run as root")


@pytest.fixture
def gpus(simulator, nvml):
    """Return the handles of GPU 0, which the tests lose, and GPU 1."""
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


def test_all_calls_on_a_lost_gpu_fail(simulator, nvml, gpus):
    questions = [
        nvml.nvmlDeviceGetName,
        nvml.nvmlDeviceGetUUID,
        nvml.nvmlDeviceGetIndex,
        nvml.nvmlDeviceGetPciInfo,
        nvml.nvmlDeviceGetMinorNumber,
        nvml.nvmlDeviceGetMemoryInfo,
        nvml.nvmlDeviceGetUtilizationRates,
        nvml.nvmlDeviceGetPowerUsage,
        nvml.nvmlDeviceGetMigMode,
        nvml.nvmlDeviceGetComputeRunningProcesses,
        nvml.nvmlDeviceGetMaxMigDeviceCount,
        lambda gpu: nvml.nvmlDeviceGetTemperature(gpu, 0),
        lambda gpu: nvml.nvmlDeviceGetFieldValues(gpu, [83]),
        lambda gpu: nvml.nvmlDeviceGetTotalEccErrors(gpu, 0, 0),
        lambda gpu: nvml.nvmlDeviceRegisterEvents(gpu, 8, nvml.nvmlEventSetCreate()),
    ]
    before = [code_of(nvml, question, gpus[0]) for question in questions]
    simulator.do("gpusimLose", 0)
    assert {code_of(nvml, question, gpus[0]) for question in questions} == {GPU_IS_LOST}
    assert [code_of(nvml, question, gpus[1]) for question in questions] == before
    simulator.do("gpusimRestore", 0)
    assert [code_of(nvml, question, gpus[0]) for question in questions] == before


def test_lost_gpu_is_counted_but_has_no_handle(simulator, nvml, gpus):
    names = [
        (nvml.nvmlDeviceGetHandleByIndex, 0, 1),
        (nvml.nvmlDeviceGetHandleByUUID, *[nvml.nvmlDeviceGetUUID(gpu) for gpu in gpus]),
        (nvml.nvmlDeviceGetHandleBySerial, *[nvml.nvmlDeviceGetSerial(gpu) for gpu in gpus]),
        (nvml.nvmlDeviceGetHandleByPciBusId, *[nvml.nvmlDeviceGetPciInfo(gpu).busId for gpu in gpus]),
    ]
    simulator.do("gpusimLose", 0)
    assert nvml.nvmlDeviceGetCount() == 2
    for call, lost, there in names:
        assert (code_of(nvml, call, lost), code_of(nvml, call, there)) == (GPU_IS_LOST, 0), call
    unknown = "GPU-ffffffff-0000-0000-0000-000000000000"
    assert code_of(nvml, nvml.nvmlDeviceGetHandleByUUID, unknown) == GPU_IS_LOST, "it might be the lost one"
    simulator.do("gpusimRestore", 0)
    assert code_of(nvml, nvml.nvmlDeviceGetHandleByUUID, unknown) == NOT_FOUND


def test_other_processes_lose_the_gpu_and_can_start(simulator, nvml, gpus):
    simulator.do("gpusimLose", 1)
    child = simulator.python("""
print(nvmlDeviceGetCount(), nvmlDeviceGetName(gpu))
try:
    nvmlDeviceGetHandleByIndex(1)
except NVMLError_GpuIsLost:
    print("lost")
""")
    assert child.stdout.read() == "2 NVIDIA H100 80GB HBM3\nlost\n"


@needs_root
def test_instances_are_lost_and_restored_with_their_gpu(simulator, nvml, gpus):
    nvml.nvmlDeviceSetMigMode(gpus[0], 1)
    instance = nvml.nvmlDeviceCreateGpuInstance(gpus[0], 9)
    part = nvml.nvmlGpuInstanceCreateComputeInstance(instance, 2)
    device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpus[0], 0)
    uuid = nvml.nvmlDeviceGetUUID(device)
    calls = [
        (nvml.nvmlDeviceGetUUID, device),
        (nvml.nvmlDeviceGetHandleByUUID, uuid),
        (nvml.nvmlGpuInstanceGetInfo, instance),
        (nvml.nvmlComputeInstanceGetInfo_v2, part),
        (nvml.nvmlDeviceSetMigMode, gpus[0], 0),
        (nvml.nvmlComputeInstanceDestroy, part),
    ]
    simulator.do("gpusimLose", 0)
    assert {code_of(nvml, *call) for call in calls} == {GPU_IS_LOST}
    simulator.do("gpusimRestore", 0)
    assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByUUID(uuid)) == uuid


def test_losing_a_gpu_is_xid_79_once_and_then_the_wait_fails(simulator, nvml, gpus):
    events = nvml.nvmlEventSetCreate()
    for gpu in gpus:
        nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, events)
    other = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(gpus[1], nvml.nvmlEventTypeXidCriticalError, other)
    for _ in range(2):
        simulator.do("gpusimLose", 0)
    simulator.do("gpusimXid", 1, -1, -1, ctypes.c_uint(94))
    found = [nvml.nvmlEventSetWait_v2(events, 0).eventData for _ in range(2)]
    assert found == [79, 94]
    with pytest.raises(nvml.NVMLError_GpuIsLost):
        nvml.nvmlEventSetWait_v2(events, 180000)
    assert nvml.nvmlEventSetWait_v2(other, 0).eventData == 94
    with pytest.raises(nvml.NVMLError_Timeout):
        nvml.nvmlEventSetWait_v2(other, 0)


def test_lost_gpu_accepts_no_process_and_no_reset(simulator, gpus):
    simulator.do("gpusimLose", 0)
    worker = simulator.idle_process()
    attach = ("gpusimAttach", worker.pid, 0, -1, -1, "compute", ctypes.c_uint64(0))
    assert simulator.call(*attach) == GPU_IS_LOST and "gpusim restore" in simulator.message()
    assert simulator.call("gpusimReset", 0) == GPU_IS_LOST
    simulator.do("gpusimRestore", 0)
    simulator.do(*attach)
    assert simulator.call("gpusimLose", 2) == simulator.call("gpusimRestore", 2) == NOT_FOUND


def test_reboot_restores_the_gpu(simulator, nvml, gpus):
    simulator.do("gpusimLose", 0)
    simulator.do("gpusimReboot")
    assert nvml.nvmlDeviceGetName(gpus[0]) == "NVIDIA H100 80GB HBM3"
