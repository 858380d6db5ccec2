# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""One GPU and its MIG instances."""

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
            "One GPU and its instances: what kind of work it does, and how healthy it is.",
            one_host=True,
            gpu=True,
        ),
        [
            number(
                "Busy",
                "The time that a kernel ran: says that something runs, not how much of the GPU it takes.",
                "percentunit",
                f"avg({q.busy(q.GPU)})",
                ((None, BLUE),),
                decimals=0,
            ),
            number(
                "Computing",
                "The share of the SMs that had work; where it is not known, the time that a kernel ran.",
                "percentunit",
                f"avg({q.device('gpu:compute_active_ratio', q.GPU)})",
                decimals=0,
            ),
            number(
                "Memory",
                "The share of the memory that is taken.",
                "percentunit",
                q.memory_ratio(where=q.GPU),
                ((None, BLUE), (0.9, ORANGE), (0.97, RED)),
                decimals=0,
            ),
            number("Power", "What it draws.", "watt", f"sum({q.whole('gpu:power_watts', q.GPU)})", decimals=0),
            number(
                "Temperature",
                "The hottest of the GPUs chosen.",
                "celsius",
                f"max({q.whole('gpu:temperature_celsius', q.GPU)})",
                ((None, GREEN), (80, ORANGE), (90, RED)),
                decimals=0,
            ),
            number("Processes", "Processes on it.", "none", f"sum({q.device('gpu:processes', q.GPU)})"),
            lines("Busy", "The time that a kernel ran.", "percentunit", [(q.busy(q.GPU), ON_HOST)], most=1),
            lines(
                "Computing",
                "The share of the SMs that had work. Far below busy: small or serial kernels.",
                "percentunit",
                [(q.device("gpu:compute_active_ratio", q.GPU), ON_HOST)],
                most=1,
            ),
            lines(
                "Tensor cores",
                "The time that they were at work: what tells training and inference from the rest.",
                "percentunit",
                [(q.device("gpu:tensor_active_ratio", q.GPU), ON_HOST)],
                most=1,
            ),
            lines(
                "Memory bandwidth",
                "The time that memory was read or written. Near the top: more SMs would not help.",
                "percentunit",
                [(q.device("gpu:memory_bandwidth_active_ratio", q.GPU), ON_HOST)],
                most=1,
            ),
            *device_lines(q.GPU, ON_HOST),
            section("Health"),
            lines(
                "New errors",
                "Errors that were counted within an hour, by kind: ECC, PCIe replays, remapped rows.",
                "none",
                [
                    (
                        f"max by (gpu_index, kind) (increase(gpu:errors_total{{{q.GPU}}}[1h]))",
                        "GPU {{gpu_index}} {{kind}}",
                    )
                ],
            ),
            rows(
                "Errors in all",
                "As the driver counts them, the volatile ones since it was loaded.",
                "none",
                [errors],
                [("gpu_index", "GPU", "string"), ("kind", "Kind", "string"), ("Value", "Count", "none")],
                span=12,
            ),
            rows(
                "Xid errors",
                "Errors that the driver reported in the time shown: the most of one number within five minutes.",
                "none",
                [f"max by (gpu_index, xid) (max_over_time(gpu:xid_errors:count5m{{{q.GPU}}}[$__range]))"],
                [("gpu_index", "GPU", "string"), ("xid", "Xid", "string"), ("Value", "In 5 minutes", "none")],
                span=12,
                none="none",
            ),
            rows(
                "State",
                "1 where it is lost, has rows to remap at its next reset, could not remap one, or is not shared as laid out.",
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
