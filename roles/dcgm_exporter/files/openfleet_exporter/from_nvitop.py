# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nvitop-exporter gives, of exactly the devices that are there."""

from __future__ import annotations

import math
from typing import Iterator, List, Optional, Set, Tuple

from nvitop import MigDevice, PhysicalDevice, libnvml
from nvitop_exporter.exporter import PrometheusExporter
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from .gpus import Gpu

#: Of the memory of a GPU, or of an instance.
MEMORY = "gpu_memory_"
#: One series for each link; the totals stay.
LINKS = ("gpu_nvlink_tx_throughput_MiBps", "gpu_nvlink_rx_throughput_MiBps")
#: What a process was started with, which may hold secrets.
COMMANDS = "process_info"
PROCESSES = "process_"
#: Families of the host, which its own exporter has better.
LEFT_OUT = ("host_", "nvitop")


class FromNvitop:
    """nvitop's exporter is made for devices that stay. It is created again when GPUs or MIG devices come or go."""

    def __init__(self, hostname: str, processes: str = "usage", links: bool = False) -> None:
        """`processes` is usage, none, or commands (usage and command lines)."""
        self.hostname, self.processes, self.links = hostname, processes, links
        self.there: Optional[Tuple[str, ...]] = None
        self.registry = CollectorRegistry()
        self.exporter: Optional[PrometheusExporter] = None

    def collect(self, gpus: List[Gpu]) -> Iterator[Metric]:
        """Families with what is known now. A device that goes meanwhile is left out."""
        alive = [gpu for gpu in gpus if not gpu.lost]
        there = tuple(entity.uuid for gpu in alive for entity, _ in ((gpu.entity, None), *gpu.devices))
        if there != self.there:
            self._make(alive)
            self.there = there
        for device in self.exporter.devices if self.exporter else ():
            try:
                self.exporter.update_device(device)
            except libnvml.NVMLError:
                # Its figures of before must not stay.
                self.there = None
        if self.there is None:
            return
        silent = {gpu.entity.uuid for gpu in alive if gpu.mig_devices}
        silent.update(mig.entity.uuid for gpu in alive for mig in gpu.mig_devices if mig.shares_memory)
        for family in self.registry.collect():
            kept = self._known(family, silent)
            if kept.samples:
                yield kept

    def _make(self, gpus: List[Gpu]) -> None:
        devices = []
        for gpu in gpus:
            devices.append(PhysicalDevice(index=gpu.index))
            # By number: nvitop's own list ends at the first one that is not there.
            devices.extend(MigDevice(index=(gpu.index, mig.number)) for mig in gpu.mig_devices)
        self.registry = CollectorRegistry()
        self.exporter = PrometheusExporter(devices, hostname=self.hostname, registry=self.registry)

    def _known(self, family: Metric, silent: Set[str]) -> Metric:
        """Without NaN, which is nvitop's word for unknown; and without memory that others are listed with."""
        kept = Metric(family.name, family.documentation, family.type)
        if family.name.startswith(LEFT_OUT) or (not self.links and family.name in LINKS):
            return kept
        if family.name == COMMANDS and self.processes != "commands":
            return kept
        if family.name.startswith(PROCESSES) and self.processes == "none":
            return kept
        kept.samples = [
            sample
            for sample in family.samples
            if not math.isnan(sample.value)
            and not (family.name.startswith(MEMORY) and sample.labels.get("uuid") in silent)
        ]
        return kept
