# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the readings from a host. Pure.

NVML's answers must not contradict each other, nvidia-smi, the kernel's files, or the model files.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Iterator, Mapping, Sequence

from ...module_utils.hardware.model_readings import Readings, is_filled, is_idle, why_links_are_off, with_parameters
from . import model_file
from .host_checks import kernel_checks, smi_checks
from .outcome import DIFFERS, PASSED, Check, compared, not_run, shown

#: NVML errors that are a valid answer to a query.
_ANSWERS = {
    "NotSupported": "not supported",
    "NotFound": "nothing found",
}
#: NVML errors for values that could not be queried.
_NOT_ASKED = {
    "NoPermission": "needs root",
    "FunctionNotFound": "the driver has no such function",
    "LibraryNotFound": "the library lacks it",
    "ArgumentVersionMismatch": "this driver has another version of the structure",
}
#: Errors that end the list of links.
_PAST_THE_END = {("nvmlDeviceGetNvLinkState", "InvalidArgument")}
#: Errors that are normal on a host with one GPU (H200, driver 580.159.04).
_ALONE = {("nvmlDeviceGetTopologyNearestGpus", "InvalidArgument")}
_HANDLES = ("ByIndex", "ByUUID", "BySerial", "ByPciBusId")
#: Tolerance between two temperatures in degrees, because they are read one after the other.
_DEGREES = 3


def judge(reading: Mapping[str, Any], files: Sequence[model_file.ModelFile]) -> list[Check]:
    """Return all checks: first about the host, then about each GPU."""
    nvml = reading["nvml"]
    by_index = {gpu["index"]: gpu for gpu in nvml["gpus"]}
    result = [*_answers(None, nvml["calls"]), *_of_the_facts(nvml["facts"])]
    result += smi_checks(nvml["facts"], reading["nvidia_smi"])
    result += kernel_checks(nvml, reading["files"])
    for index, gpu in sorted(by_index.items()):
        if gpu["problem"]:
            result.append(
                Check(
                    "NVML",
                    index,
                    "nvmlDeviceGetHandleByIndex",
                    DIFFERS,
                    "a handle",
                    gpu["code_name"] or "",
                    gpu["problem"],
                )
            )
            result += [
                not_run(area, index, "all checks", "NVML returns no handle for this GPU")
                for area in ("model file", "links")
            ]
            continue
        readings = readings_of(gpu, reading["nvidia_smi"], reading["files"])
        result += _answers(index, Readings(gpu["calls"]).calls, alone=len(by_index) == 1)
        result += _agreement(index, readings)
        result += _links(index, readings)
        result += _power_and_clocks(index, readings)
        result += model_file.checks(index, readings, files, nvml["simulated"])
    return result


def readings_of(gpu: Mapping[str, Any], nvidia_smi: Mapping[str, Any], files: Mapping[str, Any]) -> Readings:
    """Return a GPU's readings, including values that are not from NVML.

    These come from nvidia-smi and the parameters of the driver's kernel module.
    """
    calls = with_parameters(gpu["calls"], files)
    uuid = Readings(calls).value("nvmlDeviceGetUUID")
    for other in nvidia_smi.get("gpus") or ():
        if other["uuid"] == uuid and other.get("gpu_part_number"):
            number = other["gpu_part_number"]
            reading = {"call": "nvidia-smi", "of": "gpu_part_number"}
            calls.append(dict(reading, error="NotSupported") if "N/A" in number else dict(reading, value=number))
    return Readings(calls)


def _answers(gpu: int | None, calls: Sequence[Mapping[str, Any]], alone: bool = False) -> Iterator[Check]:
    """Yield one check per NVML function.

    The check passes if NVML answered with a value, or with an error that counts as an answer. `alone` is true if the
    host has no other GPU.
    """
    answers = _PAST_THE_END | _ALONE if alone else _PAST_THE_END
    by_call = defaultdict(list)
    for reading in calls:
        by_call[reading["call"]].append(reading)
    for call, readings in sorted(by_call.items()):
        wrong = [
            r
            for r in readings
            if "error" in r and r["error"] not in {*_ANSWERS, *_NOT_ASKED} and (call, r["error"]) not in answers
        ]
        unasked = [r for r in readings if "missing" in r or r.get("error") in _NOT_ASKED]
        values = [r for r in readings if "value" in r]
        if wrong:
            found = "; ".join(_failed(reading) for reading in wrong[:3])
            yield Check("NVML", gpu, call, DIFFERS, "an answer", found)
        elif unasked and not values:
            first = unasked[0]
            yield not_run("NVML", gpu, call, first.get("missing") or _NOT_ASKED[first["error"]])
        else:
            found = shown(values[0]["value"]) if len(readings) == len(values) == 1 else _counted(readings)
            yield Check("NVML", gpu, call, PASSED, "an answer", found[:80])


def _failed(reading: Mapping[str, Any]) -> str:
    return "%s%s" % ("%s: " % reading["of"] if reading.get("of") else "", reading["error"])


def _counted(readings: Sequence[Mapping[str, Any]]) -> str:
    values, unfilled = (
        sum(map(test, readings)) for test in (lambda one: "value" in one, lambda one: not is_filled(one))
    )
    rest = len(readings) - values - unfilled
    parts = [(values, "%d values"), (rest, "%d not supported"), (unfilled, "%d not filled in")]
    return ", ".join(words % count for count, words in parts if count) if values else "not supported"


def _of_the_facts(facts: Mapping[str, Any]) -> Iterator[Check]:
    what = "the facts of every GPU"
    if any(problem["code_name"] == "NoPermission" for problem in facts["problems"]):
        yield not_run("gpu_info", None, what, "needs root on a host with GPUs in MIG mode")
    problems = [problem["text"] for problem in facts["problems"] if problem["code_name"] != "NoPermission"]
    problems += ["gpu %d: %s" % (gpu["index"], gpu["problem"]) for gpu in facts.get("lost") or ()]
    if problems:
        yield Check("gpu_info", None, what, DIFFERS, "all GPUs answer", "; ".join(problems))
    elif not facts["problems"]:
        yield Check("gpu_info", None, what, PASSED, "all GPUs answer", "%d GPUs" % len(facts["gpus"]))


def _agreement(gpu: int, readings: Readings) -> Iterator[Check]:
    """Check that NVML functions for the same information agree."""
    area = "NVML agrees"
    index = readings.value("nvmlDeviceGetIndex")
    for name in _HANDLES:
        call = "nvmlDeviceGetHandle%s" % name
        handle = readings.field(call)
        yield (
            compared(area, gpu, call, index, handle.value)
            if handle.value is not None
            else not_run(area, gpu, call, handle.reason)
        )
    total = readings.field("nvmlDeviceGetMemoryInfo", "", lambda value: value["total"])
    second = readings.field("nvmlDeviceGetMemoryInfo", "version 2", lambda value: value["total"])
    yield from _both(area, gpu, "total memory of both versions", total, second)
    for kind in ("corrected", "uncorrected"):
        for counter in ("volatile", "aggregate"):
            words = "%s %s" % (kind, counter)
            yield from _both(
                area,
                gpu,
                "ECC errors, %s: function and field" % words,
                readings.field("nvmlDeviceGetTotalEccErrors", words),
                readings.field("nvmlDeviceGetFieldValues", "ecc %s" % words),
            )
    for place, name in enumerate(("remapped correctable", "remapped uncorrectable", "remap pending", "remap failed")):
        yield from _both(
            area,
            gpu,
            "%s rows: function and field" % name,
            readings.field("nvmlDeviceGetRemappedRows", "", lambda value, place=place: value[place]),
            readings.field("nvmlDeviceGetFieldValues", name),
        )
    for place, name in enumerate(("min", "max")):
        yield from _both(
            area,
            gpu,
            "%s power limit: function and field" % name,
            readings.field("nvmlDeviceGetPowerManagementLimitConstraints", "", lambda value, place=place: value[place]),
            readings.field("nvmlDeviceGetFieldValues", "power %s limit" % name),
        )
    yield from _temperatures(area, gpu, readings)


def _both(area: str, gpu: int, what: str, first: Any, second: Any) -> Iterator[Check]:
    """Compare two readings that must be equal."""
    if not first.known or not second.known:
        yield not_run(area, gpu, what, first.reason if not first.known else second.reason)
    elif first.value is None and second.value is None:
        yield Check(area, gpu, what, PASSED, "not supported", "not supported")
    else:
        yield compared(area, gpu, what, first.value, second.value)


def _temperatures(area: str, gpu: int, readings: Readings) -> Iterator[Check]:
    what = "temperature: both functions"
    first = readings.field("nvmlDeviceGetTemperature", "gpu")
    second = readings.field("nvmlDeviceGetTemperatureV", "gpu")
    if first.value is None or second.value is None:
        yield not_run(area, gpu, what, first.reason or second.reason)
        return
    outcome = PASSED if abs(first.value - second.value) <= _DEGREES else DIFFERS
    yield Check(area, gpu, what, outcome, "about %d" % first.value, shown(second.value))


def _links(gpu: int, readings: Readings) -> Iterator[Check]:
    """Check the NVLinks and the PCIe link."""
    states = readings.all("nvmlDeviceGetNvLinkState")
    active = [of for of, state in states if state]
    if not states:
        yield not_run("links", gpu, "NVLinks", why_links_are_off(readings) or "the GPU has no NVLinks")
    elif not active:
        yield not_run("links", gpu, "NVLinks", "none of %d NVLinks is active" % len(states))
    else:
        yield compared("links", gpu, "active NVLinks", len(states), len(active))
        speeds = [
            value
            for of, value in readings.all("nvmlDeviceGetFieldValues")
            if of.endswith(" speed") and of[: -len(" speed")] in active
        ]
        yield Check(
            "links",
            gpu,
            "speed of the NVLinks",
            PASSED if len(set(speeds)) == 1 else DIFFERS,
            "the same for all",
            shown(sorted(set(speeds))),
        )
        errors = ["%s: %d" % (of, value) for of, value in readings.all("nvmlDeviceGetNvLinkErrorCounter") if value]
        yield Check(
            "links", gpu, "NVLink errors", DIFFERS if errors else PASSED, "none", "; ".join(errors[:5]) or "none"
        )
    width, most = readings.field("nvmlDeviceGetCurrPcieLinkWidth"), readings.field("nvmlDeviceGetMaxPcieLinkWidth")
    if width.value is None or most.value is None:
        yield not_run("links", gpu, "PCIe width", width.reason or most.reason)
    else:
        yield compared("links", gpu, "PCIe width", most.value, width.value)
    yield _generation(gpu, readings)


def _generation(gpu: int, readings: Readings) -> Check:
    """Check the PCIe generation. It may be lower while the GPU is idle."""
    now, most = (
        readings.field("nvmlDeviceGetCurrPcieLinkGeneration"),
        readings.field("nvmlDeviceGetMaxPcieLinkGeneration"),
    )
    what = "PCIe generation"
    if now.value is None or most.value is None:
        return not_run("links", gpu, what, now.reason or most.reason)
    if now.value < most.value and (readings.value("nvmlDeviceGetPerformanceState") or is_idle(readings).value):
        return not_run("links", gpu, what, "the GPU is idle, with its link at generation %d" % now.value)
    return compared("links", gpu, what, most.value, now.value)


def _power_and_clocks(gpu: int, readings: Readings) -> Iterator[Check]:
    area = "power and clocks"
    limit = readings.field("nvmlDeviceGetPowerManagementLimit")
    bounds = readings.field("nvmlDeviceGetPowerManagementLimitConstraints")
    if limit.value is None or bounds.value is None:
        yield not_run(area, gpu, "power limit", limit.reason or bounds.reason)
    else:
        least, most = bounds.value
        outcome = PASSED if least <= limit.value <= most else DIFFERS
        yield Check(area, gpu, "power limit", outcome, "%d to %d mW" % (least, most), "%d mW" % limit.value)
    for kind in ("graphics", "sm", "memory", "video"):
        now, most = readings.field("nvmlDeviceGetClockInfo", kind), readings.field("nvmlDeviceGetMaxClockInfo", kind)
        if now.value is None or most.value is None:
            yield not_run(area, gpu, "%s clock" % kind, now.reason or most.reason)
        else:
            outcome = PASSED if now.value <= most.value else DIFFERS
            yield Check(area, gpu, "%s clock" % kind, outcome, "at most %d MHz" % most.value, "%d MHz" % now.value)
    mode = readings.field("nvmlDeviceGetEccMode")
    if mode.value is None:
        yield not_run("ECC", gpu, "ECC mode", mode.reason)
    else:
        yield compared("ECC", gpu, "ECC mode, now and after a reboot", bool(mode.value[0]), bool(mode.value[1]))
