# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole fleet: what wants attention first."""

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
        board("fleet", "GPU fleet", "Who has the fleet's GPUs, what they do with them, and what is broken."),
        [
            number("GPUs", "Cards that an exporter tells of.", "none", q.gpus()),
            number(
                "Busy",
                "GPUs and MIG instances in use for 5 % of the time or more.",
                "none",
                q.busy_devices(),
                ((None, GREEN),),
            ),
            number(
                "Held, idle",
                "GPUs and MIG instances that are held, and that do nothing now. The first place to look for capacity.",
                "none",
                f"sum({q.held_idle()})",
                ((None, GREEN), (1, ORANGE)),
            ),
            number("Free", "GPUs and MIG instances that are not held.", "none", f"sum({q.free()})"),
            total(
                "Alerts",
                "Alerts that fire now. The table below has them.",
                "none",
                f"count({q.FIRING}) or 0 * count(group by (host) (up))",
                ALARM,
            ),
            number(
                "Exporters down",
                "Exporters that do not answer. Of their hosts nothing is known.",
                "none",
                f"sum({q.DOWN})",
                ALARM,
            ),
            number(
                "Held, quiet for 48 h",
                "GPUs and MIG instances that are held, without any sign of work in 48 hours. The audit calls them idle "
                "once that is longer than their holder's own pauses explain.",
                "none",
                f"sum({q.held_quiet()})",
                WARN,
                span=8,
            ),
            number(
                "They cost, per hour",
                "What those that are held and quiet cost. Where the inventory has prices (gpu_monitoring_prices).",
                MONEY,
                f"sum({q.lost_money(q.held_quiet())})",
                ((None, GREEN), (0.01, ORANGE)),
                span=8,
            ),
            total(
                "Contradicting metrics",
                "GPUs and MIG instances whose utilisation is stuck: other metrics show work that it does not, or none at all. "
                "Nothing is known of their use until the exporter is repaired.",
                "none",
                q.contradictions(),
                ALARM,
                span=8,
            ),
            lines(
                "GPUs and MIG instances by use",
                "Each is busy, or held and idle, or free; or idle, and its holder is not known.",
                "none",
                use(q.HOST),
                span=14,
                stacked=True,
                colors=USE_COLORS,
            ),
            alerts(10),
            rows(
                "Hosts",
                "Each host as it is now. Its name leads to its own dashboard.",
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
            section("Who holds what"),
            rows(
                "Holders",
                "Processes, containers, jobs and pods that have a GPU or MIG instance now.",
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
                "What schedulers say runs: the GPUs and instances that it is on, and what these do, with all that share them.",
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
            section("Use"),
            lines(
                "Busy and computing",
                "On average over all GPUs and instances: the time that a kernel ran, and the share of the SMs that had work.",
                "percentunit",
                [(f"avg({q.busy()})", "busy"), (f"avg({q.device('gpu:compute_active_ratio')})", "computing")],
                most=1,
            ),
            lines(
                "Power",
                "What the GPUs draw, all together, and what they may.",
                "watt",
                [
                    (f"sum({q.whole('gpu:power_watts')})", "drawn"),
                    (f"sum({q.whole('gpu:power_limit_watts')})", "allowed"),
                ],
            ),
            lines(
                "PCIe and NVLink",
                "What goes over the GPUs' PCIe and NVLink, both directions, all GPUs together.",
                "Bps",
                [
                    (f"sum({q.whole('gpu:pcie_bytes_per_second')})", "PCIe"),
                    (f"sum({q.whole('gpu:nvlink_bytes_per_second')})", "NVLink"),
                ],
            ),
            lines(
                "Memory in use",
                "The share of the GPUs' memory that is taken, by model.",
                "percentunit",
                [(device_memory[0], "{{model}}")],
                most=1,
            ),
            lines(
                "Video engines",
                "GPUs by how busy their encoders and decoders are: the average of all, and the busiest one.",
                "percentunit",
                [
                    (f"avg({q.whole('gpu:codec_busy_ratio')})", "average"),
                    (f"max({q.whole('gpu:codec_busy_ratio')})", "busiest"),
                ],
                most=1,
            ),
            rows(
                "Models and drivers",
                "What the fleet is made of. Two drivers on one model want a reason.",
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
                "The ten hottest now.",
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
                "Lost", "GPUs that the driver has lost, or lists no more.", "none", f"sum({q.whole('gpu:lost')})", ALARM
            ),
            number(
                "Throttled by heat",
                "GPUs whose clocks are held down because they are hot.",
                "none",
                f"sum({q.throttled_by_heat()})",
                ALARM,
            ),
            number(
                "Throttled by power",
                "GPUs whose clocks are held down by their power limit, or by the supply, and not by heat.",
                "none",
                f"sum({q.throttled_by_power()})",
                WARN,
            ),
            number(
                "Rows to be remapped",
                "GPUs that replace bad memory when they are next reset.",
                "none",
                f"sum({q.whole('gpu:row_remap_pending')})",
                WARN,
            ),
            number(
                "Layout drift",
                "GPUs that are not shared as gpu_layout says.",
                "none",
                f"sum({q.whole('gpu:layout_drift')})",
                WARN,
            ),
            number(
                "MPS daemons down",
                "Daemons of MPS that the layout wants, and that do not run.",
                "none",
                f"sum(max by ({q.KEY}, daemon) (gpu:mps_daemon_up{{{q.HOST}}}) == bool 0)",
                ALARM,
            ),
            rows(
                "Xid errors",
                "Errors that the driver reported in the time shown: the most of one number within five minutes.",
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
