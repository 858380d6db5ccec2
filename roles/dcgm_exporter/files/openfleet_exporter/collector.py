# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collect one scrape: metrics of nvitop, own metrics, and metrics of text files."""

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

#: Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h) for causes of throttling that an operator can fix.
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
#: Maximum size of a job file, because each job becomes a series.
MOST_JOB_BYTES = 4096
#: Seconds for which a scrape waits for the previous one.
PATIENCE = 20


class Families:
    """Metric families of one scrape. The first labels identify the GPU or MIG device."""

    def __init__(self) -> None:
        self.by_name: Dict[str, Metric] = {}

    def add(
        self, name: str, help: str, entity: Entity, value: Optional[float], total: bool = False, **labels: str
    ) -> None:
        """Add a sample, unless its value is None."""
        family = self.by_name.get(name)
        if family is None:
            kind = CounterMetricFamily if total else GaugeMetricFamily
            family = self.by_name[name] = kind(PREFIX + name, help, labels=(*Entity.NAMES, *labels))
        if value is not None:
            family.add_metric([*entity.values, *labels.values()], float(value))

    def __iter__(self) -> Iterator[Metric]:
        return (family for family in self.by_name.values() if family.samples)


class HostCollector(Collector):
    """Read NVML at each scrape, one scrape at a time, because NVML may be slow."""

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
        # Directories of *.prom files and of job files.
        self.textfile_dir, self.job_mapping_dir = folders
        self.on_gone = on_gone
        self.lock = threading.Lock()

    def describe(self) -> Sequence[Metric]:
        """Return nothing, because registration must not read NVML."""
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
            families.add("lost", "1 if a known GPU cannot be reached.", gpu.entity, int(gpu.lost))
            if gpu.lost:
                continue
            for entity in (gpu.entity, *(mig.entity for mig in gpu.mig_devices)):
                labels = {"driver_version": driver, "pci_bus_id": gpu.pci_bus_id}
                families.add("info", "Properties of a GPU or MIG device.", entity, 1, **labels)
            for entity, handle in gpu.devices:
                families.add("processes", "Number of processes.", entity, processes(handle))
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
        # Report these metrics, and memory, once per GPU instance, for its first compute instance.
        instances = {mig.gpu_instance: mig.entity for mig in reversed(gpu.mig_devices)}
        places = instances or {None: gpu.entity}
        for instance, entity in places.items():
            figures = self.gpm.figures(gpu.entity.uuid, instance)
            for name in RATIOS:
                families.add(name + "_ratio", "Measured by NVML (GPM), 0 to 1.", entity, figures.get(name))
            help = "Time with kernels since the exporter started, measured by NVML (GPM)."
            families.add("busy_seconds", help, entity, self.gpm.busy_seconds(gpu.entity.uuid, instance), total=True)
        figures = self.gpm.figures(gpu.entity.uuid, None)
        for name in RATES:
            help = "Sum of both directions, measured by NVML (GPM)."
            families.add(name, help, gpu.entity, figures.get(name))

    def _jobs(self, families: Families, gpu: Gpu) -> None:
        """Add scheduler jobs from files named `0` (GPU 0) or `0.2` (its GPU instance 2).

        This is the format of dcgm-exporter.
        """
        if self.job_mapping_dir is None:
            return
        names = [(gpu.entity.gpu_index, entity) for entity, _unused in gpu.devices]
        names += [("%s.%d" % (gpu.entity.gpu_index, mig.gpu_instance), mig.entity) for mig in gpu.mig_devices]
        for name, entity in names:
            try:
                jobs = textfiles.content(self.job_mapping_dir / name, MOST_JOB_BYTES).split()
            except (OSError, ValueError):
                continue
            for job in sorted(set(jobs)):
                families.add("job", "1 for each job that a scheduler placed on the device.", entity, 1, hpc_job=job)


def health(families: Families, gpu: Gpu) -> None:
    """Add throttling, errors, remapped rows and engines of a GPU."""
    entity, handle = gpu.entity, gpu.handle
    reasons = ask(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    for reason, bit in THROTTLES.items():
        value = None if reasons is None else int(bool(reasons & bit))
        families.add("throttled", "1 while clocks are throttled for this reason.", entity, value, reason=reason)
    for reason, policy in VIOLATIONS.items():
        status = ask(nvml.nvmlDeviceGetViolationStatus, handle, policy)
        value = None if status is None else status.violationTime / 1e9
        help = "Time with clocks throttled for this reason."
        families.add("violation_seconds", help, entity, value, total=True, reason=reason)
    for kind, number in ECC.items():
        value = ask(nvml.nvmlDeviceGetTotalEccErrors, handle, number, nvml.NVML_VOLATILE_ECC)
        help = "Memory errors detected by ECC since the driver was loaded."
        families.add("ecc_errors", help, entity, value, total=True, type=kind)
    rows = ask(nvml.nvmlDeviceGetRemappedRows, handle)
    if rows is not None:
        correctable, uncorrectable, pending, failed = rows
        help = "Remapped memory rows."
        families.add("remapped_rows", help, entity, correctable, cause="correctable")
        families.add("remapped_rows", help, entity, uncorrectable, cause="uncorrectable")
        families.add("row_remap_pending", "1 if the next reset remaps a row.", entity, int(bool(pending)))
        families.add("row_remap_failed", "1 if a row could not be remapped.", entity, int(bool(failed)))
    for engine, function in (
        ("jpeg", nvml.nvmlDeviceGetJpgUtilization),
        ("optical_flow", nvml.nvmlDeviceGetOfaUtilization),
    ):
        use = ask(function, handle)
        help = "Utilization of the engine, 0 to 1."
        families.add("engine_busy_ratio", help, entity, None if use is None else use[0] / 100.0, engine=engine)
    replays = ask(nvml.nvmlDeviceGetPcieReplayCounter, handle)
    families.add("pcie_replays", "PCIe replays.", entity, replays, total=True)


def processes(handle) -> Optional[int]:
    """Return the number of processes, or None if NVML does not report them."""
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
