# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test clocks and P-states.

Clocks can be idle, busy, locked, or set by an application. Some boards have constant clocks.
"""

from __future__ import annotations

import ctypes

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


def test_customer_boost_clocks_of_graphics_and_sms(nvml, gpu):
    """Compare with values recorded on an H200 with driver 580."""
    kinds = (nvml.NVML_CLOCK_GRAPHICS, nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM, nvml.NVML_CLOCK_VIDEO)
    said = [MAXIMUM, MAXIMUM, NOT_SUPPORTED, NOT_SUPPORTED]
    assert [result_of(nvml, nvml.nvmlDeviceGetMaxCustomerBoostClock, gpu, kind) for kind in kinds] == said
    which = nvml.NVML_CLOCK_ID_CUSTOMER_BOOST_MAX
    assert [result_of(nvml, nvml.nvmlDeviceGetClock, gpu, kind, which) for kind in kinds] == said


def test_idle_gpu_has_its_idle_state_and_busy_gpu_p0(simulator, nvml, gpu):
    assert (nvml.nvmlDeviceGetPerformanceState(gpu), clocks(nvml, gpu)) == (8, [300, 300, 405, 540])
    assert nvml.nvmlDeviceGetPowerState(gpu) == 8
    # The PCIe link is idle, like the clocks.
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
    # If the value is too high, or the constant for no limit, the highest clock is the limit.
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


def test_set_application_clocks_limit_a_gpu(simulator, nvml, gpu):
    graphics, memory = nvml.NVML_CLOCK_GRAPHICS, nvml.NVML_CLOCK_MEM
    keep_busy(simulator)
    # The default application clocks do not limit the GPU. An A100 has 1095 MHz by default and runs at 1410 MHz.
    assert [nvml.nvmlDeviceGetApplicationsClock(gpu, kind) for kind in (graphics, memory)] == [1095, MEMORY_MAXIMUM]
    assert clocks(nvml, gpu)[0] == MAXIMUM
    nvml.nvmlDeviceSetApplicationsClocks(gpu, MEMORY_MAXIMUM, 1500)
    assert nvml.nvmlDeviceGetApplicationsClock(gpu, graphics) == clocks(nvml, gpu)[0] == 1500
    assert nvml.nvmlDeviceGetDefaultApplicationsClock(gpu, graphics) == 1095
    for pair in ((MEMORY_MAXIMUM, 1501), (MEMORY_MAXIMUM, MAXIMUM + 15), (MEMORY_MAXIMUM, 150), (1000, 1500)):
        assert result_of(nvml, nvml.nvmlDeviceSetApplicationsClocks, gpu, *pair) == INVALID_ARGUMENT
    nvml.nvmlDeviceResetApplicationsClocks(gpu)
    assert (nvml.nvmlDeviceGetApplicationsClock(gpu, graphics), clocks(nvml, gpu)[0]) == (1095, MAXIMUM)


def test_model_without_application_clocks_is_not_supported(simulator, nvml):
    simulator.create("h100")
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    assert result_of(nvml, nvml.nvmlDeviceGetApplicationsClock, gpu, 0) == NOT_SUPPORTED
    assert result_of(nvml, nvml.nvmlDeviceSetApplicationsClocks, gpu, MEMORY_MAXIMUM, 1500) == NOT_SUPPORTED


T4_CLOCKS = "5001:300-1590 405:300-645"


def lay_out(simulator, nvml, model="l40s", driver="580.105.08", **keys):
    """Create a host with one GPU and a driver version, and return the GPU's handle."""
    simulator.create(model, **keys)
    simulator.do("gpusimSet", -1, "driver_version", driver)
    nvml.nvmlInit()
    return nvml.nvmlDeviceGetHandleByIndex(0)


def test_graphics_clocks_are_listed_for_each_memory_clock(simulator, nvml):
    """Compare with nvidia-smi -q -x on a T4."""
    gpu = lay_out(simulator, nvml, architecture=6, supported_clocks=T4_CLOCKS)
    assert nvml.nvmlDeviceGetSupportedMemoryClocks(gpu) == [5001, 405]
    high, low = (nvml.nvmlDeviceGetSupportedGraphicsClocks(gpu, memory) for memory in (5001, 405))
    assert (high, low) == (list(range(1590, 299, -15)), list(range(645, 299, -15)))
    assert result_of(nvml, nvml.nvmlDeviceGetSupportedGraphicsClocks, gpu, 5000) == nvml.NVML_ERROR_NOT_FOUND
    count, buffer = ctypes.c_uint(1), (ctypes.c_uint * 1)()
    ask = nvml._nvmlGetFunctionPointer("nvmlDeviceGetSupportedMemoryClocks")
    assert (ask(gpu, ctypes.byref(count), buffer), count.value) == (nvml.NVML_ERROR_INSUFFICIENT_SIZE, 2)


@pytest.mark.parametrize(
    "architecture, highest, first", [(10, 2062, [2062, 2055, 2047, 2040]), (5, 1530, [1530, 1522, 1515])]
)
def test_graphics_clocks_of_volta_and_blackwell_have_smaller_steps(simulator, nvml, architecture, highest, first):
    """Check that the lists end with 127 and 120, like on a GB200."""
    gpu = lay_out(simulator, nvml, architecture=architecture, supported_clocks=f"2619:120-{highest}")
    found = nvml.nvmlDeviceGetSupportedGraphicsClocks(gpu, MEMORY_MAXIMUM)
    assert (found[: len(first)], found[-2:]) == (first, [127, 120])


def test_without_a_list_the_highest_memory_clock_has_all_graphics_clocks(simulator, nvml):
    gpu = lay_out(simulator, nvml, "h100", clock_graphics_idle_mhz=345)
    assert nvml.nvmlDeviceGetSupportedMemoryClocks(gpu) == [MEMORY_MAXIMUM]
    assert nvml.nvmlDeviceGetSupportedGraphicsClocks(gpu, MEMORY_MAXIMUM) == list(range(MAXIMUM, 344, -15))


def test_application_clocks_are_those_of_the_list(simulator, nvml):
    figures = {"clock_memory_max_mhz": 5001, "clock_graphics_max_mhz": 1590, "clock_graphics_application_mhz": 585}
    figures["clock_video_max_mhz"] = 1470
    gpu = lay_out(simulator, nvml, architecture=6, supported_clocks=T4_CLOCKS, **figures)
    keep_busy(simulator)
    assert result_of(nvml, nvml.nvmlDeviceSetApplicationsClocks, gpu, 405, 660) == INVALID_ARGUMENT
    nvml.nvmlDeviceSetApplicationsClocks(gpu, 405, 645)
    assert nvml.nvmlDeviceGetApplicationsClock(gpu, nvml.NVML_CLOCK_MEM) == 405
    assert clocks(nvml, gpu)[:3] == [645, 645, 405]
    nvml.nvmlDeviceResetApplicationsClocks(gpu)
    assert nvml.nvmlDeviceGetApplicationsClock(gpu, nvml.NVML_CLOCK_MEM) == 5001
    assert clocks(nvml, gpu)[:3] == [1590, 1590, 5001]


@pytest.mark.parametrize("text", ["5001", "5001:300", "5001:1590-300", "5001:300-1590,", " ".join(["9:1-2"] * 9)])
def test_a_malformed_list_of_clocks_is_refused(simulator, text):
    simulator.create("l40s")
    line = f"supported_clocks {text}\n"
    gpu = "gpu\nname L40S\n"
    assert (
        simulator.call("gpusimCreate", f"host\ndriver_version 580.1\ncuda_version 13000\n{gpu}{line}")
        == INVALID_ARGUMENT
    )
    assert "supported_clocks: " in simulator.message()


def extended_memory(nvml, gpu):
    """Return the result code for a query of capabilities, and the capabilities."""
    asked = nvml.c_nvmlDeviceCapabilities_v1_t()
    asked.version, asked.capMask = nvml.nvmlDeviceCapabilities_v1, 9
    result = nvml.nvmlDeviceGetCapabilities(gpu, ctypes.byref(asked))
    return result, asked.capMask


@pytest.mark.parametrize(
    "model, keys, mode",
    [("l40s", {}, 1), ("h100", {"c2c_links": 10}, 2), ("l40s", {"architecture": 5}, NOT_SUPPORTED)],
)
def test_access_to_system_memory(simulator, nvml, model, keys, mode):
    gpu = lay_out(simulator, nvml, model, **keys)
    assert result_of(nvml, nvml.nvmlDeviceGetAddressingMode, gpu) == mode
    assert extended_memory(nvml, gpu) == (0, 0)


def test_a_driver_lacks_the_functions_of_later_ones(simulator, nvml):
    gpu = lay_out(simulator, nvml, "h100", "550.163.01")
    missing = nvml.NVML_ERROR_FUNCTION_NOT_FOUND
    later = (nvml.nvmlDeviceGetAddressingMode, nvml.nvmlDeviceGetRepairStatus, nvml.nvmlDeviceGetPdi)
    assert extended_memory(nvml, gpu)[0] == missing
    assert [result_of(nvml, ask, gpu) for ask in later] == [missing] * 3
    simulator.do("gpusimSet", -1, "driver_version", "575.57.08")
    assert extended_memory(nvml, gpu) == (0, 0)
    assert [result_of(nvml, ask, gpu) for ask in later] == [missing] * 3
    simulator.do("gpusimSet", -1, "driver_version", "580.105.08")
    assert nvml.nvmlDeviceGetRepairStatus(gpu) == [0, 0]
    assert nvml.nvmlDeviceGetPdi(gpu)


def powers(nvml, gpu):
    """Return the GPU's, the module's and the memory's power values.

    Each list has: average, instant, default, min, max, limit. None means that a value is not supported.
    """
    fields = (185, 186, 189, 187, 188, 190)
    parts = [nvml.nvmlDeviceGetFieldValues(gpu, [(field, scope) for field in fields]) for scope in range(3)]
    return [[None if value.nvmlReturn else value.value.uiVal // 1000 for value in values] for values in parts]


def test_parts_of_a_board_have_their_own_power(simulator, nvml):
    module = {"default": 1000, "min": 200, "max": 1000, "idle": 170}
    keys = {f"power_module_{name}_mw": watts * 1000 for name, watts in module.items()}
    gpu = lay_out(simulator, nvml, "h100", power_idle_mw=88000, power_memory_mw=19000, **keys)
    memory = [19, None, None, None, None, None]
    assert powers(nvml, gpu) == [[88, 88, 700, 200, 700, 700], [170, 170, 1000, 200, 1000, 1000], memory]
    keep_busy(simulator)
    # The load adds half of the difference between the idle 88 W and the limit of 700 W.
    assert powers(nvml, gpu)[1][:2] == [170 + 306, 170 + 306]
    assert powers(nvml, gpu)[2] == memory


@pytest.mark.parametrize("model, keys", [("a100", {}), ("l40s", {"architecture": 6}), ("l40s", {"architecture": 5})])
def test_some_boards_have_no_average_power(simulator, nvml, model, keys):
    gpu = lay_out(simulator, nvml, model, power_idle_mw=50000, **keys)
    whole, module, memory = powers(nvml, gpu)
    assert whole[:2] == [None, 50]
    assert module == memory == [None] * 6


@pytest.mark.parametrize(
    "idle, fans, at_rest, at_work", [(None, 0, NOT_SUPPORTED, NOT_SUPPORTED), (0, 0, 0, 0), (30, 1, 32, 56)]
)
def test_a_fan_turns_faster_with_the_temperature(simulator, nvml, idle, fans, at_rest, at_work):
    gpu = lay_out(simulator, nvml, fan_idle_percent=idle, temperature_max_c=85)
    assert (nvml.nvmlDeviceGetNumFans(gpu), result_of(nvml, nvml.nvmlDeviceGetFanSpeed, gpu)) == (fans, at_rest)
    keep_busy(simulator)
    assert result_of(nvml, nvml.nvmlDeviceGetFanSpeed, gpu) == at_work


@pytest.mark.parametrize("end", ["gpusimReset", "gpusimReboot"])
def test_reset_ends_settings(simulator, nvml, gpu, end):
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


def test_board_reports_its_versions_and_numbers(simulator, nvml):
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


def test_no_gsp_firmware_in_older_drivers(simulator, nvml):
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
    # The sizes that nvidia-smi 560 shows for 1g.12gb, 1g.24gb and 3g.47gb on an H100 NVL.
    assert sizes == [16383, 32767, 65535]
    assert {nvml.nvmlDeviceGetBAR1MemoryInfo(device).bar1Used for device in devices} == {0}
