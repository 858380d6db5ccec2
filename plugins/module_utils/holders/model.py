# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the sources of holders share: kinds and texts. Free of I/O."""

from __future__ import annotations

from typing import Any, Iterable

from ..model import Gpu, Holder, Host

PROCESS, DEVICE_HANDLE, CONTAINER, SLURM, KUBELET, MPS, UNKNOWN = (
    "process",
    "device_handle",
    "container",
    "slurm",
    "kubelet",
    "mps",
    "unknown",
)

SLURM_DAEMON = "slurmd"

#: The kernel cuts the name of a process after 15 characters.
NAME_LENGTH = 15

#: How much of a command line a message has room for.
_COMMAND_LENGTH = 80


def unknown(gpus: Iterable[Gpu], problem: str, cure: str, **details: Any) -> list[Holder]:
    """What could not be determined holds every GPU that it may concern."""
    who = "%s. %s" % (problem.rstrip("."), cure)
    return [Holder(gpu.uuid, None, UNKNOWN, who, **details) for gpu in gpus]


def short(command: str | None) -> str | None:
    """A command line as messages show it."""
    if command is None or len(command) <= _COMMAND_LENGTH:
        return command
    return command[: _COMMAND_LENGTH - 3] + "..."


def place_of(host: Host, device_uuid: str) -> tuple[str, int | None] | None:
    """(GPU UUID, GPU instance id or None) of a GPU's or MIG device's UUID; None where the host has no such device."""
    for gpu in host.gpus:
        if gpu.uuid == device_uuid:
            return gpu.uuid, None
        for instance in gpu.mig.instances:
            for compute in instance.compute_instances:
                # Drivers before 470 name a MIG device by its GPU and its ids (MIG user guide, "MIG Device Names").
                old = "MIG-%s/%d/%d" % (gpu.uuid, instance.id, compute.id)
                if device_uuid in (compute.mig_uuid, old):
                    return gpu.uuid, instance.id
    return None
