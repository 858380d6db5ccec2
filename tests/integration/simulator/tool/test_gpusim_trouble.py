# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test faults that gpusim simulates, with NVML clients."""

from __future__ import annotations

import sys

import pytest

WATCH = """
import subprocess
events = N.nvmlEventSetCreate()
for i in range(N.nvmlDeviceGetCount()):
    N.nvmlDeviceRegisterEvents(N.nvmlDeviceGetHandleByIndex(i), N.nvmlEventTypeXidCriticalError, events)
subprocess.run({command!r}, check=True)
event = N.nvmlEventSetWait_v2(events, 180000)
same = N.cast(event.device, N.c_void_p).value == N.cast(gpu, N.c_void_p).value
result = [same, event.eventData, event.gpuInstanceId, event.computeInstanceId]
"""
NONE = 0xFFFFFFFF


def watched(host, *arguments):
    """Return the event for a client that has registered before gpusim runs.

    The event has three parts: whether it is for GPU 0, its number, and its instances.
    """
    command = [sys.executable, str(host.root / "usr/local/bin/gpusim"), *arguments]
    return host.nvml(WATCH.format(command=command))


# --- xid ----------------------------------------------------------------------------------------


def test_an_xid_error_reaches_a_client(h100):
    assert watched(h100, "xid", "0", "48") == [True, 48, NONE, NONE]
    assert watched(h100, "xid", "1", "94") == [False, 94, NONE, NONE]


def test_an_xid_error_of_an_instance(h100, as_root):
    instance = h100.create_instance(9, 0)
    uuid = h100.nvml("result = N.nvmlDeviceGetUUID(N.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0))")
    assert watched(h100, "xid", f"0/{instance}", "31") == [True, 31, instance, NONE]
    assert watched(h100, "xid", uuid, "13") == [True, 13, instance, 0]


@pytest.mark.parametrize("number", ["0", "65536", "x"])
def test_invalid_number_is_refused(h100, number):
    done = h100.try_gpusim("xid", 0, number)
    assert done.returncode == 2 and "not an Xid number" in done.stderr
    assert h100.state()["events"] == []


# --- lose, restore ------------------------------------------------------------------------------


def codes(host):
    return host.nvml("""
        result = [N.nvmlDeviceGetCount()]
        for i in range(result[0]):
            try:
                result.append(N.nvmlDeviceGetName(N.nvmlDeviceGetHandleByIndex(i)))
            except N.NVMLError as error:
                result.append(error.value)
    """)


def test_a_lost_gpu_until_it_is_restored(h100):
    name = "NVIDIA H100 80GB HBM3"
    uuid = h100.state()["gpus"][1]["uuid"]
    h100.gpusim("lose", uuid)
    assert codes(h100) == [2, name, 15]
    assert h100.gpusim("show").count("LOST") == 1
    assert "gpusim restore" in h100.refused("run", "--gpu", 1, "--", "true")
    h100.gpusim("restore", uuid)
    assert codes(h100) == [2, name, name]


def test_losing_a_gpu_is_an_xid_error(h100):
    assert watched(h100, "lose", "1") == [False, 79, NONE, NONE]


# --- set ----------------------------------------------------------------------------------------


def test_faults_reach_nvml_and_are_shown(h100):
    for key, value in (
        ("throttle", "thermal"),
        ("temperature_c", 95),
        ("ecc_uncorrected", 2),
        ("remap_pending", "on"),
        ("remapped_rows_uncorrectable", 1),
    ):
        h100.gpusim("set", 0, key, value)
    assert h100.nvml("""
        result = [
            N.nvmlDeviceGetCurrentClocksEventReasons(gpu) == N.nvmlClocksEventReasonSwThermalSlowdown,
            N.nvmlDeviceGetTemperature(gpu, 0),
            N.nvmlDeviceGetTotalEccErrors(gpu, 1, 0),
            N.nvmlDeviceGetRemappedRows(gpu),
        ]
    """) == [True, 95, 2, [0, 1, 1, 0]]
    (shown,) = [line for line in h100.gpusim("show").splitlines() if "wrong" in line]
    for part in ("throttle sw_thermal", "temperature_c 95", "ecc_uncorrected 2", "remap_pending 1"):
        assert part in shown
    for key in ("throttle", "temperature_c", "remap_pending"):
        h100.gpusim("set", 0, key, "off")
    h100.gpusim("set", 0, "ecc_uncorrected", 0)
    h100.gpusim("set", 0, "remapped_rows_uncorrectable", 0)
    assert "wrong" not in h100.gpusim("show")


def test_model_without_remapped_rows_is_refused(make_host):
    host = make_host({"model": "T4-16GB"})
    assert "Ampere" in host.refused("set", 0, "remap_pending", "on")
    host.gpusim("set", 0, "ecc_corrected", 1)


# --- load, as reported by GPM ---------------------------------------------------------------------------------------


GPM = """
import time
first = N.nvmlGpmSampleGet(gpu, N.nvmlGpmSampleAlloc())
time.sleep(0.01)
asked = N.c_nvmlGpmMetricsGet_t(version=1, numMetrics=5)
asked.sample1, asked.sample2 = first, N.nvmlGpmSampleGet(gpu, N.nvmlGpmSampleAlloc())
for place, metric in enumerate((1, 2, 3, 5, 10)):
    asked.metrics[place].metricId = metric
result = [round(metric.value) for metric in N.nvmlGpmMetricsGet(asked).metrics[:5]]
"""


def test_load_with_explicit_metrics(h100, tmp_path):
    h100.gpusim("load", 0, "--pattern", "constant", "--utilization", 80)
    assert h100.nvml(GPM) == [80, 80, 40, 40, 40]
    shares = ("--sm", 50, "--occupancy", 20, "--tensor", 0, "--bandwidth", 100)
    h100.gpusim("load", 0, "--pattern", "constant", "--utilization", 80, *shares)
    assert h100.nvml(GPM) == [80, 40, 16, 0, 80]
    recording = tmp_path / "run.csv"
    recording.write_text("utilization_percent\n60\n")
    h100.gpusim("load", 0, "--pattern", recording, "--tensor", 10)
    assert h100.nvml(GPM) == [60, 60, 30, 6, 30]
    done = h100.try_gpusim("load", 0, "--pattern", "constant", "--tensor", 101)
    assert done.returncode == 2 and "not a percentage" in done.stderr
