# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the report of a check: what was read, the outcomes, without serial numbers and UUIDs unless they are asked for. Pure."""

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
from .outcome import DIFFERS, HELD, OUTCOMES, Check

SCHEMA = 1
#: Boards without a serial number may show 0 or N/A, which names no card and is a part of many other words.
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
    """Return the report. `host` is a name to show; with `identify` serial numbers and UUIDs stay in it.

    With `limits` it also says whether the host is accepted. `more` are checks that were made elsewhere.
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
        found = verdicts(reading, limits)
        report["acceptance"] = {
            "accepted": accepted(found),
            "verdicts": [dict(verdict.to_data(), line=str(verdict)) for verdict in found],
        }
    return report if identify else masked(report, identities(reading))


def counts(checks: Sequence[Check]) -> dict[str, int]:
    """Return how many checks have each outcome."""
    found = Counter(check.outcome for check in checks)
    return {outcome: found[outcome] for outcome in OUTCOMES}


def to_text(report: Mapping[str, Any]) -> str:
    """Return the report as JSON."""
    return json.dumps(report, indent=1) + "\n"


def line(report: Mapping[str, Any]) -> str:
    """Return the outcome in a line."""
    counted = report["summary"]
    return "%d held, %d differ, %d not run" % tuple(counted[outcome] for outcome in OUTCOMES)


def masked(value: Any, names: Mapping[str, str]) -> Any:
    """Return a copy with words in the place of serial numbers and UUIDs."""
    if not names:
        return _masked(value, None, names)
    # All in one pass: words that were put in are not looked at again, whatever the names are. The longest first.
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
    """Return what tells one GPU from all others, and the words in its place.

    A host chooses these texts. One that has not the form of a UUID or serial number is no name, so that it is not
    a part of many words of the report.
    """
    found = {}
    for gpu in reading["nvml"]["gpus"]:
        readings = Readings(gpu["calls"])
        uuid, serial = readings.value("nvmlDeviceGetUUID"), str(readings.value("nvmlDeviceGetSerial") or "")
        if is_a("gpu_uuid", uuid):
            found[uuid] = "(UUID of GPU %d)" % gpu["index"]
        if _SERIAL.fullmatch(serial):
            found[serial] = "(serial number of GPU %d)" % gpu["index"]
    for other in reading["nvidia_smi"].get("gpus") or ():
        serial = other.get("serial")
        if isinstance(serial, str) and _SERIAL.fullmatch(serial):
            found.setdefault(serial, "(serial number)")
    return found


def _gpu(gpu: Mapping[str, Any], checks: Sequence[Check]) -> dict[str, Any]:
    readings = Readings(gpu["calls"])
    own = [check for check in checks if check.gpu == gpu["index"]]
    model = next(
        (
            check.expected
            for check in own
            if check.area == AREA and check.outcome == HELD and check.what.startswith("which")
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
    """Return a line for each check that differs."""
    return [_sentence(check) for check in report["checks"] if check["outcome"] == DIFFERS]


def failures(report: Mapping[str, Any]) -> list[str]:
    """Return a line for each rule of acceptance that failed, with what to do."""
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
