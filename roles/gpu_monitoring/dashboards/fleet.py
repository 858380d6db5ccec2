# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dashboard: the whole fleet, with urgent problems first."""

from __future__ import annotations

import queries as q
from kit import GREEN, ORANGE, PER_DEVICE, RED, bars, board, fill, lines, number, rows, section, total
from parts import ALARM, GPU_LINK, HOST_LINK, MONEY, USE_COLORS, WARN, alerts, use


def fleet():
    device_memory = [q.memory_ratio(by="model")]
    hosts = [
        f"count by (host) (group by ({q.WHOLE}) (gpu:info{{{q.HOST}}}))",
        f"avg by (host) ({q.busy()})",
        q.memory_ratio(by="host"),
        f"sum by (host) ({q.whole('gpu:power_watts')})",
        f"max by (host) ({q.whole('gpu:temperature_celsius')})",
        f"sum by (host) ({q.held_idle()})",
    ]
    return fill(
        board("fleet", "GPU fleet", "Holders and utilization of the fleet's GPUs, and broken GPUs."),
        [
            number("GPUs", "Number of GPUs that exporters report.", "none", q.gpus()),
            number(
                "Busy",
                "GPUs and MIG instances that run kernels for 5 % of the time or more.",
                "none",
                q.busy_devices(),
                ((None, GREEN),),
            ),
            number(
                "Held, idle",
                "GPUs and MIG instances that are held but idle now. Free these first if you need capacity.",
                "none",
                f"sum({q.held_idle()})",
                ((None, GREEN), (1, ORANGE)),
            ),
            number("Free", "GPUs and MIG instances without a holder.", "none", f"sum({q.free()})"),
            total(
                "Alerts",
                "Number of firing alerts. The table below lists them.",
                "none",
                f"count({q.FIRING}) or 0 * count(group by (host) (up))",
                ALARM,
            ),
            number(
                "Exporters down",
                "Exporters that do not answer. The state of their hosts is unknown.",
                "none",
                f"sum({q.DOWN})",
                ALARM,
            ),
            number(
                "Held, quiet for 48 h",
                "GPUs and MIG instances that are held, without any sign of work in 48 hours. The audit reports them as idle "
                "only if their holder's usual pauses are shorter.",
                "none",
                f"sum({q.held_quiet()})",
                WARN,
                span=8,
            ),
            number(
                "Their cost per hour",
                "Cost of GPUs that are held and quiet for 48 h. Needs prices in the inventory (gpu_monitoring_prices).",
                MONEY,
                f"sum({q.lost_money(q.held_quiet())})",
                ((None, GREEN), (0.01, ORANGE)),
                span=8,
            ),
            total(
                "Contradicting metrics",
                "GPUs and MIG instances whose utilization contradicts all other metrics. "
                "Their use is unknown until the exporter is repaired.",
                "none",
                q.contradictions(),
                ALARM,
                span=8,
            ),
            lines(
                "GPUs and MIG instances by use",
                "Busy, held but idle, free, or idle with an unknown holder.",
                "none",
                use(q.HOST),
                span=14,
                stacked=True,
                colors=USE_COLORS,
            ),
            alerts(10),
            rows(
                "Hosts",
                "Current state of each host. Its name links to its dashboard.",
                "none",
                hosts,
                [
                    ("host", "Host", "string", HOST_LINK),
                    ("Value #A", "GPUs", "none"),
                    ("Value #B", "Busy", "percentunit"),
                    ("Value #F", "Held, idle", "none"),
                    ("Value #C", "Memory", "percentunit"),
                    ("Value #D", "Power", "watt"),
                    ("Value #E", "Hottest GPU", "celsius"),
                ],
                height=9,
            ),
            section("Holders"),
            rows(
                "Holders",
                "Processes, containers, jobs and pods that hold a GPU or MIG instance now.",
                "none",
                [
                    f"max by (host, gpu_index, mig_profile, mig_instance, kind) (gpu:held{{{q.HOST}}} > 0)"
                    f' or label_replace({q.device("gpu:processes")} > 0, "kind", "process", "", "")'
                ],
                [
                    ("host", "Host", "string", HOST_LINK),
                    ("gpu_index", "GPU", "string", GPU_LINK),
                    ("mig_profile", "Profile", "string"),
                    ("mig_instance", "Instance", "string"),
                    ("kind", "Held by", "string"),
                    ("Value", "How many", "none"),
                ],
                span=12,
                height=9,
            ),
            rows(
                "Jobs and pods",
                "GPUs and instances of the schedulers' jobs and pods, with the values of the whole device even if it is shared.",
                "none",
                [
                    f"count by (workload) ({q.of_workload('gpu:busy_ratio')})",
                    f"avg by (workload) ({q.of_workload('gpu:busy_ratio')})",
                    f"sum by (workload) ({q.of_workload('gpu:memory_used_bytes')})",
                ],
                [
                    ("workload", "Job or pod", "string"),
                    ("Value #A", "GPUs", "none"),
                    ("Value #B", "Busy", "percentunit"),
                    ("Value #C", "Memory used on them", "bytes"),
                ],
                span=12,
                height=9,
            ),
            section("Utilization"),
            lines(
                "Busy and computing",
                "Average over all GPUs and instances: share of time with a kernel running, and share of active SMs.",
                "percentunit",
                [(f"avg({q.busy()})", "busy"), (f"avg({q.device('gpu:compute_active_ratio')})", "computing")],
                most=1,
            ),
            lines(
                "Power",
                "Total power draw and power limit of the GPUs.",
                "watt",
                [
                    (f"sum({q.whole('gpu:power_watts')})", "drawn"),
                    (f"sum({q.whole('gpu:power_limit_watts')})", "allowed"),
                ],
            ),
            lines(
                "PCIe and NVLink",
                "Total PCIe and NVLink traffic of all GPUs, both directions added.",
                "Bps",
                [
                    (f"sum({q.whole('gpu:pcie_bytes_per_second')})", "PCIe"),
                    (f"sum({q.whole('gpu:nvlink_bytes_per_second')})", "NVLink"),
                ],
            ),
            lines(
                "Memory in use",
                "Share of GPU memory in use, by model.",
                "percentunit",
                [(device_memory[0], "{{model}}")],
                most=1,
            ),
            lines(
                "Video engines",
                "Utilization of encoders and decoders: average and maximum of all GPUs.",
                "percentunit",
                [
                    (f"avg({q.whole('gpu:codec_busy_ratio')})", "average"),
                    (f"max({q.whole('gpu:codec_busy_ratio')})", "busiest"),
                ],
                most=1,
            ),
            rows(
                "Models and drivers",
                "Number of GPUs by model and driver version. One model should have one version.",
                "none",
                [
                    f"count by (model, driver_version) (group by ({q.WHOLE}, model, driver_version) (gpu:info{{{q.HOST}}}))"
                ],
                [("model", "Model", "string"), ("driver_version", "Driver", "string"), ("Value", "GPUs", "none")],
                span=12,
            ),
            section("Health"),
            bars(
                "Hottest GPUs",
                "The ten hottest GPUs now.",
                "celsius",
                f"topk(10, {q.whole('gpu:temperature_celsius')})",
                "{{host}} GPU {{gpu_index}}",
                colors=((None, GREEN), (80, ORANGE), (90, RED)),
            ),
            bars(
                "Fullest memory",
                "The ten GPUs and instances with the least memory left.",
                "percentunit",
                f"topk(10, {q.device('gpu:memory_used_bytes')} / {q.device('gpu:memory_total_bytes')})",
                PER_DEVICE,
                most=1,
                colors=((None, GREEN), (0.9, ORANGE), (0.97, RED)),
            ),
            number(
                "Lost",
                "GPUs that the driver has lost or no longer lists.",
                "none",
                f"sum({q.whole('gpu:lost')})",
                ALARM,
            ),
            number(
                "Throttled by heat",
                "GPUs that are throttled because they are hot.",
                "none",
                f"sum({q.throttled_by_heat()})",
                ALARM,
            ),
            number(
                "Throttled by power",
                "GPUs that are throttled by their power limit or power supply, and not by heat.",
                "none",
                f"sum({q.throttled_by_power()})",
                WARN,
            ),
            number(
                "Row remap pending",
                "GPUs that need a reset to remap bad memory.",
                "none",
                f"sum({q.whole('gpu:row_remap_pending')})",
                WARN,
            ),
            number(
                "Layout drift",
                "GPUs whose layout differs from gpu_layout.",
                "none",
                f"sum({q.whole('gpu:layout_drift')})",
                WARN,
            ),
            number(
                "MPS daemons down",
                "MPS daemons of the layout that do not run.",
                "none",
                f"sum(max by ({q.KEY}, daemon) (gpu:mps_daemon_up{{{q.HOST}}}) == bool 0)",
                ALARM,
            ),
            rows(
                "Xid errors",
                "XIDs reported in the time range: the highest count within five minutes.",
                "none",
                [f"max by (host, gpu_index, xid) (max_over_time(gpu:xid_errors:count5m{{{q.HOST}}}[$__range]))"],
                [
                    ("host", "Host", "string", HOST_LINK),
                    ("gpu_index", "GPU", "string", GPU_LINK),
                    ("xid", "Xid", "string"),
                    ("Value", "In 5 minutes", "none"),
                ],
                none="none",
            ),
        ],
    )
