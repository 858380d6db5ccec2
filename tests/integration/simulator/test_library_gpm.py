# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test GPM: the activity of a GPU or a GPU instance between two samples."""

from __future__ import annotations

import ctypes
import os
import time

import pytest

INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, VERSION_MISMATCH = 2, 3, 6, 25

#: The numbers of GRAPHICS_UTIL, SM_UTIL, SM_OCCUPANCY, ANY_TENSOR_UTIL and DRAM_BW_UTIL.
METRICS = (1, 2, 3, 5, 10)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="MIG mode is set by root: run as root")


@pytest.fixture
def gpu(simulator, nvml):
    simulator.create("h100", "a100")
    nvml.nvmlInit()
    return nvml.nvmlDeviceGetHandleByIndex(0)


def load(simulator, text, gi=-1):
    simulator.do("gpusimLoad", 0, gi, text)


def sample(nvml, gpu, gi=None):
    buffer = nvml.nvmlGpmSampleAlloc()
    return nvml.nvmlGpmSampleGet(gpu, buffer) if gi is None else nvml.nvmlGpmMigSampleGet(gpu, gi, buffer)


def request(nvml, first, second, *metrics):
    asked = nvml.c_nvmlGpmMetricsGet_t(version=nvml.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(metrics))
    asked.sample1, asked.sample2 = first, second
    for place, metric in enumerate(metrics):
        asked.metrics[place].metricId = metric
    return asked


def between(nvml, first, second):
    answered = nvml.nvmlGpmMetricsGet(request(nvml, first, second, *METRICS))
    found = answered.metrics[: len(METRICS)]
    assert [metric.nvmlReturn for metric in found] == [0] * len(METRICS)
    return [metric.value for metric in found]


def measured(nvml, gpu, gi=None):
    """Return the metrics over a short time that begins now."""
    first = sample(nvml, gpu, gi)
    time.sleep(0.01)
    return between(nvml, first, sample(nvml, gpu, gi))


def code_of(nvml, call, *arguments):
    try:
        call(*arguments)
    except nvml.NVMLError as error:
        return error.value
    return 0


def test_gpus_with_gpm(nvml, gpu):
    ampere = nvml.nvmlDeviceGetHandleByIndex(1)
    assert [nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice for handle in (gpu, ampere)] == [1, 0]
    assert code_of(nvml, sample, nvml, ampere) == NOT_SUPPORTED


def test_idle_gpu_has_no_activity(nvml, gpu):
    assert measured(nvml, gpu) == [0, 0, 0, 0, 0]


def test_metrics_of_a_load(simulator, nvml, gpu):
    load(simulator, "pattern constant\nutilization_percent 80\n")
    assert measured(nvml, gpu) == pytest.approx([80, 80, 40, 40, 40])
    assert nvml.nvmlDeviceGetUtilizationRates(gpu).gpu == 80
    load(simulator, None)
    assert measured(nvml, gpu) == [0, 0, 0, 0, 0]


def test_load_with_explicit_metrics(simulator, nvml, gpu):
    shares = "sm_percent 90\noccupancy_percent 25\ntensor_percent 0\nbandwidth_percent 100\n"
    load(simulator, "pattern constant\nutilization_percent 60\n" + shares)
    assert measured(nvml, gpu) == pytest.approx([60, 54, 15, 0, 60])


def test_values_never_exceed_100_percent(simulator, nvml, gpu):
    """Limit values to 100 percent, because clients drop higher values."""
    load(simulator, "pattern constant\nutilization_percent 100\nbandwidth_percent 100\n")
    for _ in range(50):
        values = measured(nvml, gpu)
        assert values == pytest.approx([100, 100, 50, 50, 100]) and max(values) <= 100


def test_a_change_between_two_samples_counts_for_its_time(simulator, nvml, gpu):
    load(simulator, "pattern constant\nutilization_percent 80\n")
    first = sample(nvml, gpu)
    time.sleep(0.01)
    middle = sample(nvml, gpu)
    load(simulator, "pattern constant\nutilization_percent 20\ntensor_percent 100\n")
    time.sleep(0.01)
    last = sample(nvml, gpu)
    whole, late = between(nvml, first, last), between(nvml, middle, last)
    assert between(nvml, first, middle)[0] == pytest.approx(80)
    assert 20 < late[0] < whole[0] < 80
    # Both parts take the same number of seconds. The tensor cores are busy for 40 % of the first part and for 20 % of
    # the second part.
    assert whole[3] == pytest.approx(20 + (whole[0] - 20) / 3)


def test_pattern_is_averaged(simulator, nvml, gpu):
    """Average a pattern over the samples.

    The pattern's steps are much shorter than the time between samples. So the high value counts for half of the time,
    except at the edges.
    """
    load(simulator, "pattern square\nperiod_seconds 0.0001\nutilization_percent 90\nutilization_low_percent 10\n")
    assert measured(nvml, gpu)[0] == pytest.approx(50, abs=1)
    load(simulator, "pattern samples\ninterval_seconds 0.00005\nsample 30 0 -1\nsample 60 0 -1\n")
    assert measured(nvml, gpu)[0] == pytest.approx(45, abs=1)


@needs_root
def test_instances_have_their_own_figures(simulator, nvml, gpu):
    nvml.nvmlDeviceSetMigMode(gpu, 1)
    made = [nvml.nvmlDeviceCreateGpuInstance(gpu, 9) for _ in range(2)]
    busy, idle = [nvml.nvmlGpuInstanceGetInfo(instance).id for instance in made]
    load(simulator, "pattern constant\nutilization_percent 70\nbandwidth_percent 20\n", gi=busy)
    assert measured(nvml, gpu, busy) == pytest.approx([70, 70, 35, 35, 14])
    assert measured(nvml, gpu, idle) == [0, 0, 0, 0, 0]
    # The instance has 3 of the GPU's 7 compute slices.
    assert measured(nvml, gpu) == pytest.approx([30, 30, 15, 15, 6])
    assert code_of(nvml, sample, nvml, gpu, 0) == code_of(nvml, sample, nvml, gpu, 99) == NOT_FOUND
    nvml.nvmlGpuInstanceCreateComputeInstance(made[0], 2)
    device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
    assert nvml.nvmlGpmQueryDeviceSupport(device).isSupportedDevice == 1
    assert code_of(nvml, sample, nvml, device) == NOT_SUPPORTED, "an instance is named by its GPU and id"


@needs_root
def test_recreated_instance_with_the_same_id_is_another_one(simulator, nvml, gpu):
    assert code_of(nvml, sample, nvml, gpu, 1) == NOT_SUPPORTED, "MIG mode is off"
    nvml.nvmlDeviceSetMigMode(gpu, 1)
    samples = []
    for _ in range(2):
        instance = nvml.nvmlDeviceCreateGpuInstance(gpu, 0)
        samples.append(sample(nvml, gpu, nvml.nvmlGpuInstanceGetInfo(instance).id))
        nvml.nvmlGpuInstanceDestroy(instance)
    assert code_of(nvml, nvml.nvmlGpmMetricsGet, request(nvml, *samples, 1)) == INVALID_ARGUMENT


def test_samples_of_two_processes_agree(simulator, nvml, gpu):
    load(simulator, "pattern constant\nutilization_percent 40\n")
    child = simulator.python("""
first = nvmlGpmSampleGet(gpu, nvmlGpmSampleAlloc())
time.sleep(0.01)
asked = c_nvmlGpmMetricsGet_t(version=1, numMetrics=1)
asked.sample1, asked.sample2 = first, nvmlGpmSampleGet(gpu, nvmlGpmSampleAlloc())
asked.metrics[0].metricId = NVML_GPM_METRIC_SM_UTIL
print(round(nvmlGpmMetricsGet(asked).metrics[0].value))
""")
    assert child.stdout.read() == "40\n"


def test_traffic_is_unknown_not_zero(simulator, nvml, gpu):
    """Report unknown traffic as unsupported.

    A busy GPU without traffic would be wrong. Metrics 20 and 21 are PCIe, 60 and 61 are NVLink.
    """
    load(simulator, "pattern constant\nutilization_percent 80\n")
    first = sample(nvml, gpu)
    time.sleep(0.001)
    answered = nvml.nvmlGpmMetricsGet(request(nvml, first, sample(nvml, gpu), 20, 21, 60, 61)).metrics
    assert [answered[i].nvmlReturn for i in range(4)] == [NOT_SUPPORTED] * 4
    for counter in (nvml.NVML_PCIE_UTIL_TX_BYTES, nvml.NVML_PCIE_UTIL_RX_BYTES):
        # The traffic of the link itself is 0, as on idle boards, because simulated loads transfer no data.
        assert nvml.nvmlDeviceGetPcieThroughput(gpu, counter) == 0
    assert code_of(nvml, nvml.nvmlDeviceGetPcieThroughput, gpu, 2) == INVALID_ARGUMENT


def test_other_metrics_are_not_supported_one_by_one(nvml, gpu):
    first = sample(nvml, gpu)
    time.sleep(0.001)
    asked = request(nvml, first, sample(nvml, gpu), 1, 20, 2, 61, 0)
    answered = nvml.nvmlGpmMetricsGet(asked).metrics
    assert [answered[i].nvmlReturn for i in range(5)] == [0, NOT_SUPPORTED, 0, NOT_SUPPORTED, NOT_SUPPORTED]
    assert [answered[i].metricInfo.shortName for i in range(3)] == [b"GRAPHICS_UTIL", None, b"SM_UTIL"]
    assert answered[0].metricInfo.unit == b"%"


def test_only_requested_metrics_are_written(nvml, gpu):
    first = sample(nvml, gpu)
    time.sleep(0.001)
    asked = request(nvml, first, sample(nvml, gpu), 1)
    asked.metrics[1].metricId, asked.metrics[1].value = 2, 12.5
    nvml.nvmlGpmMetricsGet(asked)
    assert (asked.metrics[1].value, asked.metrics[1].nvmlReturn) == (12.5, 0)
    assert ctypes.sizeof(nvml.c_nvmlGpmMetric_t) == 40 and nvml.c_nvmlGpmMetricsGet_t.metrics.offset == 24


def test_invalid_requests(simulator, nvml, gpu):
    first = sample(nvml, gpu)
    time.sleep(0.001)
    second, empty = sample(nvml, gpu), nvml.nvmlGpmSampleAlloc()
    for pair in ((second, first), (first, first), (first, empty), (empty, second), (first, None)):
        assert code_of(nvml, nvml.nvmlGpmMetricsGet, request(nvml, *pair, 1)) == INVALID_ARGUMENT
    assert code_of(nvml, nvml.nvmlGpmMetricsGet, request(nvml, first, second)) == INVALID_ARGUMENT
    wrong = request(nvml, first, second, 1)
    wrong.version = 2
    assert code_of(nvml, nvml.nvmlGpmMetricsGet, wrong) == VERSION_MISMATCH
    assert simulator.library.nvmlGpmSampleFree(None) == INVALID_ARGUMENT
    for buffer in (first, second, empty):
        nvml.nvmlGpmSampleFree(buffer)


@pytest.mark.parametrize("key", ["sm", "occupancy", "tensor", "bandwidth"])
def test_shares_above_a_hundred_are_refused(simulator, gpu, key):
    text = f"pattern constant\nutilization_percent 10\n{key}_percent 101\n"
    assert simulator.call("gpusimLoad", 0, -1, text) == INVALID_ARGUMENT and "100" in simulator.message()
