# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test nvitop-exporter's metrics, and the missing ones that the role adds."""

from __future__ import annotations

import json
import sys

from nvitop_exporter import __version__

# Runs nvitop-exporter as its own command line does, without a server, and prints one collection's text.
ALONE = """
import json
from nvitop import Device
from nvitop_exporter.exporter import PrometheusExporter
from prometheus_client import CollectorRegistry, generate_latest

registry = CollectorRegistry()
physical = Device.from_indices(range(Device.count()))
devices = [*physical, *(mig for device in physical for mig in device.mig_devices())]
exporter = PrometheusExporter(devices, hostname="here", registry=registry)
for device in devices:
    exporter.update_device(device)
print(json.dumps([[s.name, s.labels, repr(s.value)] for family in registry.collect() for s in family.samples]))
"""


def alone(host):
    return json.loads(host.run([sys.executable, "-c", ALONE]).stdout)


def test_tested_version_is_the_installed_one():
    assert __version__ == "1.7.2"


def test_nvitop_reports_memory_and_use_of_gpus_and_memory_of_instances(host, instance):
    host.create([{"model": "H100-80GB", "count": 2}])
    instance(host, 0, "3g.40gb", 0)
    samples = alone(host)
    memory = {labels["index"] for name, labels, _ in samples if name == "gpu_memory_used_MiB"}
    assert memory == {"0", "0:0", "1"}
    assert {"gpu_utilization_Percentage", "gpu_power_usage_W", "gpu_temperature_C"} <= {name for name, _, _ in samples}


def test_nvitop_reports_processes(host):
    host.create([{"model": "H100-80GB", "count": 1}])
    sleeper = host.popen([str(host.bin / "gpusim"), "run", "--gpu", "0", "--memory", "2GiB", "--", "sleep", "600"])
    try:
        while not [s for s in alone(host) if s[0] == "process_gpu_memory_MiB" and s[2] == "2048.0"]:
            assert sleeper.poll() is None
    finally:
        sleeper.terminate()
        sleeper.wait()


def test_nvitop_lacks_errors_throttling_losses_and_instance_ids(host, instance):
    host.create([{"model": "H100-80GB", "count": 2}])
    instance(host, 0, "3g.40gb", 0)
    host.gpusim("set", "1", "throttle", "thermal")
    host.gpusim("xid", "1", "31")
    samples = alone(host)
    names = {name for name, _, _ in samples}
    words = [
        "xid",
        "throttl",
        "reason",
        "violation",
        "ecc",
        "remap",
        "replay",
        "lost",
        "tensor",
        "occupancy",
        "sm_active",
    ]
    assert [name for name in names for word in words if word in name.lower()] == []
    labels = {label for name, found, _ in samples if name.startswith("gpu_") for label in found}
    assert labels == {"hostname", "index", "devicename", "uuid", "link"}


def test_nvitop_reports_nan_for_unknown_values(host):
    """Drop NaN values.

    Prometheus would store NaN, and rules would propagate it.
    """
    host.create([{"model": "H100-80GB", "count": 1}])
    assert "nan" in {value for _, _, value in alone(host)}
