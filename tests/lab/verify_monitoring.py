#!/usr/bin/env python3
# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the lab's Prometheus with the inventory.

The exit status is 0 if every GPU host is scraped, Prometheus sees every simulated GPU with its MIG devices, and no alert is
firing. Otherwise it is 1.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.lab.prometheus import Prometheus, PrometheusError
from tests.lab.verify_layout import INVENTORY, podman_run, wanted_instances

#: Timeout in seconds for metrics to reach Prometheus.
PATIENCE_SECONDS = 180


def wanted_parts(names: list[str]) -> tuple[int, int]:
    """Return the numbers of GPUs and MIG devices in the inventory.

    Supports only MIG entries that select their GPUs by index.
    """
    gpus = devices = 0
    for name in names:
        variables = yaml.safe_load((INVENTORY / "host_vars" / f"{name}.yml").read_text())
        gpus += sum(item.get("count", 1) for item in variables["gpu_simulator_gpus"])
        for entry in variables["gpu_layout"]:
            parts = wanted_instances(entry.get("mig", []))
            devices += len(entry["gpus"]) * sum(len(compute_instances) for _, compute_instances, _ in parts)
    return gpus, devices


def seen_parts(prometheus: Prometheus) -> tuple[int, int]:
    """Return the numbers of GPUs and MIG devices that Prometheus knows."""
    gpus = prometheus.number("count(count by (gpu_uuid) (gpu:info))")
    devices = prometheus.number('count(count by (gpu_uuid, mig_instance) (gpu:info{mig_instance!=""}))')
    return int(gpus), int(devices)


def differences(prometheus: Prometheus, names: list[str]) -> list[str]:
    """Return the differences between Prometheus and the inventory, one sentence each."""
    found = []
    up = {one.labels["host"] for one in prometheus.query('up{job="gpu_exporter"} == 1')}
    if up != set(names):
        found.append(f"the exporters of {sorted(up)} are scraped, of {sorted(names)} they were to be")
    if seen_parts(prometheus) != wanted_parts(names):
        seen, wanted = seen_parts(prometheus), wanted_parts(names)
        found.append(f"(GPUs, MIG devices) are {seen}, the inventory has {wanted}")
    firing = sorted(name for name, state in prometheus.alerts().items() if state == "firing")
    return found + ([f"alerts are firing: {', '.join(firing)}"] if firing else [])


def main() -> int:
    names = list(yaml.safe_load((INVENTORY / "hosts.yml").read_text())["gpu_hosts"]["hosts"])
    prometheus = Prometheus(podman_run("monitor"))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            found = differences(prometheus, names)
        except PrometheusError as error:
            found = [str(error)]
        reason = prometheus.why_broken() if found else ""
        if reason:
            found.append(reason)
        if not found or reason or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    if found:
        print("monitor: NOT as it should be", *found, sep="\n  ")
        return 1
    gpus, devices = seen_parts(prometheus)
    series = prometheus.number('count({__name__=~"gpu:.+", host!=""})')
    rules = sum(len(group["rules"]) for group in prometheus.ask("rules", type="alert")["groups"])
    print(f"monitor: {len(names)} exporters scraped, {gpus} GPUs with {devices} MIG devices seen")
    print(f"monitor: {series:.0f} gpu:* series, {series / (gpus + devices):.0f} for each GPU or MIG device")
    print(f"monitor: {rules} alerts watch them, none is firing")
    return 0


if __name__ == "__main__":
    sys.exit(main())
