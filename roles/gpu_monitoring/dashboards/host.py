# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dashboard: one host."""

from __future__ import annotations

import queries as q
from kit import GREEN, ON_HOST, RED, board, fill, lines, number, rows, states
from parts import GPU_LINK, USE_COLORS, WARN, alerts, device_lines, use


def host():
    return fill(
        board(
            "host",
            "GPU host",
            "GPUs and MIG instances of one host, their holders and health.",
            one_host=True,
            gpu=True,
        ),
        [
            number("GPUs", "Number of GPUs that the exporter reports.", "none", q.gpus(q.GPU)),
            number(
                "Busy",
                "GPUs and MIG instances that run kernels for 5 % of the time or more.",
                "none",
                q.busy_devices(q.GPU),
                ((None, GREEN),),
            ),
            number(
                "Held, idle",
                "GPUs and MIG instances that are held but idle now.",
                "none",
                f"sum({q.held_idle(q.GPU)})",
                WARN,
            ),
            number("Free", "GPUs and MIG instances without a holder.", "none", f"sum({q.free(q.GPU)})"),
            number(
                "Exporter",
                "1 if all exporters of the host answer.",
                "none",
                f"min({q.EXPORTERS})",
                ((None, RED), (1, GREEN)),
            ),
            number(
                "Layout drift",
                "GPUs whose layout differs from gpu_layout.",
                "none",
                f"sum({q.whole('gpu:layout_drift', q.GPU)})",
                WARN,
            ),
            rows(
                "GPUs and MIG instances",
                "Current state. The GPU index links to the dashboard of the GPU.",
                "none",
                [
                    q.device("gpu:busy_ratio", q.GPU, "host, gpu_index, model, mig_profile, mig_instance"),
                    q.device("gpu:compute_active_ratio", q.GPU, "host, gpu_index, model, mig_profile, mig_instance"),
                    q.device("gpu:memory_used_bytes", q.GPU, "host, gpu_index, model, mig_profile, mig_instance"),
                    q.device("gpu:memory_total_bytes", q.GPU, "host, gpu_index, model, mig_profile, mig_instance"),
                    q.device("gpu:processes", q.GPU, "host, gpu_index, model, mig_profile, mig_instance"),
                ],
                [
                    ("host", "Host", "string"),
                    ("gpu_index", "GPU", "string", GPU_LINK),
                    ("model", "Model", "string"),
                    ("mig_profile", "Profile", "string"),
                    ("mig_instance", "Instance", "string"),
                    ("Value #A", "Busy", "percentunit"),
                    ("Value #B", "Computing", "percentunit"),
                    ("Value #C", "Memory used", "bytes"),
                    ("Value #D", "Memory", "bytes"),
                    ("Value #E", "Processes", "none"),
                ],
                height=9,
            ),
            lines(
                "GPUs and MIG instances by use",
                "Busy, held but idle, free, or idle with an unknown holder.",
                "none",
                use(q.GPU),
                stacked=True,
                colors=USE_COLORS,
            ),
            lines(
                "Busy",
                "Share of time with a kernel running, per GPU and MIG instance.",
                "percentunit",
                [(q.busy(q.GPU), ON_HOST)],
                most=1,
            ),
            *device_lines(q.GPU, ON_HOST),
            rows(
                "Holders",
                "Processes, containers, jobs and pods that hold a GPU or MIG instance.",
                "none",
                [
                    f"max by (gpu_index, mig_profile, mig_instance, kind) (gpu:held{{{q.GPU}}} > 0) or label_replace("
                    f'max by (gpu_index, mig_profile, mig_instance) (gpu:processes{{{q.GPU}}} > 0), "kind", "process", "", "")'
                ],
                [
                    ("gpu_index", "GPU", "string"),
                    ("mig_profile", "Profile", "string"),
                    ("mig_instance", "Instance", "string"),
                    ("kind", "Held by", "string"),
                    ("Value", "How many", "none"),
                ],
                span=12,
            ),
            rows(
                "Layout",
                "Sharing of each GPU in the layout, and the number of differences to NVML.",
                "none",
                [
                    f"max by (gpu_index, sharing) (gpu:layout_sharing_info{{{q.GPU}}})",
                    f"max by (gpu_index) (gpu:layout_differences{{{q.GPU}}})",
                ],
                [("gpu_index", "GPU", "string"), ("sharing", "Sharing", "string"), ("Value #B", "Differences", "none")],
                span=12,
            ),
            states(
                "MPS daemons",
                "When the MPS daemons of the layout were up.",
                f"max by (daemon, gpu_index) (gpu:mps_daemon_up{{{q.GPU}}})",
                "{{daemon}} on GPU {{gpu_index}}",
                span=12,
                words=(("0", "down", RED), ("1", "up", GREEN)),
            ),
            alerts(12, 'host=~"$host"'),
            lines(
                "MPS servers that died",
                "MPS servers that died within 15 minutes, with their clients. Their daemon may still be up.",
                "none",
                [
                    (
                        f"max by (daemon, gpu_index) (increase(gpu:mps_server_deaths_total{{{q.GPU}}}[15m]))",
                        "{{daemon}} on GPU {{gpu_index}}",
                    )
                ],
                span=12,
            ),
        ],
    )
