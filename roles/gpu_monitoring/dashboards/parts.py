# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Panels and constants that several dashboards share."""

from __future__ import annotations

import queries as q
from kit import BLUE, GREEN, GREY, ORANGE, RED, lines, rows, states

#: The role replaces this value with the currency in gpu_monitoring_currency.
MONEY = "currencyUSD"
ALARM = ((None, GREEN), (1, RED))
WARN = ((None, GREEN), (1, ORANGE))
AS_SHOWN = "${datasource:queryparam}&${__url_time_range}&var-host=${__data.fields.Host}"
HOST_LINK = f"/d/openfleet-gpu-host?{AS_SHOWN}"
GPU_LINK = f"/d/openfleet-gpu-gpu?{AS_SHOWN}&var-gpu=${{__data.fields.GPU}}"
USE_COLORS = {"busy": GREEN, "held, idle": ORANGE, "free": BLUE, "idle, holder unknown": GREY}


def use(where):
    return [
        (q.busy_devices(where), "busy"),
        (f"sum({q.held_idle(where)})", "held, idle"),
        (f"sum({q.free(where)})", "free"),
        (f"count({q.unknown(where)})", "idle, holder unknown"),
    ]


def alerts(span, where='host=~"$host|"'):
    firing = f'ALERTS{{alertname=~"Gpu.+", alertstate="firing", {where}}}'
    return rows(
        "Firing alerts",
        "Alerts that fire now. docs/alerts.md says what to do.",
        "none",
        [f"max by (alertname, severity, host, gpu_index) ({firing})"],
        [
            ("severity", "Severity", "string"),
            ("alertname", "Alert", "string"),
            ("host", "Host", "string", HOST_LINK),
            ("gpu_index", "GPU", "string"),
        ],
        span=span,
        none="none",
    )


def device_lines(where, legend):
    """Return panels that the host dashboard and the GPU dashboard have in common."""
    per_gpu = legend.partition(" {{mig_profile}}")[0]
    return [
        lines(
            "Memory in use",
            "Used memory of each GPU and instance.",
            "bytes",
            [(q.device("gpu:memory_used_bytes", where), legend)],
        ),
        lines("Power", "Power draw of each GPU.", "watt", [(q.whole("gpu:power_watts", where), per_gpu)]),
        lines(
            "PCIe and NVLink",
            "PCIe and NVLink traffic of each GPU, both directions added.",
            "Bps",
            [
                (q.whole("gpu:pcie_bytes_per_second", where), per_gpu + " PCIe"),
                (q.whole("gpu:nvlink_bytes_per_second", where), per_gpu + " NVLink"),
            ],
        ),
        lines(
            "Video engines",
            "Utilization of each GPU's encoders or decoders, whichever is higher.",
            "percentunit",
            [(q.whole("gpu:codec_busy_ratio", where), per_gpu)],
            most=1,
        ),
        lines(
            "Temperature", "Temperature of each GPU.", "celsius", [(q.whole("gpu:temperature_celsius", where), per_gpu)]
        ),
        states(
            "Throttled",
            "When and why clocks were throttled.",
            f"max by (gpu_index, reason) (gpu:throttled{{{where}}}) > 0 or max by (gpu_index, reason) (gpu:throttled{{{where}}})",
            "GPU {{gpu_index}} {{reason}}",
            span=12,
        ),
    ]
