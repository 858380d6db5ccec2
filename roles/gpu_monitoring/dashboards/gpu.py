# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dashboard: one GPU and its MIG instances."""

from __future__ import annotations

import queries as q
from kit import BLUE, GREEN, ON_HOST, ORANGE, RED, board, fill, lines, number, rows, section
from parts import device_lines


def gpu():
    errors = f"max by (gpu_index, kind) (gpu:errors_total{{{q.GPU}}})"
    return fill(
        board(
            "gpu",
            "GPU and MIG instances",
            "Utilization and health of one GPU and its instances.",
            one_host=True,
            gpu=True,
        ),
        [
            number(
                "Busy",
                "Share of time with a kernel running, regardless of how much of the GPU the kernel uses.",
                "percentunit",
                f"avg({q.busy(q.GPU)})",
                ((None, BLUE),),
                decimals=0,
            ),
            number(
                "Computing",
                "Share of active SMs. If unknown: share of time with a kernel running.",
                "percentunit",
                f"avg({q.device('gpu:compute_active_ratio', q.GPU)})",
                decimals=0,
            ),
            number(
                "Memory",
                "Share of memory in use.",
                "percentunit",
                q.memory_ratio(where=q.GPU),
                ((None, BLUE), (0.9, ORANGE), (0.97, RED)),
                decimals=0,
            ),
            number("Power", "Power draw.", "watt", f"sum({q.whole('gpu:power_watts', q.GPU)})", decimals=0),
            number(
                "Temperature",
                "Temperature of the hottest selected GPU.",
                "celsius",
                f"max({q.whole('gpu:temperature_celsius', q.GPU)})",
                ((None, GREEN), (80, ORANGE), (90, RED)),
                decimals=0,
            ),
            number("Processes", "Number of processes on the GPU.", "none", f"sum({q.device('gpu:processes', q.GPU)})"),
            lines("Busy", "Share of time with a kernel running.", "percentunit", [(q.busy(q.GPU), ON_HOST)], most=1),
            lines(
                "Computing",
                "Share of active SMs. Far below busy means small or serial kernels.",
                "percentunit",
                [(q.device("gpu:compute_active_ratio", q.GPU), ON_HOST)],
                most=1,
            ),
            lines(
                "Tensor cores",
                "Share of time with active tensor cores. Training and inference use them.",
                "percentunit",
                [(q.device("gpu:tensor_active_ratio", q.GPU), ON_HOST)],
                most=1,
            ),
            lines(
                "Memory bandwidth",
                "Share of time with memory reads or writes. Near 100 %, more SMs would not help.",
                "percentunit",
                [(q.device("gpu:memory_bandwidth_active_ratio", q.GPU), ON_HOST)],
                most=1,
            ),
            *device_lines(q.GPU, ON_HOST),
            section("Health"),
            lines(
                "New errors",
                "Errors within an hour by kind: ECC, PCIe replays, remapped rows.",
                "none",
                [
                    (
                        f"max by (gpu_index, kind) (increase(gpu:errors_total{{{q.GPU}}}[1h]))",
                        "GPU {{gpu_index}} {{kind}}",
                    )
                ],
            ),
            rows(
                "Total errors",
                "Error counters of the driver. Volatile counters start when the driver is loaded.",
                "none",
                [errors],
                [("gpu_index", "GPU", "string"), ("kind", "Kind", "string"), ("Value", "Count", "none")],
                span=12,
            ),
            rows(
                "Xid errors",
                "XIDs reported in the time range: the highest count within five minutes.",
                "none",
                [f"max by (gpu_index, xid) (max_over_time(gpu:xid_errors:count5m{{{q.GPU}}}[$__range]))"],
                [("gpu_index", "GPU", "string"), ("xid", "Xid", "string"), ("Value", "In 5 minutes", "none")],
                span=12,
                none="none",
            ),
            rows(
                "State",
                "1 if the GPU is lost, needs a reset to remap a row, could not remap a row, or has layout drift.",
                "none",
                [
                    f"max by (gpu_index) ({name}{{{q.GPU}}})"
                    for name in ("gpu:lost", "gpu:row_remap_pending", "gpu:row_remap_failed", "gpu:layout_drift")
                ],
                [
                    ("gpu_index", "GPU", "string"),
                    ("Value #A", "Lost", "none"),
                    ("Value #B", "Remap pending", "none"),
                    ("Value #C", "Remap failed", "none"),
                    ("Value #D", "Drift", "none"),
                ],
                span=12,
            ),
        ],
    )
