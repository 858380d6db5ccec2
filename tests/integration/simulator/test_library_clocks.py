# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Clocks and P-states: idle, at work, locked, by application clocks; and what never changes about a board."""

from __future__ import annotations

import pytest

IDLE_IN_P8 = {
    "performance_state_idle": 8, "clock_graphics_idle_mhz": 300, "clock_memory_idle_mhz": 405,
    "clock_video_max_mhz": 1470, "clock_video_idle_mhz": 540, "clock_graphics_application_mhz": 1095,
}  # fmt: skip
MAXIMUM, MEMORY_MAXIMUM = 1980, 2619
INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 2, 3, 4


@pytest.fixture
def gpu(simulator, nvml):
    simulator.create("h100", "l40s", **IDLE_IN_P8)
    nvml.nvmlInit()
    return nvml.nvmlDeviceGetHandleByIndex(0)


def clocks(nvml, gpu):
    kinds = (nvml.NVML_CLOCK_GRAPHICS, nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM, nvml.NVML_CLOCK_VIDEO)
    now = [nvml.nvmlDeviceGetClockInfo(gpu, kind) for kind in kinds]
    assert now == [nvml.nvmlDeviceGetClock(gpu, kind, nvml.NVML_CLOCK_ID_CURRENT) for kind in kinds]
    return now


def keep_busy(simulator, gpu=0):
    simulator.do("gpusimLoad", gpu, -1, "pattern constant\nutilization_percent 50\n")


def result_of(nvml, call, *arguments):
    try:
        return call(*arguments)
    except nvml.NVMLError as error:
        return error.value


def test_an_idle_gpu_rests_in_its_state_and_a_busy_one_is_in_p0(simulator, nvml, gpu):
    assert (nvml.nvmlDeviceGetPerformanceState(gpu), clocks(nvml, gpu)) == (8, [300, 300, 405, 540])
    assert nvml.nvmlDeviceGetPowerState(gpu) == 8
    # The PCIe link rests too.
    assert (nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu), nvml.nvmlDeviceGetPcieSpeed(gpu)) == (1, 2500)
    assert nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu) == 5
    assert nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu) == nvml.nvmlClocksEventReasonGpuIdle
    keep_busy(simulator)
    assert (nvml.nvmlDeviceGetPerformanceState(gpu), clocks(nvml, gpu)) == (0, [MAXIMUM, MAXIMUM, MEMORY_MAXIMUM, 1470])
    assert nvml.nvmlDeviceGetPowerState(gpu) == 0
    assert nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu) == 5
    assert nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu) == 0


def test_locked_clocks_bound_a_busy_gpu_until_they_are_reset(simulator, nvml, gpu):
    keep_busy(simulator)
    nvml.nvmlDeviceSetGpuLockedClocks(gpu, 600, 900)
    nvml.nvmlDeviceSetMemoryLockedClocks(gpu, 1593, 1593)
    assert clocks(nvml, gpu)[:3] == [900, 900, 1593]
    nvml.nvmlDeviceResetMemoryLockedClocks(gpu)
    nvml.nvmlDeviceResetGpuLockedClocks(gpu)
    assert clocks(nvml, gpu)[:3] == [MAXIMUM, MAXIMUM, MEMORY_MAXIMUM]
    # No clock beyond the highest; and the symbol for no limit at all.
    for most in (5000, nvml.NVML_CLOCK_LIMIT_ID_UNLIMITED):
        nvml.nvmlDeviceSetGpuLockedClocks(gpu, 1900, most)
        assert clocks(nvml, gpu)[0] == MAXIMUM
    assert result_of(nvml, nvml.nvmlDeviceSetGpuLockedClocks, gpu, 900, 600) == INVALID_ARGUMENT
    assert result_of(nvml, nvml.nvmlDeviceSetMemoryLockedClocks, gpu, 900, 600) == INVALID_ARGUMENT


def test_memory_clocks_are_locked_from_ampere_on(simulator, nvml):
    simulator.create("l40s", architecture=6)
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    assert result_of(nvml, nvml.nvmlDeviceSetMemoryLockedClocks, gpu, 405, 5001) == NOT_SUPPORTED
    assert result_of(nvml, nvml.nvmlDeviceResetMemoryLockedClocks, gpu) == NOT_SUPPORTED


def test_application_clocks_hold_a_gpu_back_when_they_were_set(simulator, nvml, gpu):
    graphics, memory = nvml.NVML_CLOCK_GRAPHICS, nvml.NVML_CLOCK_MEM
    keep_busy(simulator)
    # At their default they do not: an A100 has 1095 MHz and runs at 1410.
    assert [nvml.nvmlDeviceGetApplicationsClock(gpu, kind) for kind in (graphics, memory)] == [1095, MEMORY_MAXIMUM]
    assert clocks(nvml, gpu)[0] == MAXIMUM
    nvml.nvmlDeviceSetApplicationsClocks(gpu, MEMORY_MAXIMUM, 1500)
    assert nvml.nvmlDeviceGetApplicationsClock(gpu, graphics) == clocks(nvml, gpu)[0] == 1500
    assert nvml.nvmlDeviceGetDefaultApplicationsClock(gpu, graphics) == 1095
    for pair in ((MEMORY_MAXIMUM, 1501), (MEMORY_MAXIMUM, MAXIMUM + 15), (MEMORY_MAXIMUM, 150), (1000, 1500)):
        assert result_of(nvml, nvml.nvmlDeviceSetApplicationsClocks, gpu, *pair) == INVALID_ARGUMENT
    nvml.nvmlDeviceResetApplicationsClocks(gpu)
    assert (nvml.nvmlDeviceGetApplicationsClock(gpu, graphics), clocks(nvml, gpu)[0]) == (1095, MAXIMUM)


def test_a_model_without_application_clocks_says_so(simulator, nvml):
    simulator.create("h100")
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    assert result_of(nvml, nvml.nvmlDeviceGetApplicationsClock, gpu, 0) == NOT_SUPPORTED
    assert result_of(nvml, nvml.nvmlDeviceSetApplicationsClocks, gpu, MEMORY_MAXIMUM, 1500) == NOT_SUPPORTED


@pytest.mark.parametrize("end", ["gpusimReset", "gpusimReboot"])
def test_a_reset_ends_what_was_set(simulator, nvml, gpu, end):
    nvml.nvmlDeviceSetGpuLockedClocks(gpu, 600, 600)
    nvml.nvmlDeviceSetApplicationsClocks(gpu, MEMORY_MAXIMUM, 1500)
    simulator.do(end, *([0] if end == "gpusimReset" else []))
    keep_busy(simulator)
    assert clocks(nvml, gpu)[0] == MAXIMUM
    assert nvml.nvmlDeviceGetApplicationsClock(gpu, nvml.NVML_CLOCK_GRAPHICS) == 1095


def test_only_root_sets_clocks(simulator, gpu):
    code = """
import pynvml
os.chmod(os.environ["GPUSIM_STATE"], 0o666)
os.seteuid(65534)
calls = [lambda: nvmlDeviceSetGpuLockedClocks(gpu, 600, 900), lambda: nvmlDeviceResetGpuLockedClocks(gpu),
         lambda: nvmlDeviceSetMemoryLockedClocks(gpu, 600, 900), lambda: nvmlDeviceResetMemoryLockedClocks(gpu),
         lambda: nvmlDeviceSetApplicationsClocks(gpu, 2619, 1500), lambda: nvmlDeviceResetApplicationsClocks(gpu)]
codes = []
for call in calls:
    try:
        call()
        codes.append(0)
    except NVMLError as error:
        codes.append(error.value)
print(codes)
"""
    child = simulator.python(code)
    assert child.stdout.readline().strip() == str([NO_PERMISSION] * 6)


def test_a_board_tells_its_versions_and_numbers(simulator, nvml):
    versions = {"inforom_image": "G520.0200.00.05", "inforom_oem": "2.1", "inforom_ecc": "7.16", "module_id": 3}
    simulator.create("h100", gpu_part_number="2330-885-A1", **versions)
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceGetInforomImageVersion(gpu) == "G520.0200.00.05"
    assert [nvml.nvmlDeviceGetInforomVersion(gpu, which) for which in (0, 1)] == ["2.1", "7.16"]
    assert result_of(nvml, nvml.nvmlDeviceGetInforomVersion, gpu, nvml.NVML_INFOROM_POWER) == NOT_SUPPORTED
    assert result_of(nvml, nvml.nvmlDeviceGetInforomVersion, gpu, 9) == INVALID_ARGUMENT
    assert nvml.nvmlDeviceGetModuleId(gpu) == 3
    assert nvml.nvmlDeviceGetGspFirmwareVersion(gpu).decode() == nvml.nvmlSystemGetDriverVersion()
    assert (nvml.nvmlDeviceGetPcieReplayCounter(gpu), nvml.nvmlDeviceGetPcieSpeed(gpu)) == (0, 32000)
    assert nvml.nvmlDeviceGetPcieLinkMaxSpeed(gpu) == nvml.NVML_PCIE_LINK_MAX_SPEED_32000MBPS
    assert nvml.nvmlDeviceGetEncoderStats(gpu) == (0, 0, 0)
    assert nvml.nvmlDeviceGetEncoderSessions(gpu) == nvml.nvmlDeviceGetFBCSessions(gpu) == []
    assert nvml.nvmlDeviceGetBusType(gpu) == 2


def test_no_gsp_firmware_before_the_driver_had_it(simulator, nvml):
    simulator.create("h100")
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    simulator.do("gpusimSet", -1, "driver_version", "470.256.02")
    assert result_of(nvml, nvml.nvmlDeviceGetGspFirmwareVersion, gpu) == NOT_SUPPORTED


def test_a_mig_device_has_its_share_of_bar1(simulator, nvml):
    simulator.create("h100", bar1_total_mib=131072)
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlDeviceSetMigMode(gpu, 1)
    for profile, compute in ((9, 2), (15, 0), (19, 0)):
        nvml.nvmlGpuInstanceCreateComputeInstance(nvml.nvmlDeviceCreateGpuInstance(gpu, profile), compute)
    devices = [nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, i) for i in range(3)]
    sizes = sorted(nvml.nvmlDeviceGetBAR1MemoryInfo(device).bar1Total >> 20 for device in devices)
    # As nvidia-smi 560 shows them of 1g.12gb, 1g.24gb and 3g.47gb on an H100 NVL.
    assert sizes == [16383, 32767, 65535]
    assert {nvml.nvmlDeviceGetBAR1MemoryInfo(device).bar1Used for device in devices} == {0}
