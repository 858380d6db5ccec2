# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Format the simulated GPUs' state as text."""

from __future__ import annotations

from typing import Any, Iterator

SWITCH = ("off", "on")
MIB = 2**20


def to_text(state: dict[str, Any]) -> str:
    """Return a block for each GPU, and then processes and pending faults.

    `state` is the result of Control.dump.
    """
    return "\n".join(_lines(state))


def _lines(state: dict[str, Any]) -> Iterator[str]:
    yield f"driver {state['host']['driver_version']}, {len(state['gpus'])} GPUs"
    for gpu in state["gpus"]:
        yield ""
        yield from _gpu(gpu)
    if state["processes"]:
        yield ""
        yield "processes"
        yield from map(_process, state["processes"])
    if state["faults"]:
        yield ""
        yield "pending faults"
        for fault in state["faults"]:
            yield f"  {_fault(fault)}"


def _fault(fault: dict[str, Any]) -> str:
    call = "any call" if fault["function"] == "any" else fault["function"]
    place = f" on GPU {fault['gpu']}" if "gpu" in fault else ""
    when = f"on call {fault['nth']} from now"
    if fault.get("lasting"):
        when = "each time until it is cleared" if fault["nth"] == 1 else f"{when} and each after it until it is cleared"
    return f"{call}{place}: {fault['action']}, {when}"


def _gpu(gpu: dict[str, Any]) -> Iterator[str]:
    yield f"GPU {gpu['index']}: {gpu['name']}  {gpu['uuid']}  {gpu['pci_address']}"
    if gpu["lost"]:
        yield "  LOST: fallen off the bus. Recover it with gpusim restore"
    persistence, limit = SWITCH[gpu["persistence_mode"]], gpu["power_limit_mw"] / 1000
    yield f"  MIG {_mig(gpu)}, compute mode {_words(gpu['compute_mode'])}, persistence {persistence}, limit {limit:.0f} W"
    memory = gpu["memory"]
    yield (
        f"  {gpu['utilization_percent']:.0f} %, {gpu['power_mw'] / 1000:.0f} W, {gpu['temperature_c']} °C, "
        f"{memory['used_bytes'] // MIB} of {memory['total_bytes'] // MIB} MiB used"
    )
    wrong = ", ".join(f"{key} {value}" for key, value in gpu["health"].items() if value)
    if wrong:
        yield f"  wrong: {wrong}"
    yield from _load("  ", gpu["load"])
    for instance in gpu["gpu_instances"]:
        place = instance["placement"]
        yield f"  GPU instance {instance['id']}: {instance['profile']} at {place['start']}:{place['size']}"
        yield from _load("    ", instance["load"])
        for part in instance["compute_instances"]:
            place = part["placement"]
            at = f"at {place['start']}:{place['size']}"
            yield f"    compute instance {part['id']} {at}: {part['uuid']}, compute mode {_words(part['compute_mode'])}"


def _mig(gpu: dict[str, Any]) -> str:
    if not gpu["mig_capable"]:
        return "not supported"
    current, pending = gpu["mig"]["current"], gpu["mig"]["pending"]
    return SWITCH[current] + (f" ({SWITCH[pending]} pending)" if pending != current else "")


def _load(indent: str, load: dict[str, Any] | None) -> Iterator[str]:
    if load is None:
        return
    every = load.get("period_seconds", load.get("interval_seconds"))
    length = f"{load['samples']} samples, one" if "samples" in load else "one turn"
    rhythm = "" if load["pattern"] == "constant" else f" ({length} every {every:g} s)"
    power = "" if load["power_mw"] is None else f", {load['power_mw'] / 1000:.0f} W"
    now = f"{load['utilization_percent']:.0f} %, {load['memory_mib']} MiB{power}"
    yield f"{indent}load {load['pattern']}{rhythm}: now {now}"


def _process(process: dict[str, Any]) -> str:
    place = f"GPU {process['gpu']}"
    if process["gpu_instance"] is not None:
        place += f", GPU instance {process['gpu_instance']}, compute instance {process['compute_instance']}"
    return f"  {process['pid']}: {process['type']} on {place}, {process['memory_bytes'] // MIB} MiB"


def _words(name: str) -> str:
    return name.lower().replace("_", " ")
