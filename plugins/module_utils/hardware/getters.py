# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the read-only NVML functions for a host and for each GPU.

This list has the functions whose arguments are all numbers. reader.py calls the other functions. The numbers are
defined in nvml.h.
"""

from __future__ import annotations

from typing import Iterator, NamedTuple

CLOCKS = ("graphics", "sm", "memory", "video")
_CLOCK_IDS = ("current", "application", "default application", "customer boost")
_THRESHOLDS = (
    "shutdown", "slowdown", "memory max", "gpu max", "acoustic min", "acoustic current", "acoustic max", "gps"
)  # fmt: skip
_ECC_TYPES = ("corrected", "uncorrected")
_ECC_COUNTERS = ("volatile", "aggregate")
_ECC_LOCATIONS = ("L1", "L2", "DRAM", "register file", "texture", "texture shared", "CBU", "SRAM")
_INFOROM = ("oem", "ecc", "power")
LINK_CAPABILITIES = ("p2p", "sysmem", "p2p atomics", "sysmem atomics", "sli", "valid")
LINK_ERRORS = ("replay", "recovery", "crc flit", "crc data")
PEER_TO_PEER = ("read", "write", "nvlink", "atomics", "proprietary")
#: NVML_PAGE_RETIREMENT_CAUSE_*.
_RETIREMENT_CAUSES = ("single bit errors", "double bit error")
#: NVML_TOPOLOGY_*.
LEVELS = {0: "internal", 10: "single", 20: "multiple", 30: "hostbridge", 40: "node", 50: "system"}
_SCOPES = ("node", "socket")
#: Length of the bitmaps of CPUs and NUMA nodes, in longs. It exceeds Linux's defaults.
_CPU_WORDS, _NODE_WORDS = 64, 16

#: Names of NVML fields (NVML_FI_DEV_*) by number.
FIELDS = {
    1: "ecc current", 2: "ecc pending",
    3: "ecc corrected volatile", 4: "ecc uncorrected volatile", 5: "ecc corrected aggregate", 6: "ecc uncorrected aggregate",
    82: "memory temperature", 83: "total energy", 90: "nvlink speed common", 91: "nvlink count",
    94: "pcie replays", 95: "pcie replay rollovers",
    142: "remapped correctable", 143: "remapped uncorrectable", 144: "remap pending", 145: "remap failed",
    147: "nvswitch links", 170: "c2c links", 171: "c2c status", 172: "c2c speed", 184: "resetless mig",
    185: "power average", 186: "power instant", 187: "power min limit", 188: "power max limit", 189: "power default limit",
    190: "power current limit", 191: "energy", 192: "power requested limit",
    193: "margin shutdown", 194: "margin slowdown", 195: "margin memory", 196: "margin gpu max", 199: "profiles without mig",
}  # fmt: skip
#: Names of NVML fields that are read for each part of a board (NVML_POWER_SCOPE_*), by number.
POWER_FIELDS = {
    (185, 1): "module power average", (186, 1): "module power instant", (187, 1): "module power min limit",
    (188, 1): "module power max limit", (189, 1): "module power default limit", (190, 1): "module power current limit",
    (192, 1): "module power requested limit", (185, 2): "memory power average",
}  # fmt: skip
#: Names of NVML fields of an NVLink, by number.
LINK_FIELDS = {161: "replays", 162: "recoveries", 163: "crc errors", 164: "speed", 165: "state", 166: "version"}

#: Names of the GPM metrics that the collection uses, by number.
GPM_METRICS = {1: "graphics util", 2: "sm util", 3: "sm occupancy", 5: "any tensor util", 10: "dram bw util"}


class Getter(NamedTuple):
    """A pynvml call: its name, its arguments after the handle, and a description."""

    call: str
    arguments: tuple[int, ...] = ()
    of: str = ""


def of_host() -> Iterator[Getter]:
    """Return the calls that need no handle."""
    for name in ("GetDriverVersion", "GetNVMLVersion", "GetCudaDriverVersion", "GetCudaDriverVersion_v2"):
        yield Getter("nvmlSystem" + name)
    yield Getter("nvmlDeviceGetCount")


#: Functions whose only argument is a GPU's handle.
_PLAIN = (
    "GetIndex", "GetName", "GetUUID", "GetSerial", "GetMinorNumber", "GetBrand", "GetArchitecture",
    "GetCudaComputeCapability", "GetNumGpuCores", "GetPciInfo", "GetVbiosVersion", "GetBoardId", "GetBoardPartNumber",
    "GetInforomImageVersion", "GetMultiGpuBoard", "GetMemoryBusWidth", "GetVirtualizationMode", "GetDisplayActive",
    "GetDisplayMode", "GetGspFirmwareVersion", "GetGspFirmwareMode", "GetModuleId",
    "GetMemoryInfo", "GetBAR1MemoryInfo", "GetUtilizationRates", "GetEncoderUtilization", "GetDecoderUtilization",
    "GetJpgUtilization", "GetOfaUtilization", "GetEncoderStats", "GetFBCStats", "GetEncoderSessions", "GetFBCSessions",
    "GetC2cModeInfoV", "GetBusType", "GetAddressingMode", "GetRepairStatus",
    "GetSupportedMemoryClocks",
    "GetPowerUsage", "GetPowerManagementMode", "GetPowerManagementLimit", "GetPowerManagementDefaultLimit",
    "GetPowerManagementLimitConstraints", "GetEnforcedPowerLimit", "GetTotalEnergyConsumption",
    "GetPerformanceState", "GetPowerState", "GetCurrentClocksEventReasons", "GetSupportedClocksEventReasons",
    "GetCurrentClocksThrottleReasons", "GetSupportedClocksThrottleReasons",
    "GetMarginTemperature", "GetNumFans", "GetFanSpeed", "GetPersistenceMode", "GetComputeMode",
    "GetCurrPcieLinkGeneration", "GetMaxPcieLinkGeneration", "GetGpuMaxPcieLinkGeneration", "GetCurrPcieLinkWidth",
    "GetMaxPcieLinkWidth", "GetPcieLinkMaxSpeed", "GetPcieSpeed", "GetPcieReplayCounter",
    "GetEccMode", "GetRemappedRows", "GetRowRemapperHistogram", "GetRetiredPagesPendingStatus", "GetSupportedEventTypes",
    "GetMigMode", "GetMaxMigDeviceCount", "GetAccountingMode", "GetAccountingBufferSize",
    "GetConfComputeProtectedMemoryUsage",
)  # fmt: skip


def of_gpu() -> Iterator[Getter]:
    """Return the calls for a GPU whose other arguments are all numbers."""
    for name in _PLAIN:
        yield Getter("nvmlDevice" + name)
    yield Getter("nvmlDeviceIsMigDeviceHandle")
    for number, kind in enumerate(CLOCKS):
        for name in (
            "ClockInfo",
            "MaxClockInfo",
            "ApplicationsClock",
            "DefaultApplicationsClock",
            "MaxCustomerBoostClock",
        ):
            yield Getter("nvmlDeviceGet" + name, (number,), kind)
        for clock_id, which in enumerate(_CLOCK_IDS):
            yield Getter("nvmlDeviceGetClock", (number, clock_id), "%s %s" % (kind, which))
    yield Getter("nvmlDeviceGetTemperature", (0,), "gpu")
    yield Getter("nvmlDeviceGetTemperatureV", (0,), "gpu")
    for number, name in enumerate(_THRESHOLDS):
        yield Getter("nvmlDeviceGetTemperatureThreshold", (number,), name)
    for number, name in enumerate(_INFOROM):
        yield Getter("nvmlDeviceGetInforomVersion", (number,), name)
    for number, name in enumerate(("tx", "rx")):
        yield Getter("nvmlDeviceGetPcieThroughput", (number,), name)
    yield from _ecc()
    for number, name in enumerate(_RETIREMENT_CAUSES):
        yield Getter("nvmlDeviceGetRetiredPages", (number,), name)
        yield Getter("nvmlDeviceGetRetiredPages_v2", (number,), name)
    yield Getter("nvmlDeviceGetCpuAffinity", (_CPU_WORDS,))
    for number, name in enumerate(_SCOPES):
        yield Getter("nvmlDeviceGetCpuAffinityWithinScope", (_CPU_WORDS, number), name)
        yield Getter("nvmlDeviceGetMemoryAffinity", (_NODE_WORDS, number), name)


def _ecc() -> Iterator[Getter]:
    for error, of_type in enumerate(_ECC_TYPES):
        for counter, of_counter in enumerate(_ECC_COUNTERS):
            words = "%s %s" % (of_type, of_counter)
            yield Getter("nvmlDeviceGetTotalEccErrors", (error, counter), words)
            for place, of_place in enumerate(_ECC_LOCATIONS):
                yield Getter("nvmlDeviceGetMemoryErrorCounter", (error, counter, place), "%s %s" % (words, of_place))
