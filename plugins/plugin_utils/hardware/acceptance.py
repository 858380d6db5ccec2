# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply the acceptance rules for new and repaired hosts to readings. Pure.

Each rule returns a verdict, with a remedy for a failure.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Iterator, Mapping

from ...module_utils.hardware.model_readings import Field, Readings

PASS, FAIL, NOT_RUN = "pass", "fail", "not run"
#: Throttle reasons that indicate a problem of hardware or cooling: bits of nvmlClocksEventReason* in nvml.h.
_SLOWDOWNS = {
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "hardware power brake",
}
#: dcgmi's status words in lower case for passed tests, and for tests that were not run. Any other word means a failure.
_DCGM_PASS, _DCGM_SKIP = ("pass", "warn"), ("skip", "not run", "notrun")


@dataclass(frozen=True)
class Limits:
    """Limits for acceptance.

    `gpus` is the required number of GPUs. None accepts any number.
    """

    gpus: int | None = None
    ecc_errors: int = 0
    nvlink_errors: int = 0
    temperature_margin: int = 5


@dataclass(frozen=True)
class Verdict:
    """A rule's verdict.

    `gpu` is the GPU's index, or None for a rule about the host. `cure` is the remedy for a failure.
    """

    rule: str
    gpu: int | None
    outcome: str
    found: str = ""
    cure: str = ""

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        place = "host" if self.gpu is None else "gpu %d" % self.gpu
        return ("%s: %s: %s. %s" % (place, self.rule, self.found, self.cure)).rstrip()


def verdicts(reading: Mapping[str, Any], limits: Limits) -> list[Verdict]:
    """Return the verdicts of all rules: first about the host, then about each GPU."""
    gpus = reading["nvml"]["gpus"]
    result = [_count(gpus, limits), *_dcgm(reading.get("dcgm"))]
    for gpu in sorted(gpus, key=lambda gpu: gpu["index"]):
        index = gpu["index"]
        if gpu["problem"]:
            cure = "Look for Xid errors in the kernel log. If a cold start does not help, reseat or replace the GPU."
            result.append(Verdict("answers", index, FAIL, gpu["problem"].rstrip("."), cure))
            continue
        readings = Readings(gpu["calls"])
        result.append(Verdict("answers", index, PASS, "NVML gives a handle"))
        for rule in (_ecc, _rows, _links, _pcie, _slowdowns, _power, _temperature, _mig):
            result += rule(index, readings, limits)
    if len(gpus) > 1:
        result += _missing_links(gpus)
    return result


def accepted(results: list[Verdict]) -> bool:
    """Return whether no rule failed."""
    return all(verdict.outcome != FAIL for verdict in results)


def _judged(rule: str, index: int, good: bool, found: str, cure: str) -> Verdict:
    return Verdict(rule, index, PASS if good else FAIL, found, "" if good else cure)


def _unknown(rule: str, index: int, field: Field) -> Verdict:
    """Return the verdict for a value that could not be read.

    The rule counts as not run if the GPU or driver does not support the value, or if it was not read, for example
    without permission. After other errors, the rule fails.
    """
    if (
        field.known
        or "NoPermission" in field.reason
        or "was not read" in field.reason
        or "no such function" in field.reason
    ):
        return Verdict(rule, index, NOT_RUN, field.reason or "not supported by the GPU")
    return Verdict(
        rule, index, FAIL, field.reason, "Look for Xid errors in the kernel log, and check again after a cold start."
    )


def _count(gpus: Any, limits: Limits) -> Verdict:
    words = "%d GPUs" % len(gpus)
    if limits.gpus is None:
        return Verdict(
            "number of GPUs",
            None,
            NOT_RUN if gpus else FAIL,
            words,
            "" if gpus else "Check whether lspci shows the GPUs.",
        )
    cure = "Check whether lspci shows %d NVIDIA GPUs. Reseat missing GPUs and check their power cables." % limits.gpus
    good = len(gpus) == limits.gpus
    return Verdict(
        "number of GPUs", None, PASS if good else FAIL, "%s of %d" % (words, limits.gpus), "" if good else cure
    )


def _ecc(index: int, readings: Readings, limits: Limits) -> Iterator[Verdict]:
    mode = readings.field("nvmlDeviceGetEccMode")
    if mode.value is None:
        yield _unknown("ECC mode", index, mode)
        return
    now, pending = (bool(each) for each in mode.value)
    cure = "Turn it on (nvidia-smi -i %d -e 1) and reboot." % index if not pending else "Reboot, or reset the GPU."
    yield _judged(
        "ECC mode",
        index,
        now and pending,
        "on" if now and pending else "off" if not pending else "pending until a reset",
        cure,
    )
    for counter, what in (("volatile", "since the driver was loaded"), ("aggregate", "in the GPU's lifetime")):
        rule = "uncorrected ECC errors, %s" % counter
        count = readings.field("nvmlDeviceGetTotalEccErrors", "uncorrected %s" % counter)
        if count.value is None:
            yield _unknown(rule, index, count)
            continue
        cure = "Run `dcgmi diag -r 3`. If the count grows, ask the vendor for a replacement."
        yield _judged(rule, index, count.value <= limits.ecc_errors, "%d %s" % (count.value, what), cure)


def _rows(index: int, readings: Readings, limits: Limits) -> Iterator[Verdict]:
    rows = readings.field("nvmlDeviceGetRemappedRows")
    if rows.value is None:
        yield _unknown("remapped rows", index, rows)
        return
    _correctable, _uncorrectable, pending, failed = rows.value
    cure = "Reset the GPU (nvidia-smi --gpu-reset -i %d) or reboot, and check again." % index
    yield _judged("pending row remap", index, not pending, "pending" if pending else "none", cure)
    cure = "Replace the GPU, because its spare rows are used up."
    yield _judged("failed row remap", index, not failed, "failed" if failed else "none", cure)


def _links(index: int, readings: Readings, limits: Limits) -> Iterator[Verdict]:
    states = readings.all("nvmlDeviceGetNvLinkState")
    if not any(state for _of, state in states):
        # _missing_links reports this GPU if the host's other GPUs have links.
        return
    down = [of for of, state in states if not state]
    cure = (
        "Reseat the module or the bridge, restart the fabric manager, and check `nvidia-smi nvlink -s -i %d`." % index
    )
    found = "%s down" % ", ".join(down) if down else "all %d active" % len(states)
    yield _judged("NVLinks", index, not down, found, cure)
    errors = [
        (of, value) for of, value in readings.all("nvmlDeviceGetNvLinkErrorCounter") if value > limits.nvlink_errors
    ]
    words = ", ".join("%s: %d" % pair for pair in errors[:5])
    cure = "Reset the GPU and check again. If errors recur, replace cable, bridge or module."
    yield _judged("NVLink errors", index, not errors, words or "none", cure)


def _missing_links(gpus: Any) -> Iterator[Verdict]:
    """Yield a failure for each GPU without active links if other GPUs have some."""
    read = {gpu["index"]: Readings(gpu["calls"]).all("nvmlDeviceGetNvLinkState") for gpu in gpus if not gpu["problem"]}
    linked = [index for index, states in read.items() if any(state for _of, state in states)]
    for index, states in read.items():
        if linked and states and index not in linked:
            cure = "Reseat the module or the bridge, and check whether the fabric manager runs."
            yield Verdict(
                "NVLinks", index, FAIL, "none of %d is active, but other GPUs have active links" % len(states), cure
            )
        elif states and not linked:
            yield Verdict("NVLinks", index, NOT_RUN, "no GPU of the host has an active link, perhaps without a bridge")


def _pcie(index: int, readings: Readings, limits: Limits) -> Iterator[Verdict]:
    width, most = readings.field("nvmlDeviceGetCurrPcieLinkWidth"), readings.field("nvmlDeviceGetMaxPcieLinkWidth")
    if width.value is None or most.value is None:
        yield _unknown("PCIe width", index, width if width.value is None else most)
    else:
        cure = "Reseat the card. Check its slot and riser, and the slot's width in the firmware settings."
        yield _judged("PCIe width", index, width.value >= most.value, "x%d of x%d" % (width.value, most.value), cure)
    now, best = (
        readings.field("nvmlDeviceGetCurrPcieLinkGeneration"),
        readings.field("nvmlDeviceGetMaxPcieLinkGeneration"),
    )
    if now.value is None or best.value is None:
        yield _unknown("PCIe generation", index, now if now.value is None else best)
    elif now.value < best.value:
        # An idle GPU lowers its link's speed, so without load the value proves nothing.
        yield Verdict(
            "PCIe generation",
            index,
            NOT_RUN,
            "%d of %d, perhaps because the GPU is idle (DCGM measures it under load)" % (now.value, best.value),
        )
    else:
        yield Verdict("PCIe generation", index, PASS, "%d of %d" % (now.value, best.value))


def _slowdowns(index: int, readings: Readings, limits: Limits) -> Iterator[Verdict]:
    reasons = readings.field("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons.value is None:
        reasons = readings.field("nvmlDeviceGetCurrentClocksThrottleReasons")
    if reasons.value is None:
        yield _unknown("clocks", index, reasons)
        return
    active = [name for bit, name in _SLOWDOWNS.items() if reasons.value & bit]
    cure = "For a thermal reason check fans, airflow and heat sink, otherwise power cables and supplies."
    yield _judged("clocks", index, not active, "throttled: %s" % ", ".join(active) if active else "not throttled", cure)


def _power(index: int, readings: Readings, limits: Limits) -> Iterator[Verdict]:
    limit = readings.field("nvmlDeviceGetEnforcedPowerLimit")
    usual = readings.field("nvmlDeviceGetPowerManagementDefaultLimit")
    if limit.value is None or usual.value is None:
        yield _unknown("power limit", index, limit if limit.value is None else usual)
        return
    cure = "Reset it (nvidia-smi -i %d -pl %d), or find what limits it." % (index, usual.value // 1000)
    words = "%d W, default %d W" % (limit.value // 1000, usual.value // 1000)
    yield _judged("power limit", index, limit.value >= usual.value, words, cure)


def _temperature(index: int, readings: Readings, limits: Limits) -> Iterator[Verdict]:
    now = readings.field("nvmlDeviceGetTemperature", "gpu")
    most = readings.field("nvmlDeviceGetTemperatureThreshold", "gpu max")
    if most.value is None:
        most = readings.field("nvmlDeviceGetTemperatureThreshold", "slowdown")
    if now.value is None or most.value is None:
        yield _unknown("temperature", index, now if now.value is None else most)
    else:
        good = now.value <= most.value - limits.temperature_margin
        cure = "Check fans, airflow and heat sink."
        yield _judged("temperature", index, good, "%d °C, limit %d °C" % (now.value, most.value), cure)
    words = "no load was generated (dcgmi diag from level 2 on does so, with its own limits)"
    yield Verdict("temperature under load", index, NOT_RUN, words)


def _mig(index: int, readings: Readings, limits: Limits) -> Iterator[Verdict]:
    mode = readings.field("nvmlDeviceGetMigMode")
    if mode.value is None:
        if not mode.known:
            yield _unknown("MIG mode", index, mode)
        return
    same = mode.value[0] == mode.value[1]
    yield _judged(
        "MIG mode", index, same, "no change pending" if same else "a change is pending", "Reset the GPU or reboot."
    )


def _dcgm(dcgm: Mapping[str, Any] | None) -> Iterator[Verdict]:
    if dcgm is None:
        yield Verdict("DCGM", None, NOT_RUN, "not requested")
        return
    rule = "dcgmi diag -r %d" % dcgm["level"]
    if dcgm["missing"]:
        yield Verdict(rule, None, NOT_RUN, dcgm["missing"])
        return
    if dcgm.get("used"):
        gpus = ", ".join("gpu %d" % index for index in dcgm["used"])
        cure = "End the processes and run the check again, or skip DCGM (gpu_accept_dcgm_level: 0)."
        yield Verdict(rule, None, FAIL, "not run, because processes use %s" % gpus, cure)
    if dcgm["problem"]:
        yield Verdict(
            rule, None, FAIL, dcgm["problem"], "Check whether nv-hostengine runs (systemctl status nvidia-dcgm)."
        )
    for test in dcgm["tests"]:
        yield _dcgm_test(rule, test)


def _dcgm_test(rule: str, test: Mapping[str, Any]) -> Verdict:
    name = "%s: %s" % (rule, test["name"])
    failed, passed = [], []
    for result in test["results"]:
        status = result["status"].lower()
        words = "%s%s%s" % ("%s: " % result["of"] if result["of"] else "", result["status"], _warnings(result))
        if status in _DCGM_PASS:
            passed.append(words)
        elif status not in _DCGM_SKIP:
            failed.append(words)
    if failed:
        return Verdict(
            name,
            None,
            FAIL,
            "; ".join(failed[:5]),
            "Follow DCGM's advice. Without advice, send its report to the vendor.",
        )
    if passed:
        return Verdict(
            name, None, PASS, "; ".join(words for words in passed if "(" in words)[:300] or "%d passed" % len(passed)
        )
    return Verdict(name, None, NOT_RUN, "DCGM skipped it")


def _warnings(result: Mapping[str, Any]) -> str:
    return " (%s)" % "; ".join(result["warnings"][:3]) if result["warnings"] else ""
