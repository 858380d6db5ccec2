# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the dashboards' PromQL queries.

The queries read only gpu:* series (docs/monitoring.md), ALERTS and up. A device is a MIG instance, or a GPU without
instances. Several exporters and pods may report the same device, so every query first reduces the series to one per
device.
"""

from __future__ import annotations

from boards import boards_by_memory

HOST = 'host=~"$host"'
GPU = 'host=~"$host", gpu_index=~"$gpu"'
#: Labels that identify a device, labels that identify a GPU, and labels that panels show.
KEY = "host, gpu_uuid, mig_instance"
DEVICE = "host, gpu_uuid, gpu_index, mig_profile, mig_instance"
WHOLE = "host, gpu_uuid, gpu_index"
#: Devices below this value count as idle. Background work by drivers and exporters stays below this value.
BUSY_FROM = "0.05"
#: The audit uses the same rule (docs/audit.md): no sign of work for this long, and nine tenths of the samples are
#: present.
QUIET_FOR = "48h"
QUIET_SAMPLES = 518
QUIET_BELOW = "0.01"


def device(series, where=HOST, by=DEVICE):
    """Return a query for one value of a series per device."""
    return f"max by ({by}) ({series}{{{where}}})"


def whole(series, where=HOST):
    """Return a query for one value of a series per GPU, including partitioned GPUs."""
    return device(series, where, WHOLE)


def of_workload(series, where=HOST):
    """Return a query for one value per workload and device.

    If workloads share a device, each gets the whole device's value.
    """
    return f'max by (workload, {KEY}) ({series}{{{where}, workload!=""}})'


def busy(where=HOST):
    return device("gpu:busy_ratio", where)


def holders(where=HOST):
    """Return a query for the number of holders per device (docs/holders.md).

    The query has no result for devices with unknown holders.
    """
    return f'max by ({KEY}) ({{__name__=~"gpu:processes|gpu:held", {where}}})'


def is_idle(where=HOST):
    return f"({busy(where)} < bool {BUSY_FROM})"


def busy_devices(where=HOST):
    return f"sum({busy(where)} >= bool {BUSY_FROM})"


def held_idle(where=HOST):
    return f"{is_idle(where)} * on ({KEY}) ({holders(where)} > bool 0)"


def free(where=HOST):
    return f"{is_idle(where)} * on ({KEY}) ({holders(where)} == bool 0)"


def is_quiet(where=HOST):
    """Return a query that is 1 for quiet devices, and 0 for others.

    A device is quiet if it has shown no sign of work for the audit's grace time. The query has no result for devices
    without enough samples.
    """
    activity = f"gpu:activity_ratio:max5m{{{where}}}[{QUIET_FOR}]"
    return (
        f"(max by ({KEY}) (max_over_time({activity})) < bool {QUIET_BELOW} "
        f"and max by ({KEY}) (count_over_time({activity})) >= {QUIET_SAMPLES})"
    )


def held_quiet(where=HOST):
    return f"{is_quiet(where)} * on ({KEY}) ({holders(where)} > bool 0)"


def contradictions(where=HOST):
    """Return a query that counts devices whose metrics contradict each other.

    Either only utilization shows work, or everything except utilization shows work.
    """
    names = "gpu:unreported_work_ratio:avg5m|gpu:unexplained_busy_ratio:avg5m"
    return f'count(group by ({KEY}) ({{__name__=~"{names}", {where}}})) or 0 * count(group by (host) (up))'


def unknown(where=HOST):
    """Return a query for idle devices with unknown holders.

    These devices are not necessarily free.
    """
    return f"({busy(where)} < {BUSY_FROM}) unless on ({KEY}) {holders(where)}"


def gpus(where=HOST):
    return f"count(group by ({WHOLE}) (gpu:info{{{where}}}))"


def memory_ratio(by="", where=HOST):
    group = f" by ({by})" if by else ""
    model = f"{DEVICE}, model" if by == "model" else DEVICE
    used, total = (device(f"gpu:memory_{what}_bytes", where, model) for what in ("used", "total"))
    return f"sum{group} ({used}) / sum{group} ({total})"


def throttled(reasons, where=HOST):
    """Return a query that is 1 for each GPU throttled for one of these reasons."""
    return whole("gpu:throttled", f'{where}, reason=~"{reasons}"')


def throttled_by_heat(where=HOST):
    return throttled("sw_thermal|hw_thermal", where)


def throttled_by_power(where=HOST):
    """Return a query that is 1 for each GPU throttled by power, otherwise 0.

    Like the alerts, the query excludes GPUs throttled by heat, because these may also report hw_slowdown.
    """
    power = throttled("sw_power_cap|hw_power_brake|hw_slowdown", where)
    return f"{power} > bool ({throttled_by_heat(where)} or 0 * {power})"


def gpu_price(where=HOST):
    return f"max by (host, gpu_uuid) (gpu:price_per_hour{{{where}}})"


def carved(where=HOST):
    """Return a query for the total memory of each GPU's devices."""
    return f"sum by (host, gpu_uuid) ({device('gpu:memory_total_bytes', where, KEY)})"


def size(where=HOST):
    """Return a query for each GPU's memory.

    This is the total of the GPU's devices. If the GPU is partitioned and its board is known and larger, this is the
    board's memory.
    """
    of_boards = " or ".join(
        f'{mib} * 1048576 * group by (host, gpu_uuid, model) (gpu:info{{{where}, mig_instance!="", model=~"{names}"}})'
        for mib, names in boards_by_memory().items()
    )
    return f"max by (host, gpu_uuid) ({carved(where)} or {of_boards})"


def price(where=HOST):
    """Return a query for each device's price per hour.

    This is the device's share of the GPU's price, by memory.
    """
    share = f"{device('gpu:memory_total_bytes', where)} / on (host, gpu_uuid) group_left () {size(where)}"
    return f"({share}) * on (host, gpu_uuid) group_left () {gpu_price(where)}"


def not_carved(where=HOST):
    """Return a query for the hourly price of each GPU's memory outside of devices."""
    return f"(1 - {carved(where)} / {size(where)}) * {gpu_price(where)}"


def lost_money(state, where=HOST):
    """Return a query for the hourly price of devices whose `state` is 1.

    For others, the query is 0.
    """
    return f"({price(where)}) * on ({KEY}) group_left () ({state})"


def over_range(expression):
    """Return a query for the money in the time range, given money per hour.

    Prometheus samples the value per hour every 15 minutes.
    """
    return f"sum_over_time(({expression})[$__range:15m]) / 4"


FIRING = 'ALERTS{alertname=~"Gpu.+", alertstate="firing", host=~"$host|"}'
#: The role's jobs. An existing Prometheus may scrape the same exporters under other job names.
OURS = 'job=~"gpu_exporter|gpu_host"'
#: Whether exporters answer. The query covers exporters in the role's jobs, and exporters that reported a GPU within a
#: day.
EXPORTERS = (
    f"(up{{{OURS}, {HOST}}} or up and on (job, instance)"
    f' last_over_time(group by (job, instance) (gpu:info{{{HOST}, mig_instance=""}})[1d:15m]))'
)
DOWN = f"{EXPORTERS} == bool 0"
#: Series that contain a host name, now and for every half hour of the time range. In a large fleet, reading every
#: sample of a week would be slow.
_NOW = f'group by (job, instance, host) (gpu:info{{host!="", mig_instance=""}} or up{{{OURS}, host!=""}})'
_KNOWN = f"({_NOW} or last_over_time({_NOW}[$__range:30m]))"
#: The dashboard variables' values. `cluster` is a label of the scrape, and few gpu:* series have it. The dashboards
#: hide hosts without this label only if the reader selects a cluster.
CLUSTERS = f'group by (cluster) (up{{cluster!=""}} and on (job, instance) {_KNOWN})'
HOSTS = f'group by (host) ({_KNOWN} unless on (job, instance) up{{cluster!~"$cluster"}})'
