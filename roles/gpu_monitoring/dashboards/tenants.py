# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tenants, jobs and pods."""

from __future__ import annotations

import queries as q
from kit import GREEN, ORANGE, RED, bars, board, fill, lines, number, rows, section, total
from parts import GPU_LINK, HOST_LINK, WARN


def tenants():
    where = q.HOST + ', tenant=~"$tenant"'
    by = "host, gpu_index, tenant"
    used, limit = (f"max by ({by}) (gpu:tenant_memory_{what}_bytes{{{where}}})" for what in ("used", "limit"))
    denied = f"max by ({by}) (increase(gpu:tenant_denied_total{{{where}}}[$__range]))"
    ratio = f"{used} / {limit}"
    legend = "{{tenant}} on {{host}} GPU {{gpu_index}}"
    return fill(
        board(
            "tenant",
            "GPU tenants",
            "Tenants of shared GPUs, and the jobs and pods of schedulers: their quotas and what they use.",
            tenant=True,
        ),
        [
            number(
                "Tenants",
                "Tenants of shared GPUs (sharing: vgpu).",
                "none",
                f"count(group by (host, tenant) (gpu:tenant_memory_limit_bytes{{{where}}}))",
                span=6,
            ),
            number(
                "Memory given",
                "The quotas, all together.",
                "bytes",
                f"sum({limit})",
                span=6,
            ),
            number(
                "Memory used",
                "What tenants have of it.",
                "bytes",
                f"sum({used})",
                span=6,
            ),
            total(
                "Refused",
                "Allocations beyond a quota that were refused in the time shown.",
                "none",
                f"sum({denied})",
                WARN,
                span=6,
            ),
            bars(
                "Quota used",
                "Each tenant's memory as a share of its quota, now.",
                "percentunit",
                f"sort_desc({ratio})",
                legend,
                most=1,
                colors=((None, GREEN), (0.9, ORANGE), (0.99, RED)),
                height=10,
            ),
            rows(
                "Tenants",
                "What each has, and may have, on each of its GPUs.",
                "none",
                [
                    used,
                    limit,
                    f"max by ({by}) (gpu:tenant_sm_limit_ratio{{{where}}})",
                    denied,
                ],
                [
                    ("tenant", "Tenant", "string"),
                    ("host", "Host", "string", HOST_LINK),
                    ("gpu_index", "GPU", "string", GPU_LINK),
                    ("Value #A", "Memory used", "bytes"),
                    ("Value #B", "Quota", "bytes"),
                    ("Value #C", "Share of SMs", "percentunit"),
                    ("Value #D", "Refused", "none"),
                ],
                span=12,
                height=10,
            ),
            lines(
                "Memory",
                "What each tenant had, over the time.",
                "bytes",
                [(used, legend)],
            ),
            lines(
                "Refused",
                "Allocations beyond a quota, per minute.",
                "none",
                [(f"60 * max by ({by}) (rate(gpu:tenant_denied_total{{{where}}}[$__rate_interval]))", legend)],
            ),
            section("Jobs and pods"),
            lines(
                "Busy",
                "The time that a kernel, its own or another's, ran on the devices that each job or pod is on; an average.",
                "percentunit",
                [(f"avg by (workload) ({q.of_workload('gpu:busy_ratio')})", "{{workload}}")],
                most=1,
            ),
            lines(
                "Memory of the GPUs of jobs and pods",
                "What is taken of the GPUs and instances that each is on, by all that share them: exporters know no more.",
                "bytes",
                [(f"sum by (workload) ({q.of_workload('gpu:memory_used_bytes')})", "{{workload}}")],
            ),
        ],
    )
