# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the UUIDs of a node's devices by Slurm's number, for the TaskProlog.

Slurm gives a job its devices' numbers on the node. The numbers come from gres.conf, the UUIDs from NVML. MIG devices
get new UUIDs and capability numbers when instances are recreated, for example at boot. So
`openfleet-slurm-devices.service` updates them before each start of slurmd.
"""

# This program prints to its user.
# pylint: disable=ansible-bad-function
from __future__ import annotations

import json
import os
from argparse import Namespace
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Sequence

from .. import durable
from ..errors import FleetError
from ..frozen import frozen
from ..holders.slurm import DEVICES
from ..model import Gpu
from ..vendors.nvidia.nvml.bounded_session import BoundedSession
from .conf import lines_of
from .device_nodes import capabilities, minors
from .mig_devices import Device, DeviceNodes, all_devices, device_files

#: Files of an installation, relative to the root. The TaskProlog reads DEVICES.
SETTINGS = "etc/openfleet-gpu/slurm/settings.json"
UNIT = "openfleet-slurm-devices.service"
_NO_DEVICE = "-"


class TaskDevicesError(FleetError):
    """The node's devices cannot be written."""


@frozen
class Slot:
    """A device in gres.conf.

    It has a GRES type, its GPU's UUID, its own last UUID, and its device nodes. A MIG device has several device nodes.
    A pad has no UUIDs.
    """

    type: str
    gpu: str
    uuid: str
    files: tuple[str, ...]

    @property
    def in_mig(self) -> bool:
        return bool(self.gpu) and len(self.files) > 1


# --- pure --------------------------------------------------------------------------------------


def assign(slots: Sequence[Slot], gpus: Sequence[Gpu], nodes: DeviceNodes) -> list[Device | None]:
    """Return the current device of each slot, or None if it does not exist.

    A device keeps its number as long as it exists, because running jobs hold the number. New MIG devices are assigned
    by the device nodes in gres.conf. The remaining devices get the remaining slots of their GPU and type, in the order
    of gres.conf.
    """
    free = [device for gpu in gpus for device in all_devices(gpu) if device.uuid]
    found: list[Device | None] = [None] * len(slots)
    tests: Sequence[Callable[[Slot, Device], bool]] = (
        lambda slot, device: device.uuid == slot.uuid,
        lambda slot, device: device_files(device, nodes) == slot.files,
        lambda slot, device: True,
    )
    for test in tests:
        for number, slot in enumerate(slots):
            if found[number] is None:
                found[number] = next((each for each in free if _fits(slot, each) and test(slot, each)), None)
                free = [each for each in free if each is not found[number]]
    return found


def _fits(slot: Slot, device: Device) -> bool:
    if slot.gpu != device.gpu.uuid or slot.in_mig != (device.instance_id is not None):
        return False
    return not slot.in_mig or slot.type == device.type


def table(node: str, slots: Sequence[Slot], devices: Sequence[Device | None], boot: str) -> str:
    """Return the list of devices, with a line of number, type and UUID for each."""
    lines = [
        "# Devices by Slurm's number. Written by openfleet.gpu, which replaces changes.",
        "boot %s" % boot,
        "node %s" % node,
        *(
            "%d %s %s" % (number, slot.type or _NO_DEVICE, device.uuid if device else _NO_DEVICE)
            for number, (slot, device) in enumerate(zip(slots, devices))
        ),
    ]
    return "".join(line + "\n" for line in lines)


def with_files(text: str, node: str, changes: Mapping[tuple[str, ...], tuple[str, ...]]) -> str:
    """Return gres.conf with other device nodes in a node's lines.

    All changes apply at once, because one device may get another one's nodes. Lines for several nodes do not change.
    """
    rows = text.splitlines(keepends=True)
    for line in lines_of("", text):
        value = line.pairs.get("multiplefiles", "")
        if not value or line.pairs.get("nodename", node) != node:
            continue
        (files,) = line.devices
        for number in range(line.first - 1, line.last):
            rows[number] = rows[number].replace(value, ",".join(changes.get(files, files)), 1)
    return "".join(rows)


def _common(text: str, other: str) -> str:
    """Return the list with `-` in place of the UUIDs that another list lacks."""
    listed = set(other.splitlines())
    lines = [
        line if line in listed or not line[:1].isdigit() else line.rpartition(" ")[0] + " -"
        for line in text.splitlines()
    ]
    return "".join(line + "\n" for line in lines)


# --- the host ----------------------------------------------------------------------------------


def refresh(options: Namespace) -> int:
    """Run the subcommand slurm-devices: write the devices for the TaskProlog."""
    root = Path("/")
    with BoundedSession() as session:
        gpus = session.observe().gpus
    for line in write_devices(root, gpus, read_nodes(root), options.common):
        print(line)
    return 0


def read_nodes(root: Path) -> DeviceNodes:
    """Read the device nodes of the host."""
    proc = root / "proc/driver"
    listed = capabilities(proc / "nvidia-caps/mig-minors", root / "dev/nvidia-caps")
    return DeviceNodes(
        {row["uuid"]: row["minor"] for row in minors(proc / "nvidia/gpus")},
        {row["name"]: row["number"] for row in listed},
    )


def write_devices(root: Path, gpus: Sequence[Gpu], nodes: DeviceNodes, common: bool = False) -> Iterator[str]:
    """Write DEVICES for the current GPUs. Yield a message for each change.

    New device nodes are written to gres.conf first. After an interruption, the next run writes the same. `common` is
    true if slurmd does not use the slots yet. DEVICES then only lists devices that have the same number and type in the
    current list. Raises TaskDevicesError if the settings cannot be read.
    """
    settings = _settings(root)
    slots = [Slot(each["type"], each["gpu"], each.get("uuid", ""), tuple(each["files"])) for each in settings["slots"]]
    devices = assign(slots, gpus, nodes)
    # Keep the nodes of a device that does not exist.
    files = [device_files(device, nodes) if device else () for device in devices]
    changes = {slot.files: new for slot, new in zip(slots, files) if new and slot.files != new}
    if changes and settings["gres_file"]:
        yield from _correct(root / settings["gres_file"].lstrip("/"), settings["node"], changes)
    rows = [
        {
            "type": slot.type,
            "gpu": slot.gpu,
            "uuid": device.uuid if device else slot.uuid,
            "files": list(new or slot.files),
        }
        for slot, device, new in zip(slots, devices, files)
    ]
    if rows != settings["slots"]:
        durable.write(root / SETTINGS, dict(settings, slots=rows))
    text = table(settings["node"], slots, devices, (root / "proc/sys/kernel/random/boot_id").read_text().strip())
    path = root / DEVICES
    if common:
        text = _common(text, path.read_text() if path.exists() else "")
    if not path.exists() or path.read_text() != text:
        durable.write_text(path, text, 0o644)
        yield "/%s written" % DEVICES
    for number, (slot, device) in enumerate(zip(slots, devices)):
        if device is None and slot.gpu:
            yield "device %d (%s of %s) does not exist now, so its jobs fail" % (number, slot.type, slot.gpu)


def _correct(path: Path, node: str, changes: Mapping[tuple[str, ...], tuple[str, ...]]) -> Iterator[str]:
    """Write the new device nodes to gres.conf."""
    text = path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else ""
    changed = with_files(text, node, changes)
    if changed == text and {files for line in lines_of("", text) for files in line.devices}.issuperset(
        changes.values()
    ):
        # An interrupted run has already written the nodes.
        return
    if changed == text:
        yield "%s lists other device nodes of %d MIG devices: run the role gpu_slurm" % (path, len(changes))
        return
    status = path.stat()
    # Keep the owner and mode, because slurmctld may read the file as its own user.
    durable.write_bytes(
        path,
        changed.encode("utf-8", errors="surrogateescape"),
        status.st_mode & 0o777,
        lambda new: os.chown(new, status.st_uid, status.st_gid),
    )
    yield "%s has the new device nodes of %d MIG devices" % (path, len(changes))


def _settings(root: Path) -> dict[str, Any]:
    path = root / SETTINGS
    try:
        settings: dict[str, Any] = json.loads(path.read_text())
        return settings
    except (OSError, ValueError) as error:
        raise TaskDevicesError(str(path), "it cannot be read: %s" % error, "Run the role gpu_slurm.") from error
