# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of the simulated GPUs as text for people."""

from __future__ import annotations

from typing import Any, Iterator

MODES = {0: "off", 1: "on", None: "not supported"}
COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}


def to_text(state: dict[str, Any]) -> str:
    """One block per GPU, then processes and waiting faults. `state` is what Control.dump gives."""
    return "\n".join(_lines(state))


def _lines(state: dict[str, Any]) -> Iterator[str]:
    host = state["host"]
    yield f"driver {host['driver_version']}, {len(state['gpus'])} GPUs"
    for gpu in state["gpus"]:
        yield ""
        yield from _gpu(gpu)
    if state["processes"]:
        yield ""
        yield "processes"
        for process in state["processes"]:
            place = "/".join(str(process[part]) for part in ("gpu", "gpu_instance", "compute_instance") if process[part] >= 0)
            yield f"  {process['pid']:>8}  GPU {place:9} {process['type']:9} {_mib(process['memory_bytes'] / 2**20)}"
    if state["faults"]:
        yield ""
        yield "waiting faults"
        for fault in state["faults"]:
            yield f"  {fault['function']}: {fault['action']}, in {fault['remaining']} calls"


def _gpu(gpu: dict[str, Any]) -> Iterator[str]:
    yield f"GPU {gpu['index']}  {gpu['name']}  {gpu['uuid']}  {gpu['pci_address']}"
    yield f"  compute mode {COMPUTE_MODES[gpu['compute_mode']]}, persistence {MODES[gpu['persistence_mode']]}, power limit {gpu['power_limit_mw'] // 1000} W"
