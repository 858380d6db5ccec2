# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the signs of work and their groups.

A single sign of work means that a GPU is not idle. The role gpu_monitoring's recording rules record the highest sign
(`gpu:activity_ratio:max5m`). Hosts report the client connections. If a group of signals is not measured, work may go
unnoticed, so the grace is longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Collection


@dataclass(frozen=True)
class Signal:
    """A measurement that shows whether a GPU is working.

    `name` is its name in reports. `series` is its metric in Prometheus, or empty if gpu_info reports the signal from
    the hosts. A `group` counts as measured if one of its signals is.
    """

    name: str
    series: str
    group: str


KERNELS = Signal("kernels", "gpu:busy_ratio", "kernels")
POWER = Signal("power", "gpu:power_watts", "power")
CPU_TIME = Signal("CPU time", "gpu:process_cpu_seconds_total", "CPU time")
CLIENTS = Signal("client connections", "", "client connections")

SIGNALS = (
    KERNELS,
    Signal("counted kernels", "gpu:busy_seconds_total", "kernels"),
    Signal("SM activity", "gpu:sm_active_ratio", "profiling"),
    Signal("tensor cores", "gpu:tensor_active_ratio", "profiling"),
    Signal("memory bandwidth", "gpu:memory_bandwidth_active_ratio", "profiling"),
    Signal("PCIe traffic", "gpu:pcie_bytes_per_second", "transfers"),
    Signal("NVLink traffic", "gpu:nvlink_bytes_per_second", "transfers"),
    Signal("video engines", "gpu:codec_busy_ratio", "video engines"),
    POWER,
    CPU_TIME,
    CLIENTS,
)

#: Groups in the order of SIGNALS.
GROUPS = tuple(dict.fromkeys(signal.group for signal in SIGNALS))


def missing_groups(known: Collection[str]) -> tuple[str, ...]:
    """Return the groups in which no signal is measured.

    `known` has the measured signals' names.
    """
    measured = {signal.group for signal in SIGNALS if signal.name in known}
    return tuple(group for group in GROUPS if group not in measured)
