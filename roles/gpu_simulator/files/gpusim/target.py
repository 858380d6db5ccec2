# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the GPU, GPU instance or compute instance that a command line names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from .control import WHOLE
from .errors import FleetError

_PCI_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)


class TargetError(FleetError):
    """This host has no GPU or instance with the given name."""


@dataclass(frozen=True)
class Target:
    """A target's NVML IDs.

    If the name lacks a level, that level's ID is WHOLE.
    """

    gpu: int
    gpu_instance: int = WHOLE
    compute_instance: int = WHOLE


def find(state: dict[str, Any], text: str) -> Target:
    """Return the target in a state from Control.dump.

    The text is GPU, GPU/GI or a MIG device's UUID.
    """
    if text.startswith("MIG-"):
        for gpu in state["gpus"]:
            for instance in gpu["gpu_instances"]:
                for part in instance["compute_instances"]:
                    if part["uuid"] == text:
                        return Target(gpu["index"], instance["id"], part["id"])
        raise TargetError(text, "no MIG device of this host has this UUID", "gpusim show lists them")
    name, slash, instance_text = text.partition("/")
    gpu = find_gpu(state, name)
    if not slash:
        return Target(gpu)
    ids = [str(instance["id"]) for instance in state["gpus"][gpu]["gpu_instances"]]
    if instance_text not in ids:
        there = f"It has {', '.join(ids)}" if ids else "It has none"
        raise TargetError(text, f"GPU {gpu} has no GPU instance {instance_text!r}", there)
    return Target(gpu, int(instance_text))


def find_gpu(state: dict[str, Any], text: str) -> int:
    """Return the index of a GPU. The text is an index, a UUID or a PCI address."""
    for gpu in state["gpus"]:
        if text in (str(gpu["index"]), gpu["uuid"]) or (
            _pci(text) is not None and _pci(text) == _pci(gpu["pci_address"])
        ):
            return gpu["index"]
    cure = "Name one by index, UUID or PCI address; gpusim show lists them"
    raise TargetError(text, f"none of the {len(state['gpus'])} GPUs of this host", cure)


def _pci(text: str) -> tuple[int, ...] | None:
    match = _PCI_ADDRESS.fullmatch(text)
    return tuple(int(part or "0", 16) for part in match.groups()) if match else None
