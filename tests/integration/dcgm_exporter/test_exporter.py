# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the embedded exporter's metrics while simulated GPUs change."""

from __future__ import annotations

import math
import sys
from functools import partial
from pathlib import Path

import pytest

#: Timeout in seconds for a busy machine.
DEADLINE = 180
#: The tolerance is less than one percent, because simulated utilization has whole percentages.
approx = partial(pytest.approx, abs=0.009)
H100 = {"model": "NVIDIA H100 80GB HBM3"}
#: A program that destroys the instance of MIG device 0 on GPU 0.
DESTROY = """
import pynvml as n
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
mig = n.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
instance = n.nvmlDeviceGetGpuInstanceById(gpu, n.nvmlDeviceGetGpuInstanceId(mig))
n.nvmlComputeInstanceDestroy(n.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
n.nvmlGpuInstanceDestroy(instance)
"""


def test_whole_gpus_and_instances_are_distinguished(host, start, instance):
    host.create([{"model": "H100-80GB", "count": 2}])
    instance(host, 0, "3g.40gb", 4)
    instance(host, 0, "1g.10gb", 0)
    samples = start().samples()
    info = {(found["gpu_index"], found["mig_profile"]): found for found in samples.labels("openfleet_gpu_info", **H100)}
    assert set(info) == {("0", ""), ("0", "3g.40gb"), ("0", "1g.10gb"), ("1", "")}
    whole, part = info["0", ""], info["0", "3g.40gb"]
    assert whole["uuid"] == whole["gpu_uuid"] == part["gpu_uuid"]
    assert part["uuid"].startswith("MIG-") and part["mig_instance"].isdigit() and whole["mig_instance"] == ""
    assert whole["driver_version"].count(".") == 2 and whole["pci_bus_id"].endswith(":00.0")
    # nvitop's own series for the instance have the MIG device's UUID.
    assert samples.of("gpu_memory_total_MiB", uuid=part["uuid"]) == [40448.0]


def test_memory_is_exported_once(host, start, instance):
    """Export memory once, so that a host's sum counts no memory twice."""
    host.create([{"model": "H100-80GB", "count": 1}])
    exporter = start()
    (gpu,) = exporter.samples().labels("gpu_memory_used_MiB")
    instance(host, 0, "3g.40gb", 0)
    (part,) = exporter.samples().labels("gpu_memory_used_MiB")
    assert gpu["uuid"].startswith("GPU-") and part["uuid"].startswith("MIG-")
    # Metrics that exist only for the whole GPU keep the GPU's UUID.
    assert exporter.samples().labels("gpu_temperature_C")[0]["uuid"] == gpu["uuid"]


def test_unknown_values_are_left_out(host, start, instance):
    host.create([{"model": "H100-80GB", "count": 1}, {"model": "L40S-48GB", "count": 1}])
    instance(host, 0, "3g.40gb", 0)
    samples = start().samples()
    assert not [s for s in samples.all if math.isnan(s.value)]
    # NVML reports no utilization for a GPU in MIG mode.
    assert [found["index"] for found in samples.labels("gpu_utilization_Percentage")] == ["1"]
    assert samples.of("gpu_fan_speed_Percentage", index="0") == []
    # The simulator reports no traffic through GPM.
    assert not [name for name in samples.names if "bytes_per_second" in name]


def test_instances_can_change_while_it_runs(host, start, instance):
    host.create([{"model": "H100-80GB", "count": 1}])
    for at in (0, 1, 2):
        instance(host, 0, "1g.10gb", at)
    exporter = start()
    there = {found["uuid"] for found in exporter.samples().labels("gpu_memory_used_MiB")}
    assert len(there) == 3
    host.run([sys.executable, "-c", DESTROY])
    left = {found["uuid"] for found in exporter.samples().labels("gpu_memory_used_MiB")}
    assert len(left) == 2 and left < there
    assert {f["uuid"] for f in exporter.samples().labels("openfleet_gpu_info") if f["mig_profile"]} == left
    instance(host, 0, "2g.20gb", 4)
    assert len(exporter.samples().of("gpu_memory_used_MiB")) == 3


def test_processes_are_counted_unless_disabled(host, start):
    host.create([{"model": "H100-80GB", "count": 2}])
    exporter, quiet = start(), None
    assert exporter.samples().of("openfleet_gpu_processes", gpu_index="0") == [0.0]
    sleeper = host.popen([str(host.bin / "gpusim"), "run", "--gpu", "0", "--memory", "2GiB", "--", "sleep", "600"])
    try:
        exporter.wait(lambda: exporter.samples().of("openfleet_gpu_processes", gpu_index="0") == [1.0])
        samples = exporter.samples()
        assert samples.of("openfleet_gpu_processes", gpu_index="1") == [0.0]
        assert samples.of("process_gpu_memory_MiB", index="0") == [2048.0]
        # A command line may contain a secret.
        assert "process_info_info" not in samples.names
        quiet = start(processes="none").samples()
        assert not [name for name in quiet.names if name.startswith("process_")]
        assert quiet.of("openfleet_gpu_processes", gpu_index="0") == [1.0]
        told = start(processes="commands").samples()
        assert "sleep" in told.labels("process_info_info")[0]["command"]
    finally:
        sleeper.terminate()
        sleeper.wait()
    exporter.wait(lambda: exporter.samples().of("openfleet_gpu_processes", gpu_index="0") == [0.0])
    assert exporter.samples().of("process_gpu_memory_MiB") == []


def test_xid_error_counts_for_its_gpu(host, start, instance):
    host.create([{"model": "H100-80GB", "count": 2}])
    exporter = start()
    assert exporter.samples().of("openfleet_gpu_xid_errors_total") == []
    host.gpusim("xid", "1", "31")
    exporter.wait(lambda: exporter.samples().of("openfleet_gpu_xid_errors_total", gpu_index="1", xid="31") == [1.0])
    samples = exporter.samples()
    assert samples.of("openfleet_gpu_xid_errors_5m", gpu_index="1", xid="31") == [1.0]
    assert len(samples.of("openfleet_gpu_xid_errors_5m")) == 1
    for _ in range(2):
        host.gpusim("xid", "1", "94")
    exporter.wait(lambda: exporter.samples().of("openfleet_gpu_xid_errors_5m", gpu_index="1", xid="94") == [2.0])


def test_xid_error_of_an_instance_counts_for_the_instance(host, start, instance):
    host.create([{"model": "H100-80GB", "count": 1}])
    instance(host, 0, "3g.40gb", 0)
    instance(host, 0, "3g.40gb", 4)
    exporter = start()
    second = [f for f in exporter.samples().labels("openfleet_gpu_info") if f["mig_profile"]][1]
    host.gpusim("xid", f"0/{second['mig_instance']}", "43")
    exporter.wait(lambda: exporter.samples().of("openfleet_gpu_xid_errors_total"))
    (found,) = exporter.samples().labels("openfleet_gpu_xid_errors_total")
    assert (found["uuid"], found["mig_instance"], found["xid"]) == (second["uuid"], second["mig_instance"], "43")


SICK = [
    ("any", "UNKNOWN"),
    ("any", "IRQ_ISSUE"),
    ("nvmlDeviceGetHandleByIndex", "UNKNOWN"),
    ("nvmlDeviceGetTemperature", "RESET_REQUIRED"),
    ("nvmlDeviceGetMemoryInfo", "UNKNOWN"),
]


@pytest.mark.parametrize(("call", "code"), SICK)
def test_failing_gpu_hides_no_other(host, start, call, code):
    host.create([{"model": "H100-80GB", "count": 2}])
    exporter = start()
    (uuid,) = [found["uuid"] for found in exporter.samples().labels("openfleet_gpu_info", gpu_index="1")]
    (other,) = [found["uuid"] for found in exporter.samples().labels("openfleet_gpu_info", gpu_index="0")]
    host.gpusim("fail", call, "--gpu", "1", "--code", code, "--lasting")
    exporter.wait(lambda: not exporter.samples().of("gpu_memory_used_MiB", uuid=uuid))
    for _ in range(2):
        samples = exporter.samples()
        for name in ("gpu_memory_used_MiB", "gpu_temperature_C", "gpu_power_usage_W"):
            assert len(samples.of(name, uuid=other)) == 1, (name, call)
        assert samples.of("openfleet_gpu_lost", uuid=other) == [0.0]
    if call != "nvmlDeviceGetMemoryInfo":
        assert samples.of("openfleet_gpu_lost", uuid=uuid) == [1.0]
    # A new exporter, which has never seen the failing GPU work, still exports the other GPU.
    assert len(start().samples().of("gpu_temperature_C", uuid=other)) == 1
    host.gpusim("fail", "--clear")
    exporter.wait(lambda: exporter.samples().of("openfleet_gpu_lost", uuid=uuid) == [0.0])
    exporter.wait(lambda: len(exporter.samples().of("gpu_memory_used_MiB")) == 2)


def test_gpu_that_never_answered_is_named(host, start):
    host.create([{"model": "H100-80GB", "count": 2}])
    host.gpusim("fail", "nvmlDeviceGetTemperature", "--gpu", "0", "--code", "RESET_REQUIRED", "--lasting")
    host.gpusim("fail", "any", "--gpu", "1", "--code", "UNKNOWN", "--lasting")
    exporter = start()
    assert exporter.samples().of("openfleet_gpu_lost", gpu_index="0") == [1.0]
    assert "GPU 1 cannot be reached: nvmlDeviceGetHandleByIndex" in exporter.log.read_text()


def test_lost_gpu_does_not_end_the_exporter(host, start):
    host.create([{"model": "H100-80GB", "count": 2}])
    exporter = start()
    was = exporter.samples()
    assert was.of("openfleet_gpu_lost") == [0.0, 0.0]
    (uuid,) = [found["uuid"] for found in was.labels("openfleet_gpu_info", gpu_index="1")]
    host.gpusim("lose", "1")
    exporter.wait(lambda: exporter.samples().of("openfleet_gpu_lost", uuid=uuid) == [1.0])
    samples = exporter.samples()
    assert samples.of("openfleet_gpu_lost", gpu_index="0") == [0.0]
    # The exporter reports none of the lost GPU's outdated values, and all of the other GPU's values.
    assert samples.of("gpu_temperature_C", uuid=uuid) == []
    assert len(samples.of("gpu_temperature_C")) == 1
    # Xid 79: GPU has fallen off the bus.
    exporter.wait(lambda: exporter.samples().of("openfleet_gpu_xid_errors_total", gpu_index="1", xid="79") == [1.0])
    # The exporter still counts the other GPU's events.
    host.gpusim("xid", "0", "13")
    exporter.wait(lambda: exporter.samples().of("openfleet_gpu_xid_errors_total", gpu_index="0", xid="13") == [1.0])
    # A restarted exporter also reports the lost GPU.
    assert start().samples().of("openfleet_gpu_lost", uuid=uuid) == [1.0]
    host.gpusim("restore", "1")
    exporter.wait(lambda: exporter.samples().of("openfleet_gpu_lost", uuid=uuid) == [0.0])
    exporter.wait(lambda: exporter.log.read_text().count(f"waiting for Xid errors of {uuid}") == 2)
    host.gpusim("xid", "1", "31")
    exporter.wait(lambda: exporter.samples().of("openfleet_gpu_xid_errors_total", gpu_index="1", xid="31"))


def test_throttling_and_errors_of_memory(host, start):
    host.create([{"model": "H100-80GB", "count": 2}])
    exporter = start()
    reasons = {found["reason"]: found for found in exporter.samples().labels("openfleet_gpu_throttled", gpu_index="1")}
    assert set(reasons) == {"sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal", "hw_thermal", "hw_power_brake"}
    assert set(exporter.samples().of("openfleet_gpu_throttled")) == {0.0}
    host.gpusim("set", "1", "throttle", "hw_thermal")
    host.gpusim("set", "1", "ecc_uncorrected", "3")
    host.gpusim("set", "1", "remap_pending", "on")
    samples = exporter.samples()
    assert samples.of("openfleet_gpu_throttled", gpu_index="1", reason="hw_thermal") == [1.0]
    assert samples.of("openfleet_gpu_throttled", gpu_index="1", reason="sw_power_cap") == [0.0]
    assert set(samples.of("openfleet_gpu_throttled", gpu_index="0")) == {0.0}
    assert samples.of("openfleet_gpu_ecc_errors_total", gpu_index="1", type="uncorrected") == [3.0]
    assert samples.of("openfleet_gpu_ecc_errors_total", gpu_index="1", type="corrected") == [0.0]
    assert samples.of("openfleet_gpu_row_remap_pending", gpu_index="1") == [1.0]
    assert samples.of("openfleet_gpu_row_remap_pending", gpu_index="0") == [0.0]
    host.gpusim("set", "1", "throttle", "off")
    assert set(exporter.samples().of("openfleet_gpu_throttled", gpu_index="1")) == {0.0}


def test_utilization_as_nvml_measures_it(host, start, instance):
    """Compare activity metrics with the simulated load.

    GPUs and instances since Hopper have these metrics. The load is 80 % busy time, with 50 % of the SMs and 25 % of
    the tensor cores.
    """
    host.create([{"model": "H100-80GB", "count": 2}, {"model": "A100-80GB", "count": 1}])
    instance(host, 0, "3g.40gb", 0)
    instance(host, 0, "3g.40gb", 4)
    exporter = start()
    first, second = (f for f in exporter.samples().labels("openfleet_gpu_info") if f["mig_profile"])
    load = ["load", "--pattern", "constant", "--utilization", "80", "--sm", "50", "--tensor", "25"]
    host.gpusim(*load, "1")
    host.gpusim(*load, f"0/{second['mig_instance']}")

    def told() -> bool:
        """Return whether one scrape has all expected values.

        The samples must be newer than the load. The exporter omits samples that are too old.
        """
        of = exporter.samples().of
        busy = ({"gpu_index": "1"}, {"uuid": second["uuid"]})
        return (
            all(of("openfleet_gpu_sm_active_ratio", **labels) == [approx(0.4)] for labels in busy)
            and all(of("openfleet_gpu_tensor_active_ratio", **labels) == [approx(0.2)] for labels in busy)
            and of("openfleet_gpu_sm_active_ratio", uuid=first["uuid"]) == [0.0]
        )

    exporter.wait(told)
    samples = exporter.samples()
    # An unsupported metric must be missing, not 0.
    assert samples.labels("openfleet_gpu_sm_active_ratio", gpu_index="2") == []
    assert samples.labels("openfleet_gpu_sm_active_ratio", gpu_index="0", mig_profile="") == []


def test_other_textfiles_are_served(host, start):
    host.create([{"model": "H100-80GB", "count": 1}])
    folder = host.folder / "textfiles"
    folder.mkdir()
    exporter = start(textfile_dir=str(folder))
    (folder / "layout.prom").write_text(
        "# HELP openfleet_layout_drift Whether.\n# TYPE openfleet_layout_drift gauge\n"
        'openfleet_layout_drift{gpu_index="0"} 1\n# TYPE refusals_total counter\nrefusals_total{tenant="a b"} 7\n'
    )
    (folder / "half.prom").write_text('cut_off{a="')
    (folder / "note.txt").write_text("other 1\n")
    samples = exporter.samples()
    assert samples.of("openfleet_layout_drift", gpu_index="0") == [1.0]
    assert samples.of("refusals_total", tenant="a b") == [7.0]
    assert samples.of("other") == []
    readable = {s.labels["file"]: s.value for s in samples.all if s.name == "openfleet_exporter_textfile_readable"}
    assert readable == {"layout.prom": 1.0, "half.prom": 0.0}
    # The exporter exports GPU metrics as well.
    assert samples.of("openfleet_gpu_lost") == [0.0]


def test_job_files_of_a_scheduler(host, start, instance):
    """Read files in dcgm-exporter's format for HPC jobs.

    See https://github.com/NVIDIA/dcgm-exporter (README, HPC job information).
    """
    host.create([{"model": "H100-80GB", "count": 2}])
    instance(host, 0, "3g.40gb", 0)
    folder = host.folder / "jobs"
    folder.mkdir()
    exporter = start(hpc_job_mapping_dir=str(folder))
    (part,) = [f for f in exporter.samples().labels("openfleet_gpu_info") if f["mig_profile"]]
    (folder / f"0.{part['mig_instance']}").write_text("1201\n1202\n")
    (folder / "1").write_text("77\n")
    jobs = {(f["gpu_index"], f["mig_profile"], f["hpc_job"]) for f in exporter.samples().labels("openfleet_gpu_job")}
    assert jobs == {("0", "3g.40gb", "1201"), ("0", "3g.40gb", "1202"), ("1", "", "77")}


def test_ps_shows_the_exporters_name(host, start):
    host.create([{"model": "H100-80GB", "count": 1}])
    exporter = start()
    assert Path(f"/proc/{exporter.process.pid}/comm").read_text() == "dcgm-exporter\n"


def test_exporter_ends_if_the_driver_is_gone(host, start):
    """Exit so that systemd starts a new process, which loads the new driver's library."""
    host.create([{"model": "H100-80GB", "count": 1}])
    exporter = start()
    host.gpusim("fail", "nvmlDeviceGetCount_v2", "--code", "DRIVER_NOT_LOADED")
    assert exporter.process.wait(DEADLINE) == 1
    assert "NVML no longer works" in exporter.log.read_text()


def test_host_without_driver_is_reported(host, start):
    with pytest.raises(AssertionError, match="Is the driver loaded"):
        start()
