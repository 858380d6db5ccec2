# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dashboard: the fleet's costs and waste."""

from __future__ import annotations

import queries as q
from kit import GREEN, ORANGE, PURPLE, RED, board, fill, lines, number, rows, total
from parts import GPU_LINK, HOST_LINK, MONEY, USE_COLORS


def cost():
    idle, held, unheld = (q.lost_money(state) for state in (q.is_idle(), q.held_idle(), q.free()))
    unknown = f"({q.unknown()}) * 0 + 1"
    works = q.of_workload("gpu:busy_ratio")
    priced = (
        "Needs prices in the inventory (gpu_monitoring_prices). A MIG instance costs its share of the GPU by memory. "
        "Memory outside of instances is shown as not carved."
    )
    return fill(
        board("cost", "GPU costs", "Cost of the fleet, and how much of it is wasted.", span="now-7d"),
        [
            number(
                "Fleet cost per hour",
                priced,
                MONEY,
                f"sum({q.gpu_price()})",
                span=6,
            ),
            number(
                "Idle cost per hour",
                "Cost of GPUs and instances that are idle now, held or free.",
                MONEY,
                f"sum({idle})",
                ((None, ORANGE),),
                span=6,
            ),
            number(
                "Held idle cost per hour",
                "Cost of GPUs and instances that are held but idle.",
                MONEY,
                f"sum({held})",
                ((None, GREEN), (0.01, ORANGE)),
                span=6,
            ),
            total(
                "Idle cost in the time range",
                "Cost of idle GPUs and instances in the time range.",
                MONEY,
                q.over_range(f"sum({idle})"),
                ((None, RED),),
                span=6,
            ),
            lines(
                "Costs per hour",
                "Cost of GPUs and instances that are busy, held but idle, or free, or idle with an unknown holder, and of "
                "memory that is in no instance.",
                MONEY,
                [
                    (f"sum({q.lost_money(f'({q.busy()} >= bool {q.BUSY_FROM})')})", "busy"),
                    (f"sum({held})", "held, idle"),
                    (f"sum({unheld})", "free"),
                    (f"sum({q.lost_money(unknown)})", "idle, holder unknown"),
                    (f"sum({q.not_carved()})", "not carved"),
                ],
                span=24,
                stacked=True,
                colors={**USE_COLORS, "not carved": PURPLE},
            ),
            rows(
                "Idle cost by host in the time range",
                "Cost by host: idle GPUs and instances that are held, all idle ones, and memory outside of instances.",
                MONEY,
                [
                    q.over_range(f"sum by (host) ({held})"),
                    q.over_range(f"sum by (host) ({idle})"),
                    q.over_range(f"sum by (host) ({q.not_carved()})"),
                    f"sum by (host) ({q.gpu_price()})",
                ],
                [
                    ("host", "Host", "string", HOST_LINK),
                    ("Value #A", "Held, idle", MONEY),
                    ("Value #B", "Idle, total", MONEY),
                    ("Value #C", "Not carved", MONEY),
                    ("Value #D", "Host per hour", MONEY),
                ],
                span=12,
                height=9,
            ),
            rows(
                "Most expensive idle GPUs",
                "GPUs and instances that are held but idle now, by cost per hour.",
                MONEY,
                [f"topk(20, sum by (host, gpu_index, mig_profile, mig_instance) ({held}) > 0)"],
                [
                    ("host", "Host", "string", HOST_LINK),
                    ("gpu_index", "GPU", "string", GPU_LINK),
                    ("mig_profile", "Profile", "string"),
                    ("mig_instance", "Instance", "string"),
                    ("Value", "Per hour", MONEY),
                ],
                span=12,
                height=9,
            ),
            lines(
                "GPUs by class, last audit",
                "GPUs by class of the last audit. Serve audit.prom with node_exporter (docs/audit.md).",
                "none",
                [("gpu:audit_gpus", "{{class}}")],
                stacked=True,
            ),
            lines(
                "Cost per month by class, last audit",
                "Cost per month by class of the last audit. It needs gpu_audit_prices or gpu_monitoring_prices.",
                MONEY,
                [("gpu:audit_cost_per_month", "{{class}}")],
                stacked=True,
            ),
            lines(
                "Reserved and unused GPUs by team, last audit",
                "GPUs that the workloads of each team (gpu_owners) hold without need, in the last audit.",
                "none",
                [
                    (
                        'sum by (owner_team) (label_replace(gpu:audit_owner_gpus{class=~"resizable|idle|standby|stalled"}, '
                        '"owner_team", "no team", "owner_team", ""))',
                        "{{owner_team}}",
                    )
                ],
                span=24,
                stacked=True,
            ),
            lines(
                "Cost by model per hour",
                "Cost of the GPUs of each model.",
                MONEY,
                [(f"sum by (model) (max by (host, gpu_uuid, model) (gpu:price_per_hour{{{q.HOST}}}))", "{{model}}")],
                stacked=True,
            ),
            rows(
                "Cost of jobs and pods per hour",
                "Cost of the GPUs of each job and pod now. Those that share a GPU share its price equally.",
                MONEY,
                [
                    f"sum by (workload) (group by (workload, {q.KEY}) ({works}) * on ({q.KEY}) group_left () "
                    f"(max by ({q.KEY}) ({q.price()}) / count by ({q.KEY}) ({works})))"
                ],
                [("workload", "Job or pod", "string"), ("Value", "Per hour", MONEY)],
                span=12,
            ),
            rows(
                "GPUs without a price",
                "GPUs whose model matches no line of gpu_monitoring_prices.",
                "none",
                [
                    f"count by (model) (group by ({q.WHOLE}, model) (gpu:info{{{q.HOST}}}) "
                    f"unless on (host, gpu_uuid) gpu:price_per_hour{{{q.HOST}}})"
                ],
                [("model", "Model", "string"), ("Value", "GPUs", "none")],
                span=12,
                none="none",
            ),
        ],
    )
