# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find each device's cores and NVLinks for gres.conf. Pure.

`Cores=` has Slurm's numbers of cores, not of CPUs. Core 0 is the first core of the first socket, as in `lstopo -l`
(https://slurm.schedmd.com/gres.conf.html). Slurm 24.11 drains a node if `Cores=` does not consist of whole sockets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Mapping, Sequence

from ....module_utils.errors import FleetError
from ....module_utils.slurm.mig_devices import Device

# Minimum release for Cores= and Links= on a node with MIG. With them, Slurm 22.05 counts each file of MultipleFiles= as
# a device.
_WITH_MIG = (24, 11)
# Maximum CPU number in a host's list. Linux supports 8192 CPUs (CONFIG_NR_CPUS).
_LARGEST_CPU = 8191
# Maximum number of a core's CPUs. POWER processors have eight.
MOST_THREADS = 16
_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


@dataclass(frozen=True)
class Core:
    """A core of the host: its processor package, and its CPUs (hardware threads)."""

    package: int
    cpus: frozenset[int]


@dataclass(frozen=True)
class Cpus:
    """The cores of a host, as the kernel and Slurm count them.

    sockets           number of sockets of the Slurm node
    cores_per_socket  number of cores of each socket of the Slurm node
    cores             all cores of the host, in any order
    local             CPUs that are closest to a GPU, by UUID of the GPU
    """

    sockets: int = 0
    cores_per_socket: int = 0
    cores: Sequence[Core] = ()
    local: Mapping[str, frozenset[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Placement:
    """The values of `Cores=` and `Links=`.

    cores  value of `Cores=` by UUID of the GPU. A GPU without a value is equally close to all cores
    links  value of `Links=` by position of the device
    notes  reasons why values are missing
    """

    cores: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def parse_cpus(text: str, where: str, most: int = _LARGEST_CPU + 1) -> frozenset[int]:
    """Return the CPUs in a list in the kernel's format, such as 0-31,64-95.

    Raises FleetError, with the place `where`, if the text is not such a list or has more than `most` CPUs.
    """
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        match = _RANGE.fullmatch(part)
        first, last = (int(match.group(1)), int(match.group(2) or match.group(1))) if match else (1, 0)
        if not first <= last <= min(_LARGEST_CPU, first + most - 1 - len(found)):
            raise FleetError(where, "%.60r is not a list of CPUs" % text, "Check /sys/devices/system/cpu on the host.")
        found.update(range(first, last + 1))
    return frozenset(found)


def placement(devices: Sequence[Device | None], cpus: Cpus, version: tuple[int, ...] | None) -> Placement:
    """Return the cores and links of a node's devices.

    `devices` has the devices by number, and None for pads. `version` is Slurm's version, or None if it is unknown.
    """
    cores, core_note = _cores(cpus)
    links, link_note = _links(devices)
    notes = tuple(filter(None, (core_note, link_note)))
    has_mig = any(device is not None and device.instance_id is not None for device in devices)
    if has_mig and (cores or links) and (version is None or version < _WITH_MIG):
        note = "gres.conf has no Cores= and Links=: before Slurm 24.11, they are wrong on nodes with MIG instances."
        return Placement(notes=(note,))
    return Placement(cores, links, notes)


def _cores(cpus: Cpus) -> tuple[dict[str, str], str]:
    """Return `Cores=` by UUID, and a note if it is unknown.

    The cores are rounded up to whole Slurm sockets.
    """
    online = frozenset().union(*(core.cpus for core in cpus.cores))
    near = {uuid: local & online for uuid, local in cpus.local.items()}
    near = {uuid: local for uuid, local in near.items() if local and local != online}
    if not near:
        return {}, ""
    packages = {core.package for core in cpus.cores}
    counts = "Slurm counts %d sockets with %d cores each, and the host has %d with %d cores in total" % (
        *(cpus.sockets, cpus.cores_per_socket),
        *(len(packages), len(cpus.cores)),
    )
    note = (
        "gres.conf has no Cores=: %s. Set the node's Sockets= and CoresPerSocket= as `slurmd -C` prints them." % counts
    )
    sockets = _sockets(cpus)
    if not sockets:
        return {}, note
    found = {}
    for uuid, local in near.items():
        numbers = [number for number, socket in enumerate(sockets) if socket & local]
        if len(sockets) != len(packages) and frozenset().union(*(sockets[number] for number in numbers)) != local:
            # Each Slurm socket is a part of a package, whose cores the kernel may number in another order.
            return {}, note
        if len(numbers) < len(sockets):
            found[uuid] = ",".join(_range(number, cpus.cores_per_socket) for number in numbers)
    return found, ""


def _sockets(cpus: Cpus) -> list[frozenset[int]]:
    """Return the CPUs of each Slurm socket.

    Returns [] if Slurm's sockets are not equal parts of the packages.
    """
    first: dict[int, int] = {}
    for core in cpus.cores:
        first[core.package] = min(first.get(core.package, _LARGEST_CPU), *core.cpus)
    ordered = sorted(cpus.cores, key=lambda core: (first[core.package], min(core.cpus)))
    size = cpus.cores_per_socket
    if size < 1 or len(ordered) != cpus.sockets * size:
        return []
    parts = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    if any(len({core.package for core in part}) > 1 for part in parts):
        return []
    return [frozenset().union(*(core.cpus for core in part)) for part in parts]


def _range(socket: int, size: int) -> str:
    return "%d-%d" % (socket * size, socket * size + size - 1) if size > 1 else str(socket)


def _links(devices: Sequence[Device | None]) -> tuple[dict[int, str], str]:
    """Return `Links=` by position, and a note if it is unknown.

    `Links=` has the number of links to the device at each position, and -1 for the device itself. Instances have no
    links. Without differences between GPUs, as with NVSwitch, there are no values.
    """
    whole = {position: device.gpu for position, device in enumerate(devices) if device and device.instance_id is None}
    unknown = [gpu.label for gpu in whole.values() if any(link.remote_pci_address is None for link in gpu.nvlinks)]
    if unknown:
        return {}, "gres.conf has no Links=: NVML does not report the other end of an NVLink of %s." % unknown[0]
    remotes = {
        position: [(link.remote_pci_address or "").lower() for link in gpu.nvlinks] for position, gpu in whole.items()
    }
    addresses = {position: (gpu.pci_address or "").lower() for position, gpu in whole.items()}
    counts = {
        (one, other): remotes[one].count(addresses[other])
        for one in whole
        for other in whole
        if one != other and addresses[other]
    }
    if len(set(counts.values())) < 2:
        return {}, ""
    found = {}
    for one in whole:
        row = [-1 if other == one else counts.get((one, other), 0) for other in range(len(devices))]
        found[one] = ",".join(map(str, row))
    return found, ""
