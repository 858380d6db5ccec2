# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test GPUs over time: loads, their measurements, and processes."""

from __future__ import annotations

import ctypes
import math
import os
import time
from pathlib import Path

import pytest

from tests.integration.patience import PATIENCE_SECONDS, wait_until

MIB, GIB = 1 << 20, 1 << 30
NOT_FOUND, IN_USE, INSUFFICIENT_RESOURCES = 6, 19, 23

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="NVML's setters need root, the simulated one's too: run as root"
)


@pytest.fixture
def gpu(simulator, nvml):
    simulator.create("h100", "l40s")
    nvml.nvmlInit()
    return nvml.nvmlDeviceGetHandleByIndex(0)


def attach(simulator, pid, gpu=0, gi=-1, ci=-1, kind="compute", memory=0):
    return simulator.call("gpusimAttach", pid, gpu, gi, ci, kind, ctypes.c_uint64(memory))


# --- loads


def test_idle_gpu_is_idle(nvml, gpu):
    assert nvml.nvmlDeviceGetUtilizationRates(gpu).gpu == 0
    assert nvml.nvmlDeviceGetPowerUsage(gpu) == 70000
    assert nvml.nvmlDeviceGetTemperature(gpu, 0) == 32
    memory = nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2)
    assert (memory.used, memory.reserved, memory.total) == (0, 551 * MIB, 81559 * MIB)


def test_a_constant_load(simulator, nvml, gpu):
    simulator.do("gpusimLoad", 0, -1, "pattern constant\nutilization_percent 50\nmemory_mib 1000\n")
    rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
    assert (rates.gpu, rates.memory) == (50, 25)
    assert nvml.nvmlDeviceGetPowerUsage(gpu) == 70000 + (700000 - 70000) // 2
    assert 32 < nvml.nvmlDeviceGetTemperature(gpu, 0) < 85
    assert nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) == 1980
    assert nvml.nvmlDeviceGetMemoryInfo(gpu).used == (1000 + 551) * MIB
    simulator.do("gpusimLoad", 0, -1, None)
    assert nvml.nvmlDeviceGetUtilizationRates(gpu).gpu == 0 and simulator.dump()["gpus"][0]["load"] is None


def test_stated_power_overrides_utilisation(simulator, nvml, gpu):
    simulator.do(
        "gpusimLoad", 0, -1, "pattern constant\nutilization_percent 90\npower_mw 123456\nmemory_utilization_percent 7\n"
    )
    assert nvml.nvmlDeviceGetPowerUsage(gpu) == 123456
    assert nvml.nvmlDeviceGetUtilizationRates(gpu).memory == 7


def watch(simulator, nvml, gpu, wanted):
    """Return pairs of a load's age and its utilization.

    Age and utilization are from the same moment. Return when NVML has shown all wanted values.
    """
    pairs, shown, deadline = [], set(), time.monotonic() + PATIENCE_SECONDS
    while (not wanted <= shown or len(pairs) < 80) and time.monotonic() < deadline:
        load = simulator.dump()["gpus"][0]["load"]
        pairs.append((load["age_seconds"], load["utilization_percent"]))
        shown.add(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)
        time.sleep(0.003)
    assert wanted <= shown
    return pairs


def away_from_edges(pairs, step):
    """Return the pairs that are not close to a step.

    Ages are in milliseconds, so both values are correct at a step.
    """
    return [(age, value) for age, value in pairs if 0.002 < age % step < step - 0.002]


def test_a_square_load_is_high_first_and_low_then(simulator, nvml, gpu):
    simulator.do(
        "gpusimLoad", 0, -1, "pattern square\nperiod_seconds 0.2\nutilization_percent 80\nutilization_low_percent 10\n"
    )
    for age, value in away_from_edges(watch(simulator, nvml, gpu, {10, 80}), 0.1):
        assert value == (80 if age % 0.2 < 0.1 else 10)


def test_a_sine_load_swings_between_low_and_high(simulator, nvml, gpu):
    simulator.do("gpusimLoad", 0, -1, "pattern sine\nperiod_seconds 0.5\nutilization_percent 100\n")
    for age, value in watch(simulator, nvml, gpu, {0, 100}):
        assert value == pytest.approx(50 - 50 * math.cos(2 * math.pi * age / 0.5), abs=1)


def test_recorded_samples_are_played_in_order_and_repeated(simulator, nvml, gpu):
    samples = "sample 10 100 -1\nsample 20 200 -1\nsample 30 300 200000\n"
    simulator.do("gpusimLoad", 0, -1, "pattern samples\ninterval_seconds 0.05\n" + samples)
    pairs = watch(simulator, nvml, gpu, {10, 20, 30})
    for age, value in away_from_edges(pairs, 0.05):
        assert value == (10, 20, 30)[int(age / 0.05) % 3]
    assert pairs[-1][0] > 0.15, "the series has begun again"


def test_samples_of_several_loads_do_not_mix(simulator, nvml, gpu):
    other = nvml.nvmlDeviceGetHandleByIndex(1)
    simulator.do("gpusimLoad", 0, -1, "pattern samples\n" + "sample 11 0 -1\n" * 40000)
    simulator.do("gpusimLoad", 1, -1, "pattern samples\n" + "sample 22 0 -1\n" * 20000)
    assert (
        simulator.call("gpusimLoad", 0, -1, "pattern samples\n" + "sample 33 0 -1\n" * 50000) == INSUFFICIENT_RESOURCES
    )
    assert nvml.nvmlDeviceGetUtilizationRates(gpu).gpu == 11, "a refused load replaces none"
    simulator.do("gpusimLoad", 0, -1, "pattern samples\n" + "sample 33 0 -1\n" * 45000)
    assert [nvml.nvmlDeviceGetUtilizationRates(handle).gpu for handle in (gpu, other)] == [33, 22]


@pytest.mark.parametrize(
    "load, code",
    [
        ("utilization_percent 10\n", 2),
        ("pattern zigzag\n", 2),
        ("pattern constant\nutilization_percent 101\n", 2),
        ("pattern constant\nutilization 10\n", 2),
        ("pattern square\nperiod_seconds 0\n", 2),
        ("pattern samples\n", 2),
        ("pattern samples\nsample 10 10\n", 2),
        ("pattern constant\nmemory_mib 81300\n", INSUFFICIENT_RESOURCES),
    ],
)
def test_invalid_loads_are_refused(simulator, gpu, load, code):
    assert simulator.call("gpusimLoad", 0, -1, load) == code and simulator.message()
    assert simulator.call("gpusimLoad", 2, -1, "pattern constant\n") == NOT_FOUND
    assert simulator.call("gpusimLoad", 0, 3, "pattern constant\n") == NOT_FOUND


def test_energy_is_the_integral_of_power(simulator, nvml, gpu):
    simulator.do("gpusimLoad", 0, -1, "pattern constant\nutilization_percent 100\n")
    times, energies = [], []
    for _ in range(2):
        times.append(time.monotonic())
        energies.append(nvml.nvmlDeviceGetTotalEnergyConsumption(gpu))
        times.append(time.monotonic())
        time.sleep(0.3)
    used = energies[1] - energies[0]
    assert 700000 * (times[2] - times[1]) - 1 <= used <= 700000 * (times[3] - times[0]) + 1
    simulator.do("gpusimLoad", 0, -1, None)
    assert nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) >= energies[1], "energy never falls"


@needs_root
def test_a_power_limit_caps_power_and_clock(simulator, nvml, gpu):
    simulator.do("gpusimLoad", 0, -1, "pattern constant\nutilization_percent 100\n")
    nvml.nvmlDeviceSetPowerManagementLimit(gpu, 350000)
    assert nvml.nvmlDeviceGetPowerUsage(gpu) == 350000
    assert nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) == 990
    assert nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu) == nvml.nvmlClocksEventReasonSwPowerCap


@needs_root
def test_a_load_on_an_instance(simulator, nvml, gpu):
    nvml.nvmlDeviceSetMigMode(gpu, 1)
    instance = nvml.nvmlDeviceCreateGpuInstance(gpu, 9)
    nvml.nvmlGpuInstanceCreateComputeInstance(instance, 2)
    gi = nvml.nvmlGpuInstanceGetInfo(instance).id
    device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
    simulator.do("gpusimLoad", 0, gi, "pattern constant\nutilization_percent 70\nmemory_mib 1024\n")
    assert nvml.nvmlDeviceGetMemoryInfo(device).used == GIB
    assert nvml.nvmlDeviceGetMemoryInfo(gpu).used == GIB + 551 * MIB
    assert nvml.nvmlDeviceGetPowerUsage(gpu) == 70000 + round(630000 * 0.7 * 3 / 7)
    for handle in (gpu, device):
        with pytest.raises(nvml.NVMLError_NotSupported):
            nvml.nvmlDeviceGetUtilizationRates(handle)
    assert simulator.call("gpusimLoad", 0, gi, "pattern constant\nmemory_mib 40449\n") == INSUFFICIENT_RESOURCES


# --- processes


def test_a_process_counts_while_it_lives(simulator, nvml, gpu):
    worker = simulator.idle_process()
    assert attach(simulator, worker.pid, memory=4 * GIB) == 0
    (seen,) = nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    assert (seen.pid, seen.usedGpuMemory) == (worker.pid, 4 * GIB)
    assert nvml.nvmlDeviceGetMemoryInfo(gpu).used == 4 * GIB + 551 * MIB
    assert nvml.nvmlSystemGetProcessName(worker.pid).endswith("sleep")
    worker.kill()
    worker.wait()
    assert nvml.nvmlDeviceGetComputeRunningProcesses(gpu) == []
    assert nvml.nvmlDeviceGetMemoryInfo(gpu).used == 551 * MIB and simulator.dump()["processes"] == []


def test_killed_process_is_gone_before_its_parent_waits(simulator, nvml, gpu):
    worker = simulator.idle_process()
    attach(simulator, worker.pid)
    worker.kill()
    wait_until(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(gpu) == [], "it is gone")
    stat = Path(f"/proc/{worker.pid}/stat").read_text()
    assert stat.split(")")[1].split()[0] == "Z", "the test is about a zombie"


def test_kinds_of_processes_have_separate_lists(simulator, nvml, gpu):
    worker = simulator.idle_process()
    lists = {
        "compute": nvml.nvmlDeviceGetComputeRunningProcesses,
        "graphics": nvml.nvmlDeviceGetGraphicsRunningProcesses,
        "mps": nvml.nvmlDeviceGetMPSComputeRunningProcesses,
    }
    # An H200 with driver 580 lists MPS clients among the compute processes too.
    for kind, named in (("compute", {"compute"}), ("graphics", {"graphics"}), ("mps", {"compute", "mps"})):
        assert attach(simulator, worker.pid, kind=kind) == 0
        assert {name for name, read in lists.items() if read(gpu)} == named
    simulator.do("gpusimDetach", worker.pid)
    assert simulator.call("gpusimDetach", worker.pid) == NOT_FOUND


def test_allocation_of_used_memory_is_refused(simulator, nvml, gpu):
    first, second = simulator.idle_process(), simulator.idle_process()
    assert attach(simulator, first.pid, memory=70 * GIB) == 0
    assert attach(simulator, second.pid, memory=10 * GIB) == INSUFFICIENT_RESOURCES
    assert "free" in simulator.message()
    assert attach(simulator, first.pid, memory=72 * GIB) == 0, "a process may grow"
    assert attach(simulator, second.pid, memory=7 * GIB) == 0


@needs_root
def test_compute_modes_allow_one_process_or_none(simulator, nvml, gpu):
    first, second = simulator.idle_process(), simulator.idle_process()
    nvml.nvmlDeviceSetComputeMode(gpu, nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    assert attach(simulator, first.pid) == 0
    assert attach(simulator, first.pid, memory=GIB) == 0
    assert attach(simulator, second.pid) == IN_USE
    first.kill()
    first.wait()
    assert attach(simulator, second.pid) == 0
    nvml.nvmlDeviceSetComputeMode(gpu, nvml.NVML_COMPUTEMODE_PROHIBITED)
    assert attach(simulator, simulator.idle_process().pid) == IN_USE


@needs_root
def test_with_mig_on_a_process_needs_an_instance(simulator, nvml, gpu):
    worker = simulator.idle_process()
    assert attach(simulator, worker.pid, gi=1, ci=0) == NOT_FOUND
    nvml.nvmlDeviceSetMigMode(gpu, 1)
    instance = nvml.nvmlDeviceCreateGpuInstance(gpu, 19)
    nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    gi = nvml.nvmlGpuInstanceGetInfo(instance).id
    assert attach(simulator, worker.pid) == 2
    assert attach(simulator, worker.pid, gi=gi, ci=1) == NOT_FOUND
    assert attach(simulator, worker.pid, gi=gi, ci=0, memory=10 * GIB) == INSUFFICIENT_RESOURCES
    assert attach(simulator, worker.pid, gi=gi, ci=0, memory=9 * GIB) == 0
    for handle in (gpu, nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)):
        (seen,) = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        assert (seen.pid, seen.gpuInstanceId, seen.computeInstanceId) == (worker.pid, gi, 0)


def test_processes_share_the_gpu_s_utilisation(simulator, nvml, gpu):
    with pytest.raises(nvml.NVMLError_NotFound):
        nvml.nvmlDeviceGetProcessUtilization(gpu, 0)
    for _ in range(2):
        attach(simulator, simulator.idle_process().pid)
    simulator.do("gpusimLoad", 0, -1, "pattern constant\nutilization_percent 60\n")
    assert [sample.smUtil for sample in nvml.nvmlDeviceGetProcessUtilization(gpu, 0)] == [30, 30]


def test_busy_host_is_not_reinitialized(simulator, gpu):
    attach(simulator, simulator.idle_process().pid)
    assert simulator.call("gpusimCreate", "host\ndriver_version 1\ncuda_version 1\n") == IN_USE


def test_dead_and_foreign_processes_are_refused(simulator, gpu):
    worker = simulator.idle_process()
    worker.kill()
    worker.wait()
    assert attach(simulator, worker.pid) == NOT_FOUND
    assert attach(simulator, -1) == NOT_FOUND
    assert attach(simulator, os.getpid(), kind="video") == 2
