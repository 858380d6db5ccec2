# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""All that one scrape gives: nvitop's figures, those that it lacks, and files of others."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

import pynvml as nvml
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from . import textfiles
from .events import XidErrors
from .from_nvitop import FromNvitop
from .gpm import RATES, RATIOS, Gpm
from .gpus import Entity, Gpu, Gpus, NvmlGoneError, ask, text

#: Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h) that slow a GPU down for a reason that can be mended.
THROTTLES = {
    "sw_power_cap": nvml.nvmlClocksEventReasonSwPowerCap,
    "hw_slowdown": nvml.nvmlClocksEventReasonHwSlowdown,
    "sync_boost": nvml.nvmlClocksEventReasonSyncBoost,
    "sw_thermal": nvml.nvmlClocksEventReasonSwThermalSlowdown,
    "hw_thermal": nvml.nvmlClocksEventReasonHwThermalSlowdown,
    "hw_power_brake": nvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
}
VIOLATIONS = {
    "power": nvml.NVML_PERF_POLICY_POWER,
    "thermal": nvml.NVML_PERF_POLICY_THERMAL,
    "sync_boost": nvml.NVML_PERF_POLICY_SYNC_BOOST,
}
ECC = {
    "corrected": nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
    "uncorrected": nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
}
PREFIX = "openfleet_gpu_"
#: Of a file of jobs: each is a series.
MOST_JOB_BYTES = 4096
#: Seconds that a scrape waits for the one before it.
PATIENCE = 20


class Families:
    """Families of one scrape, with a GPU's or MIG device's labels ahead of others."""

    def __init__(self) -> None:
        self.by_name: Dict[str, Metric] = {}

    def add(
        self, name: str, help: str, entity: Entity, value: Optional[float], total: bool = False, **labels: str
    ) -> None:
        """What is not known is left out."""
        family = self.by_name.get(name)
        if family is None:
            kind = CounterMetricFamily if total else GaugeMetricFamily
            family = self.by_name[name] = kind(PREFIX + name, help, labels=(*Entity.NAMES, *labels))
        if value is not None:
            family.add_metric([*entity.values, *labels.values()], float(value))

    def __iter__(self) -> Iterator[Metric]:
        return (family for family in self.by_name.values() if family.samples)


class HostCollector(Collector):
    """Reads at each scrape. Only one reads at a time: NVML answers slowly when it is in trouble, and scrapes would pile up."""

    def __init__(
        self,
        gpus: Gpus,
        nvitop: FromNvitop,
        xids: Optional[XidErrors] = None,
        gpm: Optional[Gpm] = None,
        folders: Tuple[Optional[Path], Optional[Path]] = (None, None),
        on_gone=None,
    ) -> None:
        self.gpus, self.nvitop, self.xids, self.gpm = gpus, nvitop, xids, gpm
        # Of others' metrics as text, and of files that say which jobs use a GPU.
        self.textfile_dir, self.job_mapping_dir = folders
        self.on_gone = on_gone
        self.lock = threading.Lock()

    def describe(self) -> Sequence[Metric]:
        """Nothing is read when the collector is registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        if not self.lock.acquire(timeout=PATIENCE):
            raise TimeoutError("NVML has not answered an earlier scrape for %d seconds" % PATIENCE)
        try:
            gpus = self.gpus.scan()
            families = [*self.nvitop.collect(gpus), *self.own(gpus)]
        except NvmlGoneError as error:
            if self.on_gone:
                self.on_gone(str(error))
            raise
        finally:
            self.lock.release()
        yield from families
        if self.textfile_dir:
            yield from textfiles.families(self.textfile_dir)

    def own(self, gpus: List[Gpu]) -> Iterator[Metric]:
        families = Families()
        driver = text(ask(nvml.nvmlSystemGetDriverVersion) or "")
        for gpu in gpus:
            families.add("lost", "1 if a GPU that was seen cannot be reached.", gpu.entity, int(gpu.lost))
            if gpu.lost:
                continue
            for entity in (gpu.entity, *(mig.entity for mig in gpu.mig_devices)):
                labels = {"driver_version": driver, "pci_bus_id": gpu.pci_bus_id}
                families.add("info", "What a GPU or MIG device is.", entity, 1, **labels)
            for entity, handle in gpu.devices:
                families.add("processes", "Processes on it.", entity, processes(handle))
            health(families, gpu)
            self._in_use(families, gpu)
            self._jobs(families, gpu)
        self._xids(families)
        return iter(families)

    def _xids(self, families: Families) -> None:
        if self.xids is None:
            return
        totals, recent = self.xids.counts()
        for (entity, xid), count in sorted(totals.items()):
            help = "Xid errors since the exporter started."
            families.add("xid_errors", help, entity, count, total=True, xid=str(xid))
        for (entity, xid), count in sorted(recent.items()):
            families.add("xid_errors_5m", "Xid errors of the last five minutes.", entity, count, xid=str(xid))

    def _in_use(self, families: Families, gpu: Gpu) -> None:
        if self.gpm is None:
            return
        # Of an instance it is the first compute instance that has the figure, as it has the memory.
        instances = {mig.gpu_instance: mig.entity for mig in reversed(gpu.mig_devices)}
        places = instances or {None: gpu.entity}
        for instance, entity in places.items():
            figures = self.gpm.figures(gpu.entity.uuid, instance)
            for name in RATIOS:
                families.add(name + "_ratio", "As measured by NVML (GPM), 0 to 1.", entity, figures.get(name))
        figures = self.gpm.figures(gpu.entity.uuid, None)
        for name in RATES:
            help = "Both directions together, as measured by NVML (GPM)."
            families.add(name, help, gpu.entity, figures.get(name))

    def _jobs(self, families: Families, gpu: Gpu) -> None:
        """Jobs of a scheduler, from files as dcgm-exporter reads them: `0`, or `0.2` for GPU instance 2."""
        if self.job_mapping_dir is None:
            return
        names = [(gpu.entity.gpu_index, entity) for entity, _ in gpu.devices]
        names += [("%s.%d" % (gpu.entity.gpu_index, mig.gpu_instance), mig.entity) for mig in gpu.mig_devices]
        for name, entity in names:
            try:
                jobs = textfiles.content(self.job_mapping_dir / name, MOST_JOB_BYTES).split()
            except (OSError, ValueError):
                continue
            for job in sorted(set(jobs)):
                families.add("job", "1 for each job that a scheduler gave it.", entity, 1, hpc_job=job)


def health(families: Families, gpu: Gpu) -> None:
    """What makes a GPU slow, or is about to make it fail."""
    entity, handle = gpu.entity, gpu.handle
    reasons = ask(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    for reason, bit in THROTTLES.items():
        value = None if reasons is None else int(bool(reasons & bit))
        families.add("throttled", "1 while the clocks are held down for this reason.", entity, value, reason=reason)
    for reason, policy in VIOLATIONS.items():
        status = ask(nvml.nvmlDeviceGetViolationStatus, handle, policy)
        value = None if status is None else status.violationTime / 1e9
        help = "Time that the clocks were held down for this reason."
        families.add("violation_seconds", help, entity, value, total=True, reason=reason)
    for kind, number in ECC.items():
        value = ask(nvml.nvmlDeviceGetTotalEccErrors, handle, number, nvml.NVML_VOLATILE_ECC)
        help = "Memory errors that ECC found since the driver was loaded."
        families.add("ecc_errors", help, entity, value, total=True, type=kind)
    rows = ask(nvml.nvmlDeviceGetRemappedRows, handle)
    if rows is not None:
        correctable, uncorrectable, pending, failed = rows
        help = "Rows of memory that were replaced."
        families.add("remapped_rows", help, entity, correctable, cause="correctable")
        families.add("remapped_rows", help, entity, uncorrectable, cause="uncorrectable")
        families.add("row_remap_pending", "1 if a row is replaced at the next reset.", entity, int(bool(pending)))
        families.add("row_remap_failed", "1 if a row could not be replaced.", entity, int(bool(failed)))
    replays = ask(nvml.nvmlDeviceGetPcieReplayCounter, handle)
    families.add("pcie_replays", "Transfers over PCIe that were repeated.", entity, replays, total=True)


def processes(handle) -> Optional[int]:
    """How many there are, or None if NVML does not say."""
    lists = [
        ask(function, handle)
        for function in (
            nvml.nvmlDeviceGetComputeRunningProcesses,
            nvml.nvmlDeviceGetGraphicsRunningProcesses,
            nvml.nvmlDeviceGetMPSComputeRunningProcesses,
        )
    ]
    if lists[0] is None:
        return None
    return len({process.pid for listed in lists for process in listed or ()})
