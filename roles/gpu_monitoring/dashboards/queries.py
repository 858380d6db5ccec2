# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The questions that the dashboards ask: PromQL over the gpu:* series (docs/monitoring.md), ALERTS and up, and nothing else.

A device is what a workload can be given: a MIG instance, or a GPU that has none. Several exporters and several pods may each tell
of one device, so that every question first makes its devices unique.
"""

from __future__ import annotations

from boards import boards_by_memory

HOST = 'host=~"$host"'
GPU = 'host=~"$host", gpu_index=~"$gpu"'
#: What tells devices apart, and what is shown of them.
KEY = "host, gpu_uuid, mig_instance"
DEVICE = "host, gpu_uuid, gpu_index, mig_profile, mig_instance"
WHOLE = "host, gpu_uuid, gpu_index"
#: Below it a device counts as idle: background work of a driver or an exporter is less.
BUSY_FROM = "0.05"
#: As in the audit's rule (docs/audit.md): so long without a sign of work, of which nine tenths of the samples are there.
QUIET_FOR = "48h"
QUIET_SAMPLES = 518
QUIET_BELOW = "0.01"


def device(series, where=HOST, by=DEVICE):
    """One value of a series for each device."""
    return f"max by ({by}) ({series}{{{where}}})"


def whole(series, where=HOST):
    """One value of a series for each GPU, whatever it is divided into."""
    return device(series, where, WHOLE)


def of_workload(series, where=HOST):
    """One value of a series for each workload and device: the whole device's, whatever shares it."""
    return f'max by (workload, {KEY}) ({series}{{{where}, workload!=""}})'


def busy(where=HOST):
    return device("gpu:busy_ratio", where)


def holders(where=HOST):
    """How many hold a device: by a process, or as docs/holders.md says. No series where it is not known."""
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
    """1 for each device without a sign of work in the grace of the audit, else 0. No series where samples are missing."""
    activity = f"gpu:activity_ratio:max5m{{{where}}}[{QUIET_FOR}]"
    return (
        f"(max by ({KEY}) (max_over_time({activity})) < bool {QUIET_BELOW} "
        f"and max by ({KEY}) (count_over_time({activity})) >= {QUIET_SAMPLES})"
    )


def held_quiet(where=HOST):
    return f"{is_quiet(where)} * on ({KEY}) ({holders(where)} > bool 0)"


def contradictions(where=HOST):
    """Devices whose metrics contradict each other now: work that the utilisation does not show, or shows alone."""
    names = "gpu:unreported_work_ratio:avg5m|gpu:unexplained_busy_ratio:avg5m"
    return f'count(group by ({KEY}) ({{__name__=~"{names}", {where}}})) or 0 * count(group by (host) (up))'


def unknown(where=HOST):
    """Idle devices of which it is not known whether they are held: no data is not the same as free."""
    return f"({busy(where)} < {BUSY_FROM}) unless on ({KEY}) {holders(where)}"


def gpus(where=HOST):
    return f"count(group by ({WHOLE}) (gpu:info{{{where}}}))"


def memory_ratio(by="", where=HOST):
    group = f" by ({by})" if by else ""
    model = f"{DEVICE}, model" if by == "model" else DEVICE
    used, total = (device(f"gpu:memory_{what}_bytes", where, model) for what in ("used", "total"))
    return f"sum{group} ({used}) / sum{group} ({total})"


def throttled(reasons, where=HOST):
    """1 for each GPU whose clocks are held down for one of the reasons."""
    return whole("gpu:throttled", f'{where}, reason=~"{reasons}"')


def throttled_by_heat(where=HOST):
    return throttled("sw_thermal|hw_thermal", where)


def throttled_by_power(where=HOST):
    """The hardware slows down for heat as well, and then says so besides: as the alerts have it."""
    power = throttled("sw_power_cap|hw_power_brake|hw_slowdown", where)
    return f"{power} > bool ({throttled_by_heat(where)} or 0 * {power})"


def gpu_price(where=HOST):
    return f"max by (host, gpu_uuid) (gpu:price_per_hour{{{where}}})"


def carved(where=HOST):
    """The memory of each GPU that is in devices."""
    return f"sum by (host, gpu_uuid) ({device('gpu:memory_total_bytes', where, KEY)})"


def size(where=HOST):
    """The memory of each GPU: its devices', or its board's where it is divided, its board is known, and that is more."""
    of_boards = " or ".join(
        f'{mib} * 1048576 * group by (host, gpu_uuid, model) (gpu:info{{{where}, mig_instance!="", model=~"{names}"}})'
        for mib, names in boards_by_memory().items()
    )
    return f"max by (host, gpu_uuid) ({carved(where)} or {of_boards})"


def price(where=HOST):
    """What a device costs per hour: its share of the GPU's price, by memory."""
    share = f"{device('gpu:memory_total_bytes', where)} / on (host, gpu_uuid) group_left () {size(where)}"
    return f"({share}) * on (host, gpu_uuid) group_left () {gpu_price(where)}"


def not_carved(where=HOST):
    """What is in no device of a GPU costs per hour."""
    return f"(1 - {carved(where)} / {size(where)}) * {gpu_price(where)}"


def lost_money(state, where=HOST):
    """The same for devices of which `state` is 1, and 0 for the others."""
    return f"({price(where)}) * on ({KEY}) group_left () ({state})"


def over_range(expression):
    """Money in the time shown, from money per hour: a value each quarter of an hour stands for that quarter."""
    return f"sum_over_time(({expression})[$__range:15m]) / 4"


FIRING = 'ALERTS{alertname=~"Gpu.+", alertstate="firing", host=~"$host|"}'
#: The role's own jobs. A Prometheus that was there before has the same exporters in jobs of other names.
OURS = 'job=~"gpu_exporter|gpu_host"'
#: Whether exporters answer: those of the role's jobs, and those that told of a GPU within a day.
EXPORTERS = (
    f"(up{{{OURS}, {HOST}}} or up and on (job, instance)"
    f' last_over_time(group by (job, instance) (gpu:info{{{HOST}, mig_instance=""}})[1d:15m]))'
)
DOWN = f"{EXPORTERS} == bool 0"
#: What tells of a host, now and each half hour of the time shown: a week of every sample would take a large fleet long.
_NOW = f'group by (job, instance, host) (gpu:info{{host!="", mig_instance=""}} or up{{{OURS}, host!=""}})'
_TOLD = f"({_NOW} or last_over_time({_NOW}[$__range:30m]))"
#: The values of the variables. A cluster is a label of what is scraped, and few gpu:* series have it. Hosts without one are
#: left out only where a cluster is chosen.
CLUSTERS = f'group by (cluster) (up{{cluster!=""}} and on (job, instance) {_TOLD})'
HOSTS = f'group by (host) ({_TOLD} unless on (job, instance) up{{cluster!~"$cluster"}})'
