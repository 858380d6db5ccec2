# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dashboard: tenants, jobs and pods."""

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
            "Quotas and use of tenants, and use of jobs and pods.",
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
                "Memory quota",
                "Sum of all quotas.",
                "bytes",
                f"sum({limit})",
                span=6,
            ),
            number(
                "Memory used",
                "Memory that tenants use.",
                "bytes",
                f"sum({used})",
                span=6,
            ),
            total(
                "Denied",
                "Allocations denied in the time range because the quota was exhausted.",
                "none",
                f"sum({denied})",
                WARN,
                span=6,
            ),
            bars(
                "Quota used",
                "Current memory of each tenant as a share of its quota.",
                "percentunit",
                f"sort_desc({ratio})",
                legend,
                most=1,
                colors=((None, GREEN), (0.9, ORANGE), (0.99, RED)),
                height=10,
            ),
            rows(
                "Tenants",
                "Use and quota of each tenant on each of its GPUs.",
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
                    ("Value #D", "Denied", "none"),
                ],
                span=12,
                height=10,
            ),
            lines(
                "Memory",
                "Memory use of each tenant over time.",
                "bytes",
                [(used, legend)],
            ),
            lines(
                "Denied per minute",
                "Denied allocations per minute.",
                "none",
                [(f"60 * max by ({by}) (rate(gpu:tenant_denied_total{{{where}}}[$__rate_interval]))", legend)],
            ),
            section("Online and offline tenants"),
            lines(
                "Online wait",
                "99th percentile of the time that an online launch waits for an offline kernel (policy: colocate).",
                "s",
                [
                    (
                        f"histogram_quantile(0.99, max by ({by}, le) "
                        f"(rate(gpu:tenant_wait_seconds_bucket{{{where}}}[$__rate_interval])))",
                        legend,
                    )
                ],
            ),
            lines(
                "GPU time",
                "Share of GPU time that each tenant's kernels use. The tenants' own programs count it.",
                "percentunit",
                [
                    (
                        f"max by ({by}, latency) (rate(gpu:tenant_gpu_seconds_total{{{where}}}[$__rate_interval]))",
                        legend + " {{latency}}",
                    )
                ],
            ),
            lines(
                "Turns given up per minute",
                "How often offline tenants begin to wait for online work.",
                "none",
                [(f"60 * max by ({by}) (rate(gpu:tenant_gave_way_total{{{where}}}[$__rate_interval]))", legend)],
            ),
            section("Leases"),
            number(
                "Leases",
                "Current leases of all accounts.",
                "none",
                f"sum({_of_account('running')})",
                span=6,
            ),
            number(
                "Waiting",
                "Requests that wait for a lease.",
                "none",
                f"sum({_of_account('waiting')})",
                WARN,
                span=6,
            ),
            number(
                "Pool leased",
                "Leased memory as a share of the memory that entries offer.",
                "percentunit",
                f"sum({_of_account('memory_bytes')}) / sum({q.whole('gpu:lease_pool_memory_bytes')})",
                span=6,
            ),
            number(
                "Idle instances",
                "Instances of ended leases. The next lease uses or replaces them.",
                "none",
                f"sum(max by (host, gpu_uuid, mig_profile) (gpu:lease_idle_instances{{{q.HOST}}}))",
                span=6,
            ),
            rows(
                "Current leases",
                "Account, GPU part and end of each lease.",
                "none",
                [
                    "1000 * max by (account, lease, size, host, gpu_index) "
                    f"(gpu:lease_end_timestamp_seconds{{{q.HOST}}})"
                ],
                [
                    ("account", "Account", "string"),
                    ("lease", "Lease", "string"),
                    ("size", "Size", "string"),
                    ("host", "Host", "string", HOST_LINK),
                    ("gpu_index", "GPU", "string", GPU_LINK),
                    ("Value", "Until", "dateTimeAsIso"),
                ],
                span=12,
            ),
            lines(
                "Leased memory",
                "Leased memory by account, and the memory that entries offer.",
                "bytes",
                [
                    (f"sum by (account) ({_of_account('memory_bytes')})", "{{account}}"),
                    (f"sum({q.whole('gpu:lease_pool_memory_bytes')})", "offered"),
                ],
            ),
            section("Jobs and pods"),
            lines(
                "Busy",
                "Average share of time with a kernel running on the devices of each job or pod, including other users' kernels.",
                "percentunit",
                [(f"avg by (workload) ({q.of_workload('gpu:busy_ratio')})", "{{workload}}")],
                most=1,
            ),
            lines(
                "GPU memory used by jobs and pods",
                "Used memory of the GPUs and instances of each job or pod, including other users' memory.",
                "bytes",
                [(f"sum by (workload) ({q.of_workload('gpu:memory_used_bytes')})", "{{workload}}")],
            ),
        ],
    )


def _of_account(what):
    """Return a query for one value per account and host."""
    return f"max by (host, account) (gpu:lease_{what}{{{q.HOST}}})"
