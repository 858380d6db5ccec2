# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Derive a model file's fields from a GPU's readings, with pure functions.

Readings are plain data in the format of hardware/asking.py. They may come from a report. A field is identified by its
path in the model file: ``power_watts.default``, ``profiles.3g.40gb.memory_mib``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterable, Mapping

#: Values from nvml.h: nvmlBrandType_t and NVML_DEVICE_ARCH_*.
_BRANDS = {14: "NVIDIA", 12: "NVIDIA RTX"}
_ARCHITECTURES = {5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper", 10: "Blackwell"}
#: FP32 cores per multiprocessor (CUDA Programming Guide, "Compute Capabilities").
CORES = {"7.0": 64, "7.5": 64, "8.0": 64, "8.6": 128, "8.9": 128, "9.0": 128, "10.0": 128, "10.3": 128, "12.0": 128}
#: NVML errors that mean that the GPU lacks a feature.
_LACKS = ("NotSupported", "FunctionNotFound")
#: Name of the readings of module parameters, and the parameter that disables NVLinks.
PARAMETERS, _NVLINK_DISABLE = "/proc/driver/nvidia/params", "NvLinkDisable"
#: Reason for a field that the driver did not set. The driver returns every field that it sets as an integer. Any other
#: field keeps the caller's initial value, a zero of type double.
_NOT_FILLED = "the driver reports success but returns no value"
#: Maximum utilization in percent of an idle GPU. It does not raise the clocks.
_BUSY_PERCENT = 1


@dataclass(frozen=True)
class Field:
    """The value of a field.

    `known` is true if the GPU answered the call. `value` is None if the answer is that the GPU lacks the feature.
    """

    value: Any
    known: bool = True
    reason: str = ""
    call: str = ""


class Readings:
    """The readings of one GPU, by call and subject."""

    def __init__(self, calls: Iterable[Mapping[str, Any]]) -> None:
        self.calls = [_as_filled(reading) for reading in calls]
        self._by_name = {(reading["call"], reading.get("of", "")): reading for reading in self.calls}

    def field(self, call: str, of: str = "", part: Callable[[Any], Any] | None = None) -> Field:
        """Return the value of a call, or a part of the value.

        If the call failed, the field is unknown.
        """
        words = "%s (%s)" % (call, of) if of else call
        reading = self._by_name.get((call, of))
        if reading is None:
            return Field(None, False, "%s was not read" % words, words)
        if "value" in reading:
            try:
                return Field(part(reading["value"]) if part else reading["value"], call=words)
            except (KeyError, TypeError, ValueError, IndexError):
                return Field(None, False, "%s returned an unexpected format" % words, words)
        if reading.get("error") in _LACKS:
            return Field(None, True, "%s: %s" % (words, reading["error"]), words)
        return Field(None, False, "%s: %s" % (words, reading.get("error") or reading.get("missing")), words)

    def value(self, call: str, of: str = "") -> Any:
        """Return the value of a call, or None if it failed."""
        return self.field(call, of).value

    def all(self, call: str) -> list[tuple[str, Any]]:
        """Return (subject, value) of every successful reading of a call."""
        return [(r.get("of", ""), r["value"]) for r in self.calls if r["call"] == call and "value" in r]


def is_filled(reading: Mapping[str, Any]) -> bool:
    """Return whether the driver filled in a reading's value."""
    return reading.get("missing") != _NOT_FILLED


def _as_filled(reading: Mapping[str, Any]) -> dict[str, Any]:
    value = reading.get("value")
    if reading["call"] == "nvmlDeviceGetFieldValues" and isinstance(value, float) and value == 0:
        return {"call": reading["call"], "of": reading.get("of", ""), "missing": _NOT_FILLED}
    return dict(reading)


def with_parameters(calls: Iterable[Mapping[str, Any]], files: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the calls, and the module parameters in `files` as further readings.

    Old reports have no module parameters.
    """
    parameters = (files.get("parameters") or {}).items()
    return [*calls, *({"call": PARAMETERS, "of": name, "value": value} for name, value in parameters)]


def why_links_are_off(readings: Readings) -> str:
    """Return why NVLinks that the GPU may have cannot be read.

    Returns "" if NVLinks are not disabled.
    """
    value = readings.value(PARAMETERS, _NVLINK_DISABLE)
    return "" if value in (None, "0") else "the driver's module runs with %s=%s" % (_NVLINK_DISABLE, value)


def is_idle(readings: Readings) -> Field:
    """Return whether the GPU was idle during the readings."""
    counts = [
        readings.value("nvmlDeviceGet%sRunningProcesses" % name, "count")
        for name in ("Compute", "Graphics", "MPSCompute")
    ]
    if any(counts):
        return Field(False, reason="processes use the GPU")
    rates = readings.field("nvmlDeviceGetUtilizationRates", part=lambda value: int(value["gpu"]))
    if rates.value is None:
        return Field(None, False, rates.reason or "the utilization is unknown")
    if rates.value > _BUSY_PERCENT:
        return Field(False, reason="the GPU is %d %% busy" % rates.value)
    # An H200 keeps its highest clock for some seconds after its last process has ended.
    clock, most = (readings.value("nvmlDeviceGet%sClockInfo" % word, "graphics") for word in ("", "Max"))
    if clock is not None and clock == most:
        return Field(False, reason="it runs at its highest clock, because work has just ended or the clocks are locked")
    return Field(True)


def fields_of(readings: Readings) -> dict[str, Field]:
    """Return all fields of the GPU's model file with their values, by path."""
    read = readings.field
    fields = {
        "name": read("nvmlDeviceGetName"),
        "pci_device_id": read("nvmlDeviceGetPciInfo", part=lambda pci: "%04x" % (pci["pciDeviceId"] >> 16)),
        "pci_subsystem_id": read("nvmlDeviceGetPciInfo", part=_subsystem),
        "brand": read("nvmlDeviceGetBrand", part=lambda brand: _BRANDS.get(brand, "brand %d of nvml.h" % brand)),
        "architecture": read(
            "nvmlDeviceGetArchitecture",
            part=lambda number: _ARCHITECTURES.get(number, "architecture %d of nvml.h" % number),
        ),
        "compute_capability": read("nvmlDeviceGetCudaComputeCapability", part=lambda pair: "%d.%d" % tuple(pair)),
        "multiprocessors": _multiprocessors(readings),
        "memory_total_mib": _mib(read("nvmlDeviceGetMemoryInfo", "version 2", lambda memory: memory["total"])),
        "memory_reserved_mib": _mib(read("nvmlDeviceGetMemoryInfo", "version 2", lambda memory: memory["reserved"])),
        "bar1_total_mib": _mib(read("nvmlDeviceGetBAR1MemoryInfo", part=lambda memory: memory["bar1Total"])),
        "memory_bus_width_bits": read("nvmlDeviceGetMemoryBusWidth"),
        "row_remapper_banks": _banks(readings),
        "power_watts.default": read("nvmlDeviceGetPowerManagementDefaultLimit", part=_watts),
        "power_watts.min": read("nvmlDeviceGetPowerManagementLimitConstraints", part=lambda pair: _watts(pair[0])),
        "power_watts.max": read("nvmlDeviceGetPowerManagementLimitConstraints", part=lambda pair: _watts(pair[1])),
        **{
            "module_power_watts.%s" % name: read("nvmlDeviceGetFieldValues", "module power %s limit" % name, _watts)
            for name in ("default", "min", "max")
        },
        "supported_clocks_mhz": _supported_clocks(readings),
        "application_clock_mhz": read("nvmlDeviceGetDefaultApplicationsClock", "graphics"),
        "temperatures_celsius.max_operating": read("nvmlDeviceGetTemperatureThreshold", "gpu max"),
        "temperatures_celsius.slowdown": read("nvmlDeviceGetTemperatureThreshold", "slowdown"),
        "temperatures_celsius.shutdown": read("nvmlDeviceGetTemperatureThreshold", "shutdown"),
        "memory_temperatures_celsius.max": read("nvmlDeviceGetTemperatureThreshold", "memory max"),
        "temperature_margins": _has(read("nvmlDeviceGetMarginTemperature")),
        "pcie.generation": read("nvmlDeviceGetGpuMaxPcieLinkGeneration"),
        "pcie.width": read("nvmlDeviceGetMaxPcieLinkWidth"),
        "nvlink_links": _of_links(readings, _or_zero(read("nvmlDeviceGetFieldValues", "nvlink count"))),
        "nvlink_mb_per_second": _of_links(readings, _link_speed(readings)),
        "c2c_links": _or_zero(read("nvmlDeviceGetFieldValues", "c2c links")),
        "c2c_mb_per_second": read("nvmlDeviceGetFieldValues", "c2c speed"),
        "vbios_version": read("nvmlDeviceGetVbiosVersion"),
        "board_part_number": read("nvmlDeviceGetBoardPartNumber"),
        "gpu_part_number": read("nvidia-smi", "gpu_part_number"),
        "inforom.image": read("nvmlDeviceGetInforomImageVersion"),
        **{"inforom.%s" % name: read("nvmlDeviceGetInforomVersion", name) for name in ("oem", "ecc", "power")},
        "on_module": _on_module(readings),
        "mig_capable": _has(read("nvmlDeviceGetMigMode")),
        "mig_needs_reset": read("nvmlDeviceGetFieldValues", "resetless mig", lambda resetless: not resetless),
    }
    for kind in ("graphics", "sm", "memory", "video"):
        fields["clocks_mhz.%s" % kind] = read("nvmlDeviceGetMaxClockInfo", kind)
    fields.update(_idle(readings))
    if fields["mig_capable"].value:
        fields.update(_mig(readings))
    elif fields["mig_needs_reset"].known:
        fields["mig_needs_reset"] = Field(False, call="nvmlDeviceGetMigMode")
    return fields


def profile_names(fields: Mapping[str, Field]) -> list[str]:
    """Return the names of the GPU instance profiles in NVML's order."""
    return [path[len("profiles.") : -len(".profile_id")] for path in fields if path.endswith(".profile_id")]


def _idle(readings: Readings) -> dict[str, Field]:
    """Return the fields that are valid only for an idle GPU."""
    read = readings.field
    found = {
        "power_watts.idle": read("nvmlDeviceGetPowerUsage", part=_watts),
        "memory_power_watts": read("nvmlDeviceGetFieldValues", "memory power average", _watts),
        "module_power_watts.idle": read("nvmlDeviceGetFieldValues", "module power average", _watts),
        "idle_performance_state": read("nvmlDeviceGetPerformanceState"),
        "idle_fan_percent": read("nvmlDeviceGetFanSpeed"),
        "temperatures_celsius.idle": read("nvmlDeviceGetTemperature", "gpu"),
        "memory_temperatures_celsius.idle": read("nvmlDeviceGetFieldValues", "memory temperature"),
        **{
            "idle_clocks_mhz.%s" % kind: read("nvmlDeviceGetClockInfo", kind)
            for kind in ("graphics", "memory", "video")
        },
    }
    idle = is_idle(readings)
    if idle.value:
        return found
    return {
        path: Field(None, False, "the GPU is not known to be idle: %s" % idle.reason, each.call)
        for path, each in found.items()
    }


def _mig(readings: Readings) -> dict[str, Field]:
    fields: dict[str, Field] = {}
    slices, units = [], []
    for of, info in readings.all("nvmlDeviceGetGpuInstanceProfileInfo"):
        if not of.startswith("profile "):
            # Version 1 of NVML's structure has no names.
            continue
        name = str(info["name"]).replace("MIG ", "")
        number = int(of.rpartition(" ")[2])
        places = readings.field("nvmlDeviceGetGpuInstancePossiblePlacements", of)
        values = {
            "nvml_profile": number,
            "profile_id": info["id"],
            "compute_slices": info["sliceCount"],
            "memory_mib": info["memorySizeMB"],
            "multiprocessors": info["multiprocessorCount"],
            "copy_engines": info["copyEngineCount"],
            "decoders": info["decoderCount"],
            "encoders": info["encoderCount"],
            "jpeg_engines": info["jpegCount"],
            "ofa_engines": info["ofaCount"],
            "max_instances": info["instanceCount"],
        }
        call = "nvmlDeviceGetGpuInstanceProfileInfo (%s)" % of
        fields.update({"profiles.%s.%s" % (name, field): Field(value, call=call) for field, value in values.items()})
        for field, value in (
            ("placement_size", sorted({place["size"] for place in places.value or ()})),
            ("placement_starts", sorted(place["start"] for place in places.value or ())),
        ):
            single = (value[0] if value else None) if field == "placement_size" else value
            path = "profiles.%s.%s" % (name, field)
            fields[path] = (
                Field(single, call=places.call)
                if value
                else Field(None, False, places.reason or "none are listed", places.call)
            )
        slices.append(info["sliceCount"])
        units += [place["start"] + place["size"] for place in places.value or ()]
    unread = Field(None, False, "no profile was read")
    fields["compute_slices"] = Field(max(slices), call="nvmlDeviceGetGpuInstanceProfileInfo") if slices else unread
    fields["placement_units"] = (
        Field(max(units), call="nvmlDeviceGetGpuInstancePossiblePlacements") if units else unread
    )
    fields["max_gpu_instances"] = _max_gpu_instances(readings)
    return fields


def _max_gpu_instances(readings: Readings) -> Field:
    """Return the maximum number of instances.

    NVML reports 0 while MIG mode is off. The number is then computed from the profiles.
    """
    if any(readings.value("nvmlDeviceGetMigMode") or ()):
        return readings.field("nvmlDeviceGetMaxMigDeviceCount")
    call = "nvmlDeviceGetGpuInstanceProfileInfo"
    counts = [info["instanceCount"] for _of, info in readings.all(call)]
    return Field(max(counts), call=call) if counts else Field(None, False, "no profile was read", call)


def _multiprocessors(readings: Readings) -> Field:
    cores = readings.field("nvmlDeviceGetNumGpuCores")
    capability = readings.field("nvmlDeviceGetCudaComputeCapability", part=lambda pair: "%d.%d" % tuple(pair))
    if cores.value is None or capability.value is None:
        return Field(None, False, cores.reason or capability.reason, cores.call)
    if capability.value not in CORES:
        return Field(
            None,
            False,
            "the cores per multiprocessor of compute capability %s are unknown" % capability.value,
            cores.call,
        )
    return Field(cores.value // CORES[capability.value], call=cores.call)


def _supported_clocks(readings: Readings) -> Field:
    """Return each memory clock with its lowest and highest graphics clock."""
    memory = readings.field("nvmlDeviceGetSupportedMemoryClocks")
    if memory.value is None:
        return memory
    clocks = []
    for mhz in memory.value:
        graphics = readings.field("nvmlDeviceGetSupportedGraphicsClocks", "memory %d MHz" % mhz)
        if not graphics.value:
            return Field(None, False, graphics.reason or "no graphics clock is listed", graphics.call)
        clocks.append({"memory": mhz, "graphics": [min(graphics.value), max(graphics.value)]})
    return Field(clocks, call=memory.call)


def _banks(readings: Readings) -> Field:
    """Return the number of memory banks that have spare rows.

    A GPU in MIG mode does not report it.
    """
    banks = readings.field("nvmlDeviceGetRowRemapperHistogram", part=lambda found: sum(found.values()))
    if banks.known and banks.value is None and any(readings.value("nvmlDeviceGetMigMode") or ()):
        return Field(None, False, "GPUs in MIG mode do not report it", banks.call)
    return banks


def _link_speed(readings: Readings) -> Field:
    common = readings.field("nvmlDeviceGetFieldValues", "nvlink speed common")
    if common.value is not None:
        return common
    speeds = [
        value
        for of, value in readings.all("nvmlDeviceGetFieldValues")
        if of.startswith("link ") and of.endswith(" speed")
    ]
    return Field(max(speeds), call="nvmlDeviceGetFieldValues (speed)") if any(speeds) else common


def _of_links(readings: Readings, field: Field) -> Field:
    reason = why_links_are_off(readings)
    return Field(None, False, reason, field.call) if reason else field


def _on_module(readings: Readings) -> Field:
    """Return whether the GPU is on a baseboard.

    If only the module id is known and it is 1, the result is unknown, because a card may also report 1.
    """
    module = readings.field("nvmlDeviceGetModuleId")
    name = str(readings.value("nvmlDeviceGetName") or "")
    if "SXM" in name or (module.value or 0) > 1:
        return Field(True, call=module.call)
    if "PCIe" in name or module.value == 0:
        return Field(False, call=module.call)
    return Field(None, False, "module id 1 is either the first module or a card", module.call)


def _has(field: Field) -> Field:
    return Field(field.value is not None, call=field.call) if field.known else field


def _or_zero(field: Field) -> Field:
    return Field(field.value or 0, call=field.call) if field.known else field


def _subsystem(pci: Mapping[str, Any]) -> str | None:
    return "%04x" % (pci["pciSubSystemId"] >> 16) if pci["pciSubSystemId"] else None


def _mib(field: Field) -> Field:
    return field if field.value is None else Field(field.value >> 20, call=field.call)


def _watts(milliwatts: int) -> int:
    return round(milliwatts / 1000)
