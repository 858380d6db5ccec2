# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The signs of work, and groups of them.

A single sign of work rules out idle. The rules of gpu_monitoring record the highest one (gpu:activity_ratio:max5m). Client
connections are reported by hosts. If a group of signals is not measured, work may be missed, so the grace is longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Collection


@dataclass(frozen=True)
class Signal:
    """A sign of work.

    `name` is for reports. `series` is empty if hosts report it. One measured signal per `group` is enough.
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
    """Return the groups without a measured signal.

    `known` has names of measured signals.
    """
    measured = {signal.group for signal in SIGNALS if signal.name in known}
    return tuple(group for group in GROUPS if group not in measured)
