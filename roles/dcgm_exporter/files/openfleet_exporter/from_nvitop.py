# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Provide nvitop-exporter's metrics for the current devices."""

from __future__ import annotations

import math
from typing import Iterator, List, Optional, Set, Tuple

from nvitop import MigDevice, PhysicalDevice, libnvml
from nvitop_exporter.exporter import PrometheusExporter
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from .gpus import Gpu

#: Prefix of the memory metrics of GPUs and instances.
MEMORY = "gpu_memory_"
#: Metrics per link. They are omitted by default, except their totals.
LINKS = ("gpu_nvlink_tx_throughput_MiBps", "gpu_nvlink_rx_throughput_MiBps")
#: Metric with processes' command lines, which may contain secrets.
COMMANDS = "process_info"
PROCESSES = "process_"
#: Prefixes of host metrics, which node_exporter provides.
OMITTED = ("host_", "nvitop")


class FromNvitop:
    """Wrap nvitop's exporter, which expects that devices never change.

    The exporter is recreated when GPUs or MIG devices change.
    """

    def __init__(self, hostname: str, processes: str = "usage", links: bool = False) -> None:
        """Set up the wrapper.

        `processes` selects the metrics about processes: usage, none, or commands (usage and command lines).
        """
        self.hostname, self.processes, self.links = hostname, processes, links
        self.device_uuids: Optional[Tuple[str, ...]] = None
        self.registry = CollectorRegistry()
        self.exporter: Optional[PrometheusExporter] = None

    def collect(self, gpus: List[Gpu]) -> Iterator[Metric]:
        """Return metric families with known values, without devices that were just lost."""
        alive = [gpu for gpu in gpus if not gpu.lost]
        uuids = tuple(entity.uuid for gpu in alive for entity, _unused in ((gpu.entity, None), *gpu.devices))
        if uuids != self.device_uuids:
            self._make(alive)
            self.device_uuids = uuids
        for device in self.exporter.devices if self.exporter else ():
            try:
                self.exporter.update_device(device)
            except libnvml.NVMLError:
                # Discard the exporter, which would serve old values.
                self.device_uuids = None
        if self.device_uuids is None:
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
            # Select MIG devices by number, because nvitop's own list ends at the first gap.
            devices.extend(MigDevice(index=(gpu.index, mig.number)) for mig in gpu.mig_devices)
        self.registry = CollectorRegistry()
        self.exporter = PrometheusExporter(devices, hostname=self.hostname, registry=self.registry)

    def _known(self, family: Metric, silent: Set[str]) -> Metric:
        """Remove unknown values (NaN), and memory that another device already counts."""
        kept = Metric(family.name, family.documentation, family.type)
        if family.name.startswith(OMITTED) or (not self.links and family.name in LINKS):
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
