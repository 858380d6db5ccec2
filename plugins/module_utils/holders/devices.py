# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Map device nodes to GPUs and GPU instances.

/dev/nvidiaN is a GPU. /dev/nvidia-caps/nvidia-capM is a MIG capability. N and M are device minors. N may differ from
the GPU's index in NVML, which follows the PCI order. /proc/driver/nvidia lists both numbers (see "Device Nodes and Capabilities"
in NVIDIA's MIG User Guide, https://docs.nvidia.com/datacenter/tesla/mig-user-guide/).
"""

from __future__ import annotations

import os
import re
import stat
from functools import cached_property
from pathlib import Path

from ..model import Gpu, Host

#: The fixed major number of the driver (nv-linux.h, NV_MAJOR_DEVICE_NUMBER). Minors from 254 on are not GPUs.
_GPU_MAJOR, _FIRST_OTHER_MINOR = 195, 254
_NODE = re.compile(r"/nvidia(\d+)$")
_CAPABILITY_NODE = re.compile(r"/nvidia-cap(\d+)$")
_ACCESS = re.compile(r"gpu(\d+)/gi(\d+)/(?:ci\d+/)?access (\d+)$")
#: Numbers to compute the minors of capabilities if the driver does not list them. Each GPU has 15 GPU instances. Each
#: instance has 9 minors: one for itself and 8 for its compute instances.
_FIRST_CAPABILITY, _CAPABILITIES_PER_GPU, _CAPABILITIES_PER_INSTANCE = 3, 135, 9

GPU, CAPABILITY = "gpu", "capability"
#: (GPU or CAPABILITY, minor number).
Node = "tuple[str, int]"
#: (GPU UUID, GPU instance id). The id is None for the whole GPU.
Place = "tuple[str, int | None]"


class Devices:
    """The GPUs of the host, by device number."""

    def __init__(self, host: Host, proc: str = "/proc", dev: str = "/dev") -> None:
        self._proc, self.dev = Path(proc), dev
        self.uncertain: list[Gpu] = []
        self._by_minor: dict[int, Gpu] = {}
        for gpu in host.gpus:
            minor = self._minor(gpu)
            if minor is None:
                self.uncertain.append(gpu)
            else:
                self._by_minor[minor] = gpu
        self._capability_major = self._major("nvidia-caps")
        #: Whether the host has the driver. Nodes of simulated GPUs have no device numbers and are matched by name.
        self.has_driver = (self._proc / "driver/nvidia").is_dir() or str(_GPU_MAJOR) in self.listed_majors.split()
        self._listed: dict[int, tuple[int, int]] | None = None

    @cached_property
    def majors(self) -> frozenset[int]:
        """Return the major numbers of the driver's nodes.

        Returns an empty set if there is no driver.
        """
        listed = re.findall(r"^\s*(\d+) nvidia", self.listed_majors, re.MULTILINE)
        return frozenset({_GPU_MAJOR, *map(int, listed)}) if self.has_driver else frozenset()

    @cached_property
    def can_be_open(self) -> bool:
        """Return whether a process can have a device node open.

        Returns False for simulated GPUs, because they have no driver.
        """
        if self.has_driver:
            return True
        try:
            return any(_NODE.search("/" + entry.name) for entry in Path(self.dev).iterdir())
        except OSError as error:
            return not isinstance(error, FileNotFoundError)

    def in_minor_order(self) -> list[Gpu]:
        return [self._by_minor[minor] for minor in sorted(self._by_minor)]

    def node(self, path: str, status: os.stat_result | None) -> Node | None:
        """Return the driver's node for a path, or None.

        The device number decides, because it is all that the driver sees, and users can choose a node's name in a
        container. The name is used only for simulated GPUs, which have no device numbers.
        """
        if status is not None and stat.S_ISCHR(status.st_mode):
            node = self.numbered_node(os.major(status.st_rdev), os.minor(status.st_rdev))
            if node or os.major(status.st_rdev) == _GPU_MAJOR:
                return node
        return None if self.has_driver else self.named_node(path)

    def numbered_node(self, major: int, minor: int) -> Node | None:
        """Return the node with this device number.

        Returns None for other drivers' nodes, and for nodes that do not belong to a GPU.
        """
        if major == _GPU_MAJOR:
            return (GPU, minor) if minor < _FIRST_OTHER_MINOR else None
        return (CAPABILITY, minor) if major == self._capability_major else None

    def named_node(self, path: str) -> Node | None:
        """Return the node that a path names."""
        for pattern, kind in ((_NODE, GPU), (_CAPABILITY_NODE, CAPABILITY)):
            match = pattern.search(path)
            if match:
                return kind, int(match.group(1))
        return None

    def place(self, node: Node) -> Place | None:
        """Return the GPU or GPU instance for a node, or None.

        Capabilities 1 (configure MIG) and 2 (monitor MIG) belong to no instance.
        """
        kind, minor = node
        if kind == GPU:
            gpu = self._by_minor.get(minor)
            return None if gpu is None else (gpu.uuid, None)
        if minor < _FIRST_CAPABILITY:
            return None
        gpu_minor, instance = self._capability(minor)
        gpu = self._by_minor.get(gpu_minor)
        return None if gpu is None else (gpu.uuid, instance)

    def _capability(self, minor: int) -> tuple[int, int]:
        if self._listed is None:
            self._listed = {}
            for line in _read(self._proc / "driver/nvidia-caps/mig-minors").splitlines():
                match = _ACCESS.match(line)
                if match:
                    gpu, instance, number = (int(n) for n in match.groups())
                    self._listed[number] = (gpu, instance)
        if minor in self._listed:
            return self._listed[minor]
        gpu, rest = divmod(minor - _FIRST_CAPABILITY, _CAPABILITIES_PER_GPU)
        return gpu, rest // _CAPABILITIES_PER_INSTANCE

    def _minor(self, gpu: Gpu) -> int | None:
        gpus = self._proc / "driver/nvidia/gpus"
        if not gpus.is_dir():
            # Simulated GPUs have no driver. The number in the name of a node is the GPU's index.
            return gpu.index
        match = re.search(
            r"^Device Minor:\s*(\d+)", _read(gpus / (gpu.pci_address or "none") / "information"), re.MULTILINE
        )
        return int(match.group(1)) if match else None

    def _major(self, name: str) -> int | None:
        match = re.search(r"^\s*(\d+) %s$" % re.escape(name), self.listed_majors, re.MULTILINE)
        return int(match.group(1)) if match else None

    @cached_property
    def listed_majors(self) -> str:
        """Return the text of /proc/devices."""
        return _read(self._proc / "devices")


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
