# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Generate a history of gpu:* series for three hosts, for the dashboards' queries.

host    GPU  device               state                       model  workload
node-1  0    whole                busy, a process             H100   train
node-1  1    whole                idle, held by a container   H100
node-1  2    whole                idle, nobody                H100
node-1  3    whole                idle, nobody knows          H100
node-1  4    2g.20gb 3            idle, held by slurm         A100
node-1  4    1g.10gb 9            busy, a process             A100   serve
node-1  4    1g.10gb 10           idle, nobody                A100
node-1  5    whole, two tenants   busy, a process             H100   train
node-1  6    whole, two pods      busy, a process             H100   web-1, web-2
node-1  7    1g.10gb 7, alone     idle, held by a container   A100-SXM4-80GB
node-2  0    whole                idle, nobody                T4, without a price
node-2  1    whole, lost          nothing is known of it      H100

GPUs 0 to 3 of node-1 and GPU 0 of node-2 are throttled: THROTTLED lists the reasons.

The memory size of the board "A100" is unknown. That of the A100-SXM4-80GB is known.

node-1 belongs to cluster a and to the role's jobs. node-2 belongs to a job with another name and without labels. node-3 belonged
to the same job as node-2, but its exporter has been down for half an hour.

GPU 5 of node-1 offers 64 GiB for leases. carol has a lease of 16 GiB, and dave waits.

A second exporter reports GPUs 0, 1 and 6 of node-1, the tenants and the leases. It has the same names and values as the
first one.

Idle devices have been idle for 49 hours, with two exceptions: the instance that slurm holds worked a day ago, and the T4 has
samples of only one day. The utilization of GPU 6 of node-1 is stuck.
"""

from __future__ import annotations

from typing import NamedTuple

HOSTS = ["node-1", "node-2", "node-3"]
GIB = 1 << 30
HOURS = 3
STEP = 60
#: (Hours of history, seconds between samples) of recorded series that some panels read for more than HOURS.
ACTIVITY = "gpu:activity_ratio:max5m"
LONGER = {ACTIVITY: (49, 300)}
PRICES = {"H100": 2.4, "A100": 1.0, "NVIDIA A100-SXM4-80GB": 1.6}
SIZES = {"H100": 80, "A100": 40, "T4": 16}


class Device(NamedTuple):
    host: str
    index: int
    model: str
    busy: float
    processes: int | None
    held: str = ""
    profile: str = ""
    instance: str = ""
    workloads: tuple = ()
    gib: int = 0


DEVICES = [
    Device("node-1", 0, "H100", 0.9, 1, workloads=("train",)),
    Device("node-1", 1, "H100", 0.0, 0, held="container"),
    Device("node-1", 2, "H100", 0.0, 0),
    Device("node-1", 3, "H100", 0.0, None),
    Device("node-1", 4, "A100", 0.0, 0, "slurm", "2g.20gb", "3", gib=20),
    Device("node-1", 4, "A100", 0.8, 1, "", "1g.10gb", "9", ("serve",), gib=10),
    Device("node-1", 4, "A100", 0.01, 0, "", "1g.10gb", "10", gib=10),
    Device("node-1", 5, "H100", 0.5, 2, workloads=("train",)),
    Device("node-1", 6, "H100", 0.6, 2, workloads=("web-1", "web-2")),
    Device("node-1", 7, "NVIDIA A100-SXM4-80GB", 0.0, 0, "container", "1g.10gb", "7", gib=10),
    Device("node-2", 0, "T4", 0.0, 0),
]
#: Active throttle reasons. All other reasons of REASONS are 0. node-2 reports no thermal reasons. GPUs 0 and 2 of
#: node-1 are hot, and the others lack power.
THROTTLED = {
    ("node-1", 0): ("sw_thermal", "hw_slowdown"),
    ("node-1", 1): ("hw_slowdown",),
    ("node-1", 2): ("hw_thermal", "sw_power_cap"),
    ("node-1", 3): ("sw_power_cap",),
    ("node-2", 0): ("sw_power_cap",),
}
REASONS = {"node-1": ("sw_power_cap", "hw_slowdown", "hw_thermal", "sw_thermal"), "node-2": ("sw_power_cap",)}
TOLD_TWICE = [("node-1", 0), ("node-1", 1), ("node-1", 6)]
SECOND = {"job": "gpu_host", "instance": "node-1:9100"}


def _scrape(host):
    return {"job": "gpu_exporter" if host == "node-1" else "site", "instance": host + ":9400"}


def _gpu(host, index, model):
    return {
        **_scrape(host),
        "host": host,
        "gpu_uuid": f"GPU-{host}-{index}",
        "gpu_index": str(index),
        "model": model,
        "vendor": "nvidia",
    }


def series():
    """Return the series with their values.

    A value is a number, or a function. The function takes the seconds since the start, and returns None if there is no
    sample.
    """
    yield "up", {**SECOND, "host": "node-1", "cluster": "a"}, 1
    yield "up", {**_scrape("node-1"), "host": "node-1", "cluster": "a"}, 1
    yield "up", _scrape("node-2"), 1
    yield "up", {"job": "gpu_host", "instance": "node-2:9100", "host": "node-2"}, 0
    yield "up", {"job": "prometheus", "instance": "localhost:9090", "cluster": "of something else"}, 1
    end = (HOURS - 0.5) * 3600
    yield "up", _scrape("node-3"), lambda seconds: int(seconds < end)
    yield "gpu:info", _gpu("node-3", 0, "H100"), lambda seconds: 1 if seconds < end else None
    firing = {"alertstate": "firing", "severity": "critical"}
    yield "ALERTS", {"alertname": "GpuLost", "host": "node-2", "gpu_index": "1", **firing}, 1
    yield "ALERTS", {"alertname": "GpuLayoutDrift", "host": "node-1", "gpu_index": "2", **firing}, 1
    yield "ALERTS", {"alertname": "GpuHot", "host": "node-1", "gpu_index": "0", "alertstate": "pending"}, 1
    yield "ALERTS", {"alertname": "DiskFull", "host": "node-1", **firing}, 1
    for word, gpus in (("in_use", 5.5), ("idle", 2), ("free", 0.5)):
        yield "gpu:audit_gpus", {"class": word}, gpus
        yield "gpu:audit_cost_per_month", {"class": word}, 1461 * gpus
    yield "gpu:audit_owner_gpus", {"class": "idle", "owner_team": "vision", "owner_user": "alice"}, 1.5
    yield "gpu:audit_owner_gpus", {"class": "idle", "owner_user": "bob"}, 0.5
    for device in DEVICES:
        yield from _device(device)
        labels = _gpu(device.host, device.index, device.model)
        of = {"host": device.host, "gpu_uuid": labels["gpu_uuid"]}
        yield ACTIVITY, {**of, "mig_instance": device.instance} if device.instance else of, _activity(device)
        if (device.host, device.index) in TOLD_TWICE:
            yield from ((name, {**labels, **SECOND}, value) for name, labels, value in _device(device))
    whole = {(one.host, one.index): _gpu(one.host, one.index, one.model) for one in DEVICES}
    whole["node-2", 1] = _gpu("node-2", 1, "H100")
    for (host, index), labels in whole.items():
        yield from _health(labels, lost=(host, index) == ("node-2", 1), drifted=(host, index) == ("node-1", 2))
    yield "gpu:unexplained_busy_ratio:avg5m", {"host": "node-1", "gpu_uuid": "GPU-node-1-6"}, 1
    for exporter in ({}, SECOND):
        yield from _sharing({**whole["node-1", 5], **exporter})


def _activity(one):
    """Return a function for the device's highest sign of work in five minutes.

    The function takes the seconds since the start.
    """
    if one.held == "slurm":
        return lambda seconds: float(86400 <= seconds < 90000)
    if one.model == "T4":
        return lambda seconds: 0 if seconds >= 90000 else None
    return one.busy


def _device(one):
    labels = _gpu(one.host, one.index, one.model)
    if one.instance:
        labels.update(mig_profile=one.profile, mig_instance=one.instance)
        yield "gpu:info", {**labels, "driver_version": "580.1"}, 1
    total = (one.gib or SIZES[one.model]) * GIB
    for workload in one.workloads or ("",):
        of = {**labels, "workload": workload} if workload else labels
        yield "gpu:busy_ratio", of, one.busy
        yield "gpu:compute_active_ratio", of, one.busy / 2
        yield "gpu:tensor_active_ratio", of, one.busy / 3
        yield "gpu:memory_bandwidth_active_ratio", of, one.busy / 4
        yield "gpu:memory_total_bytes", of, total
        yield "gpu:memory_used_bytes", of, int(total * (0.02 + one.busy / 2))
    if one.processes is not None:
        yield "gpu:processes", labels, one.processes
    if one.held:
        yield "gpu:held", {**labels, "kind": one.held}, 1


def _health(labels, lost, drifted):
    yield "gpu:info", {**labels, "driver_version": "580.1"}, 1
    yield "gpu:lost", labels, int(lost)
    if labels["model"] in PRICES:
        kept = {key: value for key, value in labels.items() if key not in ("job", "instance")}
        yield "gpu:price_per_hour", kept, PRICES[labels["model"]]
    if lost:
        return
    yield "gpu:power_watts", labels, 300
    yield "gpu:power_limit_watts", labels, 700
    yield "gpu:pcie_bytes_per_second", labels, 2e9
    yield "gpu:nvlink_bytes_per_second", labels, 3e10
    yield "gpu:codec_busy_ratio", labels, 0.3
    yield "gpu:temperature_celsius", labels, 60
    for kind in ("ecc_corrected", "ecc_uncorrected", "pcie_replay"):
        yield "gpu:errors_total", {**labels, "kind": kind}, lambda seconds: seconds // 600
    there = THROTTLED.get((labels["host"], int(labels["gpu_index"])), ())
    for reason in REASONS[labels["host"]]:
        yield "gpu:throttled", {**labels, "reason": reason}, int(reason in there)
    yield "gpu:xid_errors:count5m", {**labels, "xid": "31"}, 2
    for name in ("gpu:row_remap_pending", "gpu:row_remap_failed"):
        yield name, labels, 0
    yield "gpu:layout_drift", labels, int(drifted)
    yield "gpu:layout_differences", labels, int(drifted)
    yield "gpu:layout_sharing_info", {**labels, "sharing": "exclusive"}, 1


def _sharing(labels):
    yield "gpu:mps_daemon_up", {**labels, "daemon": "inference"}, 1
    yield "gpu:mps_server_deaths_total", {**labels, "daemon": "inference"}, lambda seconds: seconds // 300
    for tenant, used in (("a", 7), ("b", 1)):
        of = {**labels, "tenant": tenant}
        yield "gpu:tenant_memory_used_bytes", of, used * GIB
        yield "gpu:tenant_memory_limit_bytes", of, 8 * GIB
        yield "gpu:tenant_sm_limit_ratio", of, 0.3
        yield "gpu:tenant_denied_total", of, lambda seconds: seconds // 300
    online, offline = (
        {**labels, "tenant": name, "latency": word} for name, word in (("a", "online"), ("b", "offline"))
    )
    yield "gpu:tenant_gpu_seconds_total", online, lambda seconds: seconds * 0.25
    yield "gpu:tenant_gpu_seconds_total", offline, lambda seconds: seconds * 0.5
    yield "gpu:tenant_gave_way_total", offline, lambda seconds: seconds // 30
    # The host makes ten launches a second. All of them wait for less than 20 ms, and nine of ten for less than 10 ms.
    for le, each_second in (("0.01", 9), ("0.02", 10), ("+Inf", 10)):
        bucket = {**online, "le": le}
        yield "gpu:tenant_wait_seconds_bucket", bucket, lambda seconds, each_second=each_second: seconds * each_second
    for account, running, waiting in (("carol", 1, 0), ("dave", 0, 1)):
        of = {name: labels[name] for name in ("job", "instance", "host", "vendor")}
        of["account"] = account
        yield "gpu:lease_running", of, running
        yield "gpu:lease_waiting", of, waiting
        yield "gpu:lease_memory_bytes", of, running * 16 * GIB
    lease = {"account": "carol", "lease": "7", "size": "16GiB and 25 %", "entry": "gpu_layout[2]"}
    yield "gpu:lease_end_timestamp_seconds", {**labels, **lease}, 1795003600
    yield "gpu:lease_pool_memory_bytes", labels, 64 * GIB
    yield "gpu:lease_idle_instances", {**labels, "mig_profile": "1g.10gb"}, 1


def openmetrics(end):
    """Return the history until `end` (seconds since 1970) in promtool's input format."""
    lines = []
    for name, labels, value in series():
        inside = ",".join('%s="%s"' % pair for pair in sorted(labels.items()))
        hours, step = LONGER.get(name, (HOURS, STEP))
        start = end - hours * 3600
        for at in range(start, end + 1, step):
            number = value(at - start) if callable(value) else value
            if number is None:
                continue
            lines.append("%s{%s} %s %d" % (name, inside, number, at))
    return "\n".join([*lines, "# EOF", ""])
