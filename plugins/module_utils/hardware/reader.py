# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Call every read-only NVML function in one session, and record the results.

Failures are recorded too. The names of processes are not recorded, only their number.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from typing import Any, Callable, Iterator

from ..errors import NvmlError
from ..model import to_data
from . import getters
from .asking import Reading
from .mig_reader import MigReader

#: NVML_EVENT_TYPE_XID_CRITICAL_ERROR, and the return code for a wait without an event.
_XID, _TIMEOUT = 8, 10
#: Seconds between two GPM samples.
_GPM_SECONDS = 0.2


class HardwareReader(MigReader):
    """An NVML session that reads everything."""

    def read(self, progress: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
        """Return the readings of the host and of each GPU.

        Raises NvmlError if the GPUs cannot be counted.
        """
        progress("NVML of the host")
        host = [self._reading(getter) for getter in getters.of_host()]
        host.append(self._custom("nvmlSystemGetProcessName", "this process", self._process_name))
        count = self._call("nvmlDeviceGetCount")
        handles = {}
        gpus = []
        for index in range(count):
            try:
                handles[index] = self._call("nvmlDeviceGetHandleByIndex", index, gpu=str(index))
            except NvmlError as error:
                gpus.append({"index": index, "problem": error.problem, "code_name": error.code_name, "calls": []})
        host.append(self._custom("nvmlSystemGetTopologyGpuSet", "cpu 0", lambda: self._indices_of_cpu(0)))
        for index, handle in handles.items():
            progress("NVML of GPU %d" % index)
            gpus.append(
                {
                    "index": index,
                    "problem": None,
                    "code_name": None,
                    "calls": list(self._gpu_readings(handle, index, handles)),
                }
            )
        return {
            "pynvml": str(getattr(self._nvml, "__version__", "unknown")),
            "simulated": self.simulated,
            "calls": host,
            "gpus": sorted(gpus, key=lambda gpu: gpu["index"]),
            "facts": self._facts(),
        }

    def _facts(self) -> dict[str, Any]:
        """Return the facts of gpu_info, with the number of processes only.

        GPUs that fail are under `problems`.
        """
        self.denied_is_lost = True
        try:
            host = self.observe(telemetry=True)
        except NvmlError as error:
            return {"gpus": [], "lost": [], "problems": [_problem(error)]}
        data = to_data(host)
        for gpu in data["gpus"]:
            gpu["processes"] = len(gpu["processes"])
            gpu["mig"]["profiles"] = [profile["name"] for profile in gpu["mig"]["profiles"]]
            gpu["mig"]["instances"] = [
                {
                    "id": instance["id"],
                    "profile": instance["profile"],
                    "placement": instance["placement"],
                    "compute_instances": [compute["id"] for compute in instance["compute_instances"]],
                }
                for instance in gpu["mig"]["instances"]
            ]
        off_the_bus = [gpu for gpu in host.lost if gpu.state == "is lost"]
        others = [gpu for gpu in host.lost if gpu not in off_the_bus]
        problems = [{"text": str(gpu), "code_name": gpu.code_name} for gpu in others]
        return dict(data, lost=to_data(off_the_bus), problems=problems)

    def _process_name(self) -> bool:
        return bool(self._nvml.nvmlSystemGetProcessName(os.getpid()))

    def _indices_of_cpu(self, cpu: int) -> list[int]:
        return self._indices_of(self._nvml.nvmlSystemGetTopologyGpuSet(cpu))

    def _indices_of(self, handles: list[Any]) -> list[int]:
        """Return the index of each handle. Skip lost GPUs, which have no index."""
        indices = []
        for handle in handles:
            with contextlib.suppress(self._nvml.NVMLError):
                indices.append(self._index(handle))
        return sorted(indices)

    # ------------------------------------------------------------------ a GPU

    def _gpu_readings(self, handle: Any, index: int, handles: dict[int, Any]) -> Iterator[Reading]:
        nvml = self._nvml
        for getter in getters.of_gpu():
            yield self._reading(getter, handle)
        yield from self._lookup_readings(handle)
        yield self._custom(
            "nvmlDeviceGetMemoryInfo", "version 2", lambda: nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
        )
        yield self._custom("nvmlDeviceGetPciInfoExt", "", lambda: self._pci_info_ext(handle))
        for call, kind in (
            ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
            ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
        ):
            yield self._custom(call, "", lambda call=call, kind=kind: self._fabric(call, kind, handle))
        for name in ("Compute", "Graphics", "MPSCompute"):
            call = "nvmlDeviceGet%sRunningProcesses" % name
            yield self._custom(call, "count", lambda call=call: len(getattr(nvml, call)(handle)))
        yield self._custom(
            "nvmlDeviceGetProcessUtilization", "count", lambda: len(nvml.nvmlDeviceGetProcessUtilization(handle, 0))
        )
        yield self._custom(
            "nvmlDeviceGetAccountingPids", "count", lambda: len(nvml.nvmlDeviceGetAccountingPids(handle))
        )
        yield self._custom("nvmlDeviceGetSramEccErrorStatus", "", lambda: self._sram_errors(handle))
        yield self._custom("nvmlDeviceGetCapabilities", "", lambda: self._capabilities(handle))
        # The PDI identifies one board, so record only whether there is one.
        yield self._custom("nvmlDeviceGetPdi", "", lambda: bool(nvml.nvmlDeviceGetPdi(handle)))
        yield from self._supported_clocks(handle)
        yield from self._fields(handle)
        yield from self._links(handle)
        yield from self._topology(handle, index, handles)
        yield from self._events(handle)
        yield from self._gpm(handle)
        yield from self._mig_readings(handle)

    def _lookup_readings(self, handle: Any) -> Iterator[Reading]:
        """Look the GPU up by each of its identifiers, and yield the resulting index."""
        nvml = self._nvml
        for call, name in (
            ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetIndex"),
            ("nvmlDeviceGetHandleByUUID", "nvmlDeviceGetUUID"),
            ("nvmlDeviceGetHandleBySerial", "nvmlDeviceGetSerial"),
        ):
            yield self._custom(
                call, "", lambda call=call, name=name: self._index(getattr(nvml, call)(getattr(nvml, name)(handle)))
            )
        yield self._custom(
            "nvmlDeviceGetHandleByPciBusId",
            "",
            lambda: self._index(nvml.nvmlDeviceGetHandleByPciBusId(nvml.nvmlDeviceGetPciInfo(handle).busId)),
        )

    def _pci_info_ext(self, handle: Any) -> Any:
        info = self._nvml.nvmlPciInfoExt_v1_t()
        info.version = self._nvml.nvmlPciInfoExt_v1
        self._nvml.nvmlDeviceGetPciInfoExt(handle, ctypes.byref(info))
        return info

    def _sram_errors(self, handle: Any) -> Any:
        status = self._nvml.c_nvmlEccSramErrorStatus_v1_t()
        status.version = self._nvml.nvmlEccSramErrorStatus_v1
        self._nvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
        return status

    def _capabilities(self, handle: Any) -> int:
        capabilities = self._nvml.c_nvmlDeviceCapabilities_v1_t()
        capabilities.version = self._nvml.nvmlDeviceCapabilities_v1
        self._nvml._nvmlCheckReturn(self._nvml.nvmlDeviceGetCapabilities(handle, ctypes.byref(capabilities)))
        return capabilities.capMask

    def _supported_clocks(self, handle: Any) -> Iterator[Reading]:
        clocks: list[int] = []
        with contextlib.suppress(self._nvml.NVMLError):
            clocks = self._nvml.nvmlDeviceGetSupportedMemoryClocks(handle)
        for mhz in clocks:
            words = "memory %d MHz" % mhz
            yield self._reading(getters.Getter("nvmlDeviceGetSupportedGraphicsClocks", (mhz,), words), handle)

    def _fabric(self, call: str, kind: str, handle: Any) -> Any:
        info = getattr(self._nvml, kind)()
        if hasattr(info, "version"):
            info.version = self._nvml.nvmlGpuFabricInfo_v2
        getattr(self._nvml, call)(handle, ctypes.byref(info))
        # Leave out the cluster's id, because it only identifies the location.
        return {"state": info.state, "status": info.status}

    def _fields(self, handle: Any) -> Iterator[Reading]:
        wanted = [(number, 0, name) for number, name in getters.FIELDS.items()]
        wanted += [(number, scope, name) for (number, scope), name in getters.POWER_FIELDS.items()]
        yield from self._field_readings(handle, wanted)

    def _field_readings(self, handle: Any, wanted: list[tuple[int, int, str]]) -> Iterator[Reading]:
        call = "nvmlDeviceGetFieldValues"
        try:
            values = self._nvml.nvmlDeviceGetFieldValues(handle, [(number, scope) for number, scope, _name in wanted])
        except self._nvml.NVMLError as error:
            yield {"call": call, "of": "", "error": type(error).__name__.replace("NVMLError_", ""), "code": error.value}
            return
        for (_number, _scope, name), value in zip(wanted, values):
            yield self._custom(call, name, lambda value=value: self._field(value))

    def _field(self, value: Any) -> Any:
        self._nvml._nvmlCheckReturn(value.nvmlReturn)
        # The union's member for each NVML_VALUE_TYPE_*, in the order: double, unsigned, unsigned long, unsigned long
        # long, signed long long, signed, unsigned short.
        names = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
        return getattr(value.value, names[value.valueType])

    def _links(self, handle: Any) -> Iterator[Reading]:
        for link in range(getattr(self._nvml, "NVML_NVLINK_MAX_LINKS", 18)):
            words = "link %d" % link
            state = self._reading(getters.Getter("nvmlDeviceGetNvLinkState", (link,), words), handle)
            yield state
            if "value" not in state:
                # The GPU has no more links, or NVML cannot read them either.
                return
            yield self._reading(getters.Getter("nvmlDeviceGetNvLinkVersion", (link,), words), handle)
            yield self._reading(getters.Getter("nvmlDeviceGetNvLinkRemotePciInfo", (link,), words), handle)
            for number, name in enumerate(getters.LINK_CAPABILITIES):
                yield self._reading(
                    getters.Getter("nvmlDeviceGetNvLinkCapability", (link, number), "%s %s" % (words, name)), handle
                )
            for number, name in enumerate(getters.LINK_ERRORS):
                yield self._reading(
                    getters.Getter("nvmlDeviceGetNvLinkErrorCounter", (link, number), "%s %s" % (words, name)), handle
                )
            fields = [(number, link, "%s %s" % (words, name)) for number, name in getters.LINK_FIELDS.items()]
            yield from self._field_readings(handle, fields)

    def _topology(self, handle: Any, index: int, handles: dict[int, Any]) -> Iterator[Reading]:
        nvml = self._nvml
        for other, peer in handles.items():
            if other == index:
                continue
            words = "gpu %d" % other
            yield self._custom(
                "nvmlDeviceGetTopologyCommonAncestor",
                words,
                lambda peer=peer: nvml.nvmlDeviceGetTopologyCommonAncestor(handle, peer),
            )
            for number, name in enumerate(getters.PEER_TO_PEER):
                yield self._custom(
                    "nvmlDeviceGetP2PStatus",
                    "%s %s" % (words, name),
                    lambda peer=peer, number=number: nvml.nvmlDeviceGetP2PStatus(handle, peer, number),
                )
        for level, name in getters.LEVELS.items():
            yield self._custom(
                "nvmlDeviceGetTopologyNearestGpus",
                name,
                lambda level=level: self._indices_of(nvml.nvmlDeviceGetTopologyNearestGpus(handle, level)),
            )

    def _events(self, handle: Any) -> Iterator[Reading]:
        """Register for Xid errors, and check once for a pending error."""
        nvml = self._nvml
        made: list[Any] = []
        yield self._custom("nvmlEventSetCreate", "", lambda: made.append(nvml.nvmlEventSetCreate()))
        if not made:
            return
        yield self._custom(
            "nvmlDeviceRegisterEvents", "xid", lambda: nvml.nvmlDeviceRegisterEvents(handle, _XID, made[0])
        )
        yield self._custom("nvmlEventSetWait", "0 ms", lambda: self._pending_xid(made[0]))
        yield self._custom("nvmlEventSetFree", "", lambda: nvml.nvmlEventSetFree(made[0]))

    def _pending_xid(self, events: Any) -> int | None:
        try:
            return int(self._nvml.nvmlEventSetWait(events, 0).eventData)
        except self._nvml.NVMLError as error:
            if error.value == _TIMEOUT:
                return None
            raise

    def _gpm(self, handle: Any) -> Iterator[Reading]:
        nvml = self._nvml
        support = self._custom(
            "nvmlGpmQueryDeviceSupport", "", lambda: nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice
        )
        yield support
        if not support.get("value"):
            return
        samples: list[Any] = []
        try:
            for _number in range(2):
                yield self._custom("nvmlGpmSampleAlloc", "", lambda: samples.append(nvml.nvmlGpmSampleAlloc()))
            if len(samples) < 2:
                return
            for number, sample in enumerate(samples):
                if number:
                    time.sleep(_GPM_SECONDS)
                yield self._custom(
                    "nvmlGpmSampleGet",
                    "sample %d" % number,
                    lambda sample=sample: bool(nvml.nvmlGpmSampleGet(handle, sample)),
                )
            yield from self._gpm_metrics(samples)
            yield from self._gpm_of_instance(handle, samples[0])
        finally:
            for sample in samples:
                nvml.nvmlGpmSampleFree(sample)

    def _gpm_metrics(self, samples: list[Any]) -> Iterator[Reading]:
        nvml = self._nvml
        wanted = nvml.c_nvmlGpmMetricsGet_t()
        wanted.version = nvml.NVML_GPM_METRICS_GET_VERSION
        wanted.sample1, wanted.sample2 = samples
        wanted.numMetrics = len(getters.GPM_METRICS)
        for place, number in enumerate(getters.GPM_METRICS):
            wanted.metrics[place].metricId = number
        got = self._custom("nvmlGpmMetricsGet", "", lambda: bool(nvml.nvmlGpmMetricsGet(wanted)))
        yield got
        if "value" in got:
            for place, name in enumerate(getters.GPM_METRICS.values()):
                yield self._custom("nvmlGpmMetricsGet", name, lambda metric=wanted.metrics[place]: self._metric(metric))

    def _metric(self, metric: Any) -> float:
        self._nvml._nvmlCheckReturn(metric.nvmlReturn)
        return float(metric.value)

    def _gpm_of_instance(self, handle: Any, sample: Any) -> Iterator[Reading]:
        for instance, _profile in self._instances_of(handle):
            number = self._nvml.nvmlGpuInstanceGetInfo(instance).id
            yield self._custom(
                "nvmlGpmMigSampleGet",
                "gi %d" % number,
                lambda number=number: bool(self._nvml.nvmlGpmMigSampleGet(handle, number, sample)),
            )
            return


def _problem(error: NvmlError) -> dict[str, Any]:
    return {"text": str(error), "code_name": error.code_name}
