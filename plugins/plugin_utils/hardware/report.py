# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create the report of a hardware check: readings and outcomes. Pure.

Serial numbers and UUIDs are masked by default.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import datetime, timezone
from typing import Any, Mapping, Sequence

from ...module_utils.hardware.model_readings import Readings
from ..host_values import is_a
from .acceptance import FAIL, Limits, accepted, verdicts
from .checks import judge
from .model_file import AREA, ModelFile
from .outcome import DIFFERS, OUTCOMES, PASSED, Check

SCHEMA = 1
#: Pattern for valid serial numbers. It excludes 0 and N/A, which boards without a serial number report, because these
#: also occur elsewhere in a report.
_SERIAL = re.compile(r"[0-9A-Za-z-]{6,32}")
_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?:/\d+/\d+)?")


def make(
    reading: Mapping[str, Any],
    files: Sequence[ModelFile],
    host: str = "",
    identify: bool = False,
    limits: Limits | None = None,
    more: Sequence[Check] = (),
) -> dict[str, Any]:
    """Return the report.

    `host` is the host's name in the report. If `identify` is true, serial numbers and UUIDs are not masked. With
    `limits`, the report includes the host's acceptance. `more` has additional checks.
    """
    checks = [*judge(reading, files), *more]
    facts = reading["nvml"]["facts"]
    report = {
        "schema": SCHEMA,
        "made": datetime.fromtimestamp(reading["made"], timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "host": host,
        "simulated": reading["nvml"]["simulated"],
        "as_root": reading["root"],
        "driver_version": facts.get("driver_version"),
        "nvml_version": facts.get("nvml_version"),
        "cuda_version": facts.get("cuda_version"),
        "pynvml": reading["nvml"]["pynvml"],
        "kernel": "%s %s" % (reading["files"]["kernel"], reading["files"]["machine"]),
        "gpus": [_gpu(gpu, checks) for gpu in reading["nvml"]["gpus"]],
        "summary": counts(checks),
        "checks": [check.to_data() for check in checks],
        "readings": reading,
    }
    if limits is not None:
        results = verdicts(reading, limits)
        report["acceptance"] = {
            "accepted": accepted(results),
            "verdicts": [dict(verdict.to_data(), line=str(verdict)) for verdict in results],
        }
    return report if identify else masked(report, identities(reading))


def counts(checks: Sequence[Check]) -> dict[str, int]:
    """Count the checks by outcome."""
    counter = Counter(check.outcome for check in checks)
    return {outcome: counter[outcome] for outcome in OUTCOMES}


def to_text(report: Mapping[str, Any]) -> str:
    """Return the report as JSON."""
    return json.dumps(report, indent=1) + "\n"


def line(report: Mapping[str, Any]) -> str:
    """Return a one-line summary."""
    counted = report["summary"]
    return "%d passed, %d different, %d not run" % tuple(counted[outcome] for outcome in OUTCOMES)


def masked(value: Any, names: Mapping[str, str]) -> Any:
    """Return a copy of the value with placeholders for serial numbers and UUIDs."""
    if not names:
        return _masked(value, None, names)
    # Replace all names in one pass, so that inserted placeholders are not replaced again. Longer names match first.
    pattern = re.compile("|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)))
    return _masked(value, pattern, names)


def _masked(value: Any, pattern: re.Pattern[str] | None, names: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {_masked(key, pattern, names): _masked(each, pattern, names) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_masked(each, pattern, names) for each in value]
    if isinstance(value, str):
        if pattern is not None:
            value = pattern.sub(lambda match: names[match.group()], value)
        return _UUID.sub(lambda match: "(UUID of a %s)" % ("GPU" if match.group(1) == "GPU" else "MIG device"), value)
    return value


def identities(reading: Mapping[str, Any]) -> dict[str, str]:
    """Return placeholders for GPUs' identifiers, by identifier.

    Hosts send the identifiers. One without the format of a UUID or serial number is ignored, because its text might
    also occur elsewhere in the report.
    """
    names = {}
    for gpu in reading["nvml"]["gpus"]:
        readings = Readings(gpu["calls"])
        uuid, serial = readings.value("nvmlDeviceGetUUID"), str(readings.value("nvmlDeviceGetSerial") or "")
        if is_a("gpu_uuid", uuid):
            names[uuid] = "(UUID of GPU %d)" % gpu["index"]
        if _SERIAL.fullmatch(serial):
            names[serial] = "(serial number of GPU %d)" % gpu["index"]
    for other in reading["nvidia_smi"].get("gpus") or ():
        serial = other.get("serial")
        if isinstance(serial, str) and _SERIAL.fullmatch(serial):
            names.setdefault(serial, "(serial number)")
    return names


def _gpu(gpu: Mapping[str, Any], checks: Sequence[Check]) -> dict[str, Any]:
    readings = Readings(gpu["calls"])
    own = [check for check in checks if check.gpu == gpu["index"]]
    model = next(
        (
            check.expected
            for check in own
            if check.area == AREA and check.outcome == PASSED and check.what.startswith("which")
        ),
        None,
    )
    return {
        "index": gpu["index"],
        "name": readings.value("nvmlDeviceGetName"),
        "model": model,
        "problem": gpu["problem"],
        "summary": counts(own),
    }


def differences(report: Mapping[str, Any]) -> list[str]:
    """Return one line per difference."""
    return [_sentence(check) for check in report["checks"] if check["outcome"] == DIFFERS]


def failures(report: Mapping[str, Any]) -> list[str]:
    """Return one line per failed acceptance rule, with the remedy."""
    return [verdict["line"] for verdict in report["acceptance"]["verdicts"] if verdict["outcome"] == FAIL]


def _sentence(check: Mapping[str, Any]) -> str:
    place = "host" if check["gpu"] is None else "gpu %d" % check["gpu"]
    where = "%s: " % check["where"] if check["where"] else ""
    reason = " (%s)" % check["reason"] if check["reason"] else ""
    return "%s%s: %s: %s: expected %s, found %s%s" % (
        where,
        place,
        check["area"],
        check["what"],
        check["expected"],
        check["found"],
        reason,
    )
