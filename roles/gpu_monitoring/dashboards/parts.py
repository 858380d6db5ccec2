# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What several dashboards have in common."""

from __future__ import annotations

import queries as q
from kit import BLUE, GREEN, GREY, ORANGE, RED, lines, rows, states

#: The role puts the currency of gpu_monitoring_currency in its place.
MONEY = "currencyUSD"
ALARM = ((None, GREEN), (1, RED))
WARN = ((None, GREEN), (1, ORANGE))
AS_SHOWN = "${datasource:queryparam}&${__url_time_range}&var-host=${__data.fields.Host}"
HOST_LINK = f"/d/openfleet-gpu-host?{AS_SHOWN}"
GPU_LINK = f"/d/openfleet-gpu-gpu?{AS_SHOWN}&var-gpu=${{__data.fields.GPU}}"
USE_COLORS = {"busy": GREEN, "held, idle": ORANGE, "free": BLUE, "idle, holder not known": GREY}


def use(where):
    return [
        (q.busy_devices(where), "busy"),
        (f"sum({q.held_idle(where)})", "held, idle"),
        (f"sum({q.free(where)})", "free"),
        (f"count({q.unknown(where)})", "idle, holder not known"),
    ]


def alerts(span, where='host=~"$host|"'):
    firing = f'ALERTS{{alertname=~"Gpu.+", alertstate="firing", {where}}}'
    return rows(
        "Alerts that fire",
        "What is wrong now, and where. docs/alerts.md says what to do on each.",
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
    """What a host's and a GPU's dashboard both show."""
    per_gpu = legend.partition(" {{mig_profile}}")[0]
    return [
        lines(
            "Memory in use",
            "What is taken of each GPU's and instance's memory.",
            "bytes",
            [(q.device("gpu:memory_used_bytes", where), legend)],
        ),
        lines("Power", "What each GPU draws.", "watt", [(q.whole("gpu:power_watts", where), per_gpu)]),
        lines(
            "PCIe and NVLink",
            "What goes over each GPU's PCIe and NVLink, both directions.",
            "Bps",
            [
                (q.whole("gpu:pcie_bytes_per_second", where), per_gpu + " PCIe"),
                (q.whole("gpu:nvlink_bytes_per_second", where), per_gpu + " NVLink"),
            ],
        ),
        lines(
            "Video engines",
            "How busy the encoders or decoders of each GPU are, whichever are busier.",
            "percentunit",
            [(q.whole("gpu:codec_busy_ratio", where), per_gpu)],
            most=1,
        ),
        lines("Temperature", "Of each GPU.", "celsius", [(q.whole("gpu:temperature_celsius", where), per_gpu)]),
        states(
            "Throttled",
            "When a GPU's clocks were held down, and why.",
            f"max by (gpu_index, reason) (gpu:throttled{{{where}}}) > 0 or max by (gpu_index, reason) (gpu:throttled{{{where}}})",
            "GPU {{gpu_index}} {{reason}}",
            span=12,
        ),
    ]
