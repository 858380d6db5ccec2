# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Money."""

from __future__ import annotations

import queries as q
from kit import GREEN, ORANGE, PURPLE, RED, board, fill, lines, number, rows, total
from parts import GPU_LINK, HOST_LINK, MONEY, USE_COLORS


def cost():
    idle, held, unheld = (q.lost_money(state) for state in (q.is_idle(), q.held_idle(), q.free()))
    unknown = f"({q.unknown()}) * 0 + 1"
    works = q.of_workload("gpu:busy_ratio")
    priced = (
        "Where the inventory has prices (gpu_monitoring_prices). A MIG instance has its share of its GPU's, by memory; "
        "what is in no instance is not carved."
    )
    return fill(
        board("cost", "GPU costs", "What the fleet costs, and how much of that is wasted.", span="now-7d"),
        [
            number(
                "The fleet costs, per hour",
                priced,
                MONEY,
                f"sum({q.gpu_price()})",
                span=6,
            ),
            number(
                "Idle, per hour",
                "What GPUs and instances cost that do nothing now, held or free.",
                MONEY,
                f"sum({idle})",
                ((None, ORANGE),),
                span=6,
            ),
            number(
                "Held and idle, per hour",
                "The part of it that is held and not used.",
                MONEY,
                f"sum({held})",
                ((None, GREEN), (0.01, ORANGE)),
                span=6,
            ),
            total(
                "Idle, in the time shown",
                "What was paid in that time for GPUs and instances that did nothing.",
                MONEY,
                q.over_range(f"sum({idle})"),
                ((None, RED),),
                span=6,
            ),
            lines(
                "Costs per hour",
                "What is paid for GPUs and instances that work, that are held idle, and that are free; for GPUs' memory "
                "that is in no instance; and for what is idle while its holder is not known.",
                MONEY,
                [
                    (f"sum({q.lost_money(f'({q.busy()} >= bool {q.BUSY_FROM})')})", "busy"),
                    (f"sum({held})", "held, idle"),
                    (f"sum({unheld})", "free"),
                    (f"sum({q.lost_money(unknown)})", "idle, holder not known"),
                    (f"sum({q.not_carved()})", "not carved"),
                ],
                span=24,
                stacked=True,
                colors={**USE_COLORS, "not carved": PURPLE},
            ),
            rows(
                "Idle by host, in the time shown",
                "What each host's idle GPUs and instances cost in that time: those that were held, all, and what is not carved.",
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
                    ("Value #B", "Idle in all", MONEY),
                    ("Value #C", "Not carved", MONEY),
                    ("Value #D", "The host, per hour", MONEY),
                ],
                span=12,
                height=9,
            ),
            rows(
                "Dearest idle holdings",
                "GPUs and instances that are held and not used now, by what they cost per hour.",
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
                "By model, per hour",
                "What the GPUs of each model cost.",
                MONEY,
                [(f"sum by (model) (max by (host, gpu_uuid, model) (gpu:price_per_hour{{{q.HOST}}}))", "{{model}}")],
                stacked=True,
            ),
            rows(
                "Jobs and pods, per hour",
                "What each has of the fleet now, at the inventory's prices. Those that share a GPU share its price equally.",
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
                "Their model matches no line of gpu_monitoring_prices.",
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
