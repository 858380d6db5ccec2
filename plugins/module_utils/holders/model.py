# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define kinds and texts of holders, as pure functions."""

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

#: The kernel truncates process names to 15 characters.
NAME_LENGTH = 15

#: Maximum length of a command line in a message.
_COMMAND_LENGTH = 80


def unknown(gpus: Iterable[Gpu], problem: str, cure: str, **details: Any) -> list[Holder]:
    """Return a holder of kind "unknown" for each of the GPUs."""
    who = "%s. %s" % (problem.rstrip("."), cure)
    return [Holder(gpu.uuid, None, UNKNOWN, who, **details) for gpu in gpus]


def short(command: str | None) -> str | None:
    """Truncate a command line for messages."""
    if command is None or len(command) <= _COMMAND_LENGTH:
        return command
    return command[: _COMMAND_LENGTH - 3] + "..."


def place_of(host: Host, device_uuid: str) -> tuple[str, int | None] | None:
    """Return (GPU UUID, GPU instance id or None) for the UUID of a GPU or MIG device.

    Returns None if the host has no such device.
    """
    for gpu in host.gpus:
        if gpu.uuid == device_uuid:
            return gpu.uuid, None
        for instance in gpu.mig.instances:
            for compute in instance.compute_instances:
                # Drivers before 470 identify a MIG device by its GPU and its ids (MIG User Guide, "MIG Device Names").
                old = "MIG-%s/%d/%d" % (gpu.uuid, instance.id, compute.id)
                if device_uuid in (compute.mig_uuid, old):
                    return gpu.uuid, instance.id
    return None
