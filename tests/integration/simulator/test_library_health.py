# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test throttling, temperature, ECC errors and remapped rows.

The tests check the values, and which GPUs support them.
"""

from __future__ import annotations

import os
from ctypes import byref

import pytest

INVALID_ARGUMENT, NOT_SUPPORTED = 2, 3

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NVML's setters need root: run as root")


@pytest.fixture
def gpu(simulator, nvml):
    simulator.create("h100", "l40s")
    nvml.nvmlInit()
    return nvml.nvmlDeviceGetHandleByIndex(0)


def ill(simulator, key, value, gpu=0):
    simulator.do("gpusimSet", gpu, key, str(value))


def is_unsupported(nvml, call, *arguments):
    try:
        call(*arguments)
    except nvml.NVMLError_NotSupported:
        return True
    return False


# --- throttling and temperature


@pytest.mark.parametrize(
    "named, reasons",
    [
        ("sw_power_cap", ["SwPowerCap"]),
        ("power", ["SwPowerCap"]),
        ("sw_thermal", ["SwThermalSlowdown"]),
        ("thermal", ["SwThermalSlowdown"]),
        ("hw_slowdown", ["HwSlowdown"]),
        ("hw_thermal", ["HwThermalSlowdown", "HwSlowdown"]),
        ("hw_power_brake", ["HwPowerBrakeSlowdown", "HwSlowdown"]),
        ("sync_boost", ["SyncBoost"]),
        ("sw_thermal,sync_boost", ["SwThermalSlowdown", "SyncBoost"]),
        ("off", ["GpuIdle"]),
    ],
)
def test_clock_event_reasons(simulator, nvml, gpu, named, reasons):
    ill(simulator, "throttle", named)
    wanted = sum(getattr(nvml, "nvmlClocksEventReason" + name) for name in reasons)
    assert nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu) == wanted
    assert nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu) == wanted
    assert nvml.nvmlDeviceGetSupportedClocksEventReasons(gpu) & wanted == wanted
    other = nvml.nvmlDeviceGetHandleByIndex(1)
    assert nvml.nvmlDeviceGetCurrentClocksEventReasons(other) == nvml.nvmlClocksEventReasonGpuIdle


def test_throttled_gpu_is_slower_until_released(simulator, nvml, gpu):
    simulator.do("gpusimLoad", 0, -1, "pattern constant\nutilization_percent 100\n")
    ill(simulator, "throttle", "hw_thermal")
    assert nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) == 1980 // 2
    ill(simulator, "throttle", "off")
    assert nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) == 1980


def test_set_temperature_stays_under_load(simulator, nvml, gpu):
    idle = nvml.nvmlDeviceGetTemperature(gpu, 0)
    ill(simulator, "temperature_c", 93)
    simulator.do("gpusimLoad", 0, -1, "pattern constant\nutilization_percent 10\n")
    assert nvml.nvmlDeviceGetTemperature(gpu, 0) == nvml.nvmlDeviceGetTemperatureV(gpu, 0) == 93
    simulator.do("gpusimLoad", 0, -1, None)
    ill(simulator, "temperature_c", 0)
    assert nvml.nvmlDeviceGetTemperature(gpu, 0) == idle


# --- ECC


#: DRAM and SRAM: NVML_MEMORY_LOCATION_*.
LOCATIONS = (2, 7)


def ecc(nvml, gpu):
    """Return the counts of ECC errors, after all three ways to read them agree.

    The order is: volatile corrected, volatile uncorrected, aggregate corrected, aggregate uncorrected.
    """
    totals = [nvml.nvmlDeviceGetTotalEccErrors(gpu, error, counter) for counter in (0, 1) for error in (0, 1)]
    fields = [3, 4, 5, 6]
    assert [value.value.ullVal for value in nvml.nvmlDeviceGetFieldValues(gpu, fields)] == totals
    assert totals == [
        sum(nvml.nvmlDeviceGetMemoryErrorCounter(gpu, error, counter, place) for place in LOCATIONS)
        for counter in (0, 1)
        for error in (0, 1)
    ]
    return totals


def test_ecc_errors_are_counted(simulator, nvml, gpu):
    assert ecc(nvml, gpu) == [0, 0, 0, 0]
    ill(simulator, "ecc_corrected", 5)
    ill(simulator, "ecc_uncorrected", 2)
    assert ecc(nvml, gpu) == [5, 2, 5, 2]
    memory = nvml.NVML_MEMORY_LOCATION_DEVICE_MEMORY
    assert nvml.nvmlDeviceGetMemoryErrorCounter(gpu, 1, 0, memory) == 2
    assert ecc(nvml, nvml.nvmlDeviceGetHandleByIndex(1)) == [0, 0, 0, 0]


@pytest.mark.parametrize("model, places", [("h100", {2, 7}), ("a100", set(range(8)))])
def test_since_hopper_sram_errors_have_one_counter(simulator, nvml, model, places):
    """Compare with values recorded on an H200 with driver 580."""
    simulator.create(model)
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    counter = nvml.nvmlDeviceGetMemoryErrorCounter
    assert {place for place in range(8) if not is_unsupported(nvml, counter, handle, 0, 0, place)} == places


@pytest.mark.parametrize("again", [("gpusimReset", 0), ("gpusimReboot",)])
def test_only_volatile_counts_restart(simulator, nvml, gpu, again):
    ill(simulator, "ecc_uncorrected", 2)
    simulator.do(*again)
    assert ecc(nvml, gpu) == [0, 0, 0, 2]
    ill(simulator, "ecc_uncorrected", 1)
    assert ecc(nvml, gpu) == [0, 1, 0, 3]


@needs_root
def test_counts_can_be_cleared(simulator, nvml, gpu):
    ill(simulator, "ecc_corrected", 4)
    nvml.nvmlDeviceClearEccErrorCounts(gpu, nvml.NVML_VOLATILE_ECC)
    assert ecc(nvml, gpu) == [0, 0, 4, 0]
    ill(simulator, "ecc_corrected", 1)
    nvml.nvmlDeviceClearEccErrorCounts(gpu, nvml.NVML_AGGREGATE_ECC)
    assert ecc(nvml, gpu) == [0, 0, 0, 0]


def test_a_gpu_without_ecc_counts_nothing(simulator, nvml):
    simulator.create("l40s", ecc=0)
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    assert simulator.call("gpusimSet", 0, "ecc_corrected", "1") == NOT_SUPPORTED and "no ECC" in simulator.message()
    assert is_unsupported(nvml, nvml.nvmlDeviceGetTotalEccErrors, gpu, 0, 0)
    assert nvml.nvmlDeviceGetFieldValues(gpu, [3])[0].nvmlReturn == NOT_SUPPORTED


# --- remapped rows


ROWS = ("remapped_rows_correctable", "remapped_rows_uncorrectable", "remap_pending", "remap_failed")


def rows(nvml, gpu):
    """Return the remapped rows.

    The call and the field values must agree.
    """
    found = nvml.nvmlDeviceGetRemappedRows(gpu)
    fields = nvml.nvmlDeviceGetFieldValues(gpu, [142, 143, 144, 145])
    assert tuple(value.value.uiVal for value in fields) == found
    return found


def test_rows_are_remapped(simulator, nvml, gpu):
    assert rows(nvml, gpu) == (0, 0, 0, 0)
    for key, value in zip(ROWS, (3, 2, 1, 1)):
        ill(simulator, key, value)
    assert rows(nvml, gpu) == (3, 2, 1, 1)
    assert rows(nvml, nvml.nvmlDeviceGetHandleByIndex(1)) == (0, 0, 0, 0)
    simulator.do("gpusimReset", 0)
    assert rows(nvml, gpu) == (3, 2, 0, 1), "a reset does what is pending; that one failed stays known"


def test_banks_have_spare_rows_minus_remapped_ones(simulator, nvml):
    simulator.create("h100", "l40s", row_remapper_banks=2560)
    nvml.nvmlInit()
    h100, other = (nvml.nvmlDeviceGetHandleByIndex(index) for index in (0, 1))
    for key, value in zip(ROWS, (3, 2, 0, 0)):
        ill(simulator, key, value)
    banks = nvml.nvmlDeviceGetRowRemapperHistogram(h100)
    assert (banks.max, banks.high, banks.partial, banks.low, banks.none) == (2555, 5, 0, 0, 0)
    banks = nvml.nvmlDeviceGetRowRemapperHistogram(other)
    assert (banks.max, banks.high) == (2560, 0)


def test_unknown_number_of_banks_is_not_supported(nvml, gpu):
    assert is_unsupported(nvml, nvml.nvmlDeviceGetRowRemapperHistogram, gpu)


def test_before_ampere_no_rows_are_remapped(simulator, nvml):
    simulator.create("l40s", architecture=6)
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    for key in ROWS:
        assert simulator.call("gpusimSet", 0, key, "1") == NOT_SUPPORTED and "Ampere" in simulator.message()
    assert is_unsupported(nvml, nvml.nvmlDeviceGetRemappedRows, gpu)
    fields = nvml.nvmlDeviceGetFieldValues(gpu, [142, 143, 144, 145])
    assert {value.nvmlReturn for value in fields} == {NOT_SUPPORTED}


# --- all of them


@needs_root
def test_in_mig_mode(simulator, nvml, gpu):
    ill(simulator, "ecc_uncorrected", 2)
    ill(simulator, "remap_pending", 1)
    nvml.nvmlDeviceSetMigMode(gpu, 1)
    assert rows(nvml, gpu) == (0, 0, 1, 0), "there are no instances yet"
    nvml.nvmlGpuInstanceCreateComputeInstance(nvml.nvmlDeviceCreateGpuInstance(gpu, 9), 2)
    device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
    assert is_unsupported(nvml, nvml.nvmlDeviceGetRemappedRows, gpu)
    assert nvml.nvmlDeviceGetTotalEccErrors(gpu, 1, 0) == 2
    counter, memory, sram = nvml.nvmlDeviceGetMemoryErrorCounter, nvml.NVML_MEMORY_LOCATION_DRAM, 7
    assert is_unsupported(nvml, counter, gpu, 1, nvml.NVML_VOLATILE_ECC, memory)
    assert counter(gpu, 1, nvml.NVML_AGGREGATE_ECC, memory) == 2
    assert counter(device, 1, nvml.NVML_VOLATILE_ECC, sram) == 0
    assert is_unsupported(nvml, counter, device, 1, nvml.NVML_VOLATILE_ECC, memory)
    for call in (nvml.nvmlDeviceGetCurrentClocksEventReasons, nvml.nvmlDeviceGetRemappedRows):
        assert is_unsupported(nvml, call, device)


def test_values_that_a_reboot_resets(simulator, nvml, gpu):
    for key, value in (("throttle", "thermal"), ("temperature_c", 93), ("remap_failed", 1), ("remap_pending", 1)):
        ill(simulator, key, value)
    simulator.do("gpusimReboot")
    assert {key: value for key, value in simulator.dump()["gpus"][0]["health"].items() if value} == {"remap_failed": 1}
    assert nvml.nvmlDeviceGetTemperature(gpu, 0) == 32


@pytest.mark.parametrize(
    "key, value",
    [
        ("throttle", "thermal,,power"),
        ("throttle", "thermals"),
        ("throttle", "hot"),
        ("temperature_c", "256"),
        ("temperature_c", "-1"),
        ("ecc_uncorrected", "x"),
        ("ecc_uncorrected", str(1 << 31)),
        ("remap_pending", "2"),
        ("temperature", "90"),
    ],
)
def test_invalid_values_change_nothing(simulator, gpu, key, value):
    assert simulator.call("gpusimSet", 0, key, value) == INVALID_ARGUMENT and simulator.message()
    health = simulator.dump()["gpus"][0]["health"]
    assert not any(health.values())


# --- values that are absent on a healthy GPU


def test_sram_has_no_errors_and_mig_mode_reports_none(simulator, nvml, gpu):
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(gpu, byref(status))
    assert (status.aggregateCor, status.volatileUncParity, status.aggregateUncBucketL2, status.bThresholdExceeded) == (
        0, 0, 0, 0,
    )  # fmt: skip
    version, status.version = status.version, 0
    with pytest.raises(nvml.NVMLError_ArgumentVersionMismatch):
        nvml.nvmlDeviceGetSramEccErrorStatus(gpu, byref(status))
    if os.geteuid() == 0:
        status.version = version
        nvml.nvmlDeviceSetMigMode(gpu, 1)
        assert is_unsupported(nvml, nvml.nvmlDeviceGetSramEccErrorStatus, gpu, byref(status))


def test_only_gpus_that_do_not_remap_rows_retire_pages(simulator, nvml):
    # 6 is Turing, 7 Ampere.
    for architecture, retires in ((6, True), (7, False)):
        simulator.create(
            "l40s", architecture=architecture, uuid=f"GPU-00000000-0000-0000-0000-00000000001{architecture}"
        )
        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        if retires:
            assert list(nvml.nvmlDeviceGetRetiredPages(gpu, nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)) == []
            assert nvml.nvmlDeviceGetRetiredPagesPendingStatus(gpu) == 0
        else:
            assert is_unsupported(nvml, nvml.nvmlDeviceGetRetiredPages, gpu, 0)
            assert is_unsupported(nvml, nvml.nvmlDeviceGetRetiredPagesPendingStatus, gpu)


def test_accounting_is_off(nvml, gpu):
    assert nvml.nvmlDeviceGetAccountingMode(gpu) == 0
    assert nvml.nvmlDeviceGetAccountingBufferSize(gpu) == 4000
    assert nvml.nvmlDeviceGetAccountingPids(gpu) == []


def test_no_memory_is_protected(nvml, gpu):
    memory = nvml.nvmlDeviceGetConfComputeProtectedMemoryUsage(gpu)
    assert (memory.total, memory.used, memory.free) == (0, 0, 0)


def test_links_count_no_ecc_errors(nvml, gpu):
    first, last, total = 148, 159, 160
    for field in (first, last, total):
        (value,) = nvml.nvmlDeviceGetFieldValues(gpu, [field])
        assert (value.nvmlReturn, value.value.ullVal) == (0, 0)
    without_links = nvml.nvmlDeviceGetHandleByIndex(1)
    (value,) = nvml.nvmlDeviceGetFieldValues(without_links, [total])
    assert value.nvmlReturn == NOT_SUPPORTED


def test_a_healthy_gpu_needs_no_reset(simulator, nvml, gpu):
    reset, drain_and_reset, recovery_action = 226, 227, 230
    for field in (reset, drain_and_reset, recovery_action):
        (value,) = nvml.nvmlDeviceGetFieldValues(gpu, [field])
        assert (value.nvmlReturn, value.value.uiVal) == (0, 0)
    ill(simulator, "remap_pending", 1)
    (value,) = nvml.nvmlDeviceGetFieldValues(gpu, [recovery_action])
    assert value.nvmlReturn == NOT_SUPPORTED
