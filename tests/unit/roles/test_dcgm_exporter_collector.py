# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of the embedded exporter that the simulator cannot test, and the clock."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "roles" / "dcgm_exporter" / "files"))

from openfleet_exporter import collector, events, gpm, gpus
from openfleet_exporter.gpus import Entity, Gpu, Gpus, MigDevice, NvmlGoneError

WHOLE = Entity("GPU-1", "GPU-1", "0", "a model")
PART = Entity("MIG-1", "GPU-1", "0", "a model", "1g.10gb", "7")


def samples(families):
    return {(s.name, s.labels.get("reason")): s.value for family in families for s in family.samples}


@pytest.fixture
def nvml(monkeypatch):
    """Replace NVML by the given functions. All other functions are not supported."""

    def unknown(*arguments):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    for name in dir(pynvml):
        if name.startswith("nvml") and name[4].isupper() and callable(getattr(pynvml, name)):
            monkeypatch.setattr(pynvml, name, unknown)
    return lambda **functions: [monkeypatch.setattr(pynvml, name, one) for name, one in functions.items()]


def health_of_one():
    families = collector.Families()
    collector.health(families, Gpu(WHOLE, object(), 0))
    return samples(families)


def test_unknown_values_are_not_exported(nvml):
    assert health_of_one() == {}


def test_violations_and_replays(nvml):
    """NVML counts nanoseconds (nvml.h, nvmlViolationTime_t)."""
    times = {pynvml.NVML_PERF_POLICY_POWER: 1_500_000_000, pynvml.NVML_PERF_POLICY_THERMAL: 0}

    def violation(handle, policy):
        if policy not in times:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(violationTime=times[policy])

    nvml(nvmlDeviceGetViolationStatus=violation, nvmlDeviceGetPcieReplayCounter=lambda handle: 12)
    assert health_of_one() == {
        ("openfleet_gpu_violation_seconds_total", "power"): 1.5,
        ("openfleet_gpu_violation_seconds_total", "thermal"): 0.0,
        ("openfleet_gpu_pcie_replays_total", None): 12.0,
    }


@pytest.mark.parametrize("code", gpus.GONE)
def test_missing_driver_differs_from_an_unknown_value(code):
    def gone():
        raise pynvml.NVMLError(code)

    with pytest.raises(NvmlGoneError):
        gpus.ask(gone)


def test_uncountable_gpus_are_not_lost(nvml, tmp_path):
    record = tmp_path / "gpus.json"
    record.write_text('{"GPU-1": {"index": "0", "model": "a model"}}')
    with pytest.raises(pynvml.NVMLError):
        Gpus(record).scan()
    # NVML counts no GPU, but the record lists one. This GPU is lost.
    nvml(nvmlDeviceGetCount=lambda: 0)
    (gpu,) = Gpus(record).scan()
    assert gpu.lost and gpu.entity == Entity("GPU-1", "GPU-1", "0", "a model")


@pytest.mark.parametrize("text", ["", "[]", '{"GPU-1": 3}', '{"GPU-1": {"index": "x", "model": ""}}'])
def test_invalid_record_is_ignored(tmp_path, text):
    record = tmp_path / "gpus.json"
    record.write_text(text)
    assert Gpus(record).known == {}


def test_recent_is_five_minutes():
    now = [1000.0]
    xids = events.XidErrors(Gpus(), clock=lambda: now[0])
    xids.add(WHOLE, 31)
    now[0] += 200
    xids.add(WHOLE, 31)
    assert xids.counts() == ({(WHOLE, 31): 2}, {(WHOLE, 31): 2})
    now[0] += 101
    assert xids.counts() == ({(WHOLE, 31): 2}, {(WHOLE, 31): 1})
    now[0] += 200
    assert xids.counts() == ({(WHOLE, 31): 2}, {})


def test_old_samples_give_no_values():
    now = [0.0]
    measured = gpm.Gpm(Gpus(), interval=10, clock=lambda: now[0])
    measured._figures[("GPU-1", None)] = (0.0, {"sm_active": 0.4})
    assert measured.figures("GPU-1", None) == {"sm_active": 0.4}
    assert measured.figures("GPU-1", 7) == {}
    now[0] = 31.0
    assert measured.figures("GPU-1", None) == {}


def answers(values):
    """Return an nvmlGpmMetricsGet that only knows these metric numbers."""

    def metrics_get(request):
        for metric in request.metrics[: request.numMetrics]:
            known = metric.metricId in values
            metric.nvmlReturn = pynvml.NVML_SUCCESS if known else pynvml.NVML_ERROR_NOT_SUPPORTED
            metric.value = values.get(metric.metricId, 0.0)
        return request

    return metrics_get


@pytest.mark.parametrize(
    ("values", "figures"),
    [
        ({}, {}),
        ({2: 50.0, 5: 101.0, 10: float("nan")}, {"sm_active": 0.5}),
        # nvml.h: MiB per second, for each direction.
        ({20: 2.0, 21: 1.0, 60: 0.0, 61: 0.5}, {"pcie_bytes_per_second": 3 << 20, "nvlink_bytes_per_second": 1 << 19}),
        # Without the values of both directions, there is no total. NaN and infinity count as missing.
        ({20: 2.0, 60: float("nan"), 61: 0.5}, {}),
        ({20: float("inf"), 21: 1.0}, {}),
    ],
)
def test_figures_of_two_samples(nvml, values, figures):
    nvml(nvmlGpmMetricsGet=answers(values))
    assert gpm.between(None, None) == figures


def test_rates_are_per_gpu_and_ratios_per_instance(nvml):
    """Samples of an instance also contain values of the whole GPU."""
    taken = []
    nvml(
        nvmlGpmQueryDeviceSupport=lambda handle: SimpleNamespace(isSupportedDevice=1),
        nvmlGpmMetricsGet=answers({2: 40.0, 20: 1.0, 21: 1.0}),
        nvmlGpmSampleAlloc=pynvml.c_nvmlGpmSample_t,
        nvmlGpmSampleFree=lambda sample: sample,
        nvmlGpmSampleGet=lambda handle, sample: taken.append(None) or sample,
        nvmlGpmMigSampleGet=lambda handle, instance, sample: taken.append(instance) or sample,
    )
    gpu = Gpu(WHOLE, object(), 0, mig_devices=[MigDevice(PART, object(), 0, 7, 0)])
    measured = gpm.Gpm(Gpus(), interval=10, clock=lambda: 5.0)
    for _ in range(2):
        measured.sample([gpu])
    assert taken == [None, 7] * 2
    families = collector.Families()
    collector.HostCollector(Gpus(), None, gpm=measured)._in_use(families, gpu)
    told = {s.name: (s.labels["uuid"], s.value) for family in families for s in family.samples}
    assert told == {
        "openfleet_gpu_sm_active_ratio": ("MIG-1", 0.4),
        "openfleet_gpu_pcie_bytes_per_second": ("GPU-1", 2 << 20),
    }


def test_time_with_kernels_is_counted_between_scrapes(nvml):
    values, now = {1: 40.0}, [0.0]
    nvml(
        nvmlGpmQueryDeviceSupport=lambda handle: SimpleNamespace(isSupportedDevice=1),
        nvmlGpmMetricsGet=lambda request: answers(values)(request),
        nvmlGpmSampleAlloc=pynvml.c_nvmlGpmSample_t,
        nvmlGpmSampleFree=lambda sample: sample,
        nvmlGpmSampleGet=lambda handle, sample: sample,
    )
    gpu, measured = Gpu(WHOLE, object(), 0), gpm.Gpm(Gpus(), interval=10, clock=lambda: now[0])
    counted = []
    # The third interval is unknown, so it is not counted. A GPU that is lost restarts at 0.
    for seconds, given in ((0, {}), (10, {1: 40.0}), (20, {1: 5.0}), (10, {}), (10, {1: 0.0})):
        values, now[0] = given, now[0] + seconds
        measured.sample([gpu])
        counted.append(measured.busy_seconds("GPU-1", None))
    assert counted == [None, pytest.approx(4.0), pytest.approx(5.0), pytest.approx(5.0), pytest.approx(5.0)]
    measured.sample([])
    assert measured.busy_seconds("GPU-1", None) is None


def test_two_compute_instances_have_the_memory_once():
    first, second = (MigDevice(PART, object(), number, 7, number) for number in (0, 1))
    assert not first.shares_memory and second.shares_memory


def test_scrape_waits_for_another_one_only_until_a_timeout(monkeypatch):
    monkeypatch.setattr(collector, "PATIENCE", 0.01)
    one = collector.HostCollector(Gpus(), None)
    with one.lock, pytest.raises(TimeoutError, match="has not answered"):
        next(one.collect())
