# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hold the answers of a driver against those of the simulated library with GPUs of the same models. Pure.

Only whether a function has a value, or which error it gives, is compared: values are the model files'.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Iterator, Mapping, Sequence

from ...module_utils.hardware.model_readings import Readings, fields_of
from .model_file import ModelFile, file_of
from .outcome import DIFFERS, HELD, Check, not_run

AREA = "simulated library"
#: Shown of a function whose answers differ.
_MOST = 4


def models_of(reading: Mapping[str, Any], files: Sequence[ModelFile]) -> tuple[list[str], str]:
    """Return the model of each GPU by index; where one cannot be simulated as it is, none and the reason."""
    keys = []
    for gpu in sorted(reading["nvml"]["gpus"], key=lambda gpu: gpu["index"]):
        if gpu["problem"]:
            return [], "GPU %d does not answer" % gpu["index"]
        readings = Readings(gpu["calls"])
        device = fields_of(readings)["pci_device_id"].value
        found = file_of(device, files) if device else None
        if found is None:
            return [], "no model file has GPU %d" % gpu["index"]
        if any(readings.value("nvmlDeviceGetMigMode") or ()):
            return [], "GPU %d is in MIG mode, which a simulated one begins without" % gpu["index"]
        keys.append(found[0].model.key)
    return keys, "" if keys else "there are no GPUs"


def checks(reading: Mapping[str, Any], other: Mapping[str, Any] | None, reason: str) -> list[Check]:
    """Return the checks against the readings of simulated GPUs; one that was not run where there are none, with the reason."""
    if other is None:
        return [not_run(AREA, None, "all functions", reason)]
    found = list(_compared(None, reading["nvml"]["calls"], other["nvml"]["calls"]))
    simulated = {gpu["index"]: gpu["calls"] for gpu in other["nvml"]["gpus"]}
    for gpu in reading["nvml"]["gpus"]:
        if gpu["index"] in simulated:
            found += _compared(gpu["index"], gpu["calls"], simulated[gpu["index"]])
    return found


def _compared(
    gpu: int | None, calls: Sequence[Mapping[str, Any]], simulated: Sequence[Mapping[str, Any]]
) -> Iterator[Check]:
    theirs = {(reading["call"], reading["of"]): _answer(reading) for reading in simulated}
    by_call: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for reading in calls:
        name = (reading["call"], reading["of"])
        if name in theirs:
            by_call[reading["call"]].append((reading["of"], theirs[name], _answer(reading)))
    for call, rows in sorted(by_call.items()):
        differing = [row for row in rows if row[1] != row[2]]
        if not differing:
            yield Check(AREA, gpu, call, HELD, "the same answer", "%d of %d" % (len(rows), len(rows)))
            continue
        more = "; and %d more" % (len(differing) - _MOST) if len(differing) > _MOST else ""
        expected, found = (
            "; ".join("%s%s" % ("%s: " % row[0] if row[0] else "", row[place]) for row in differing[:_MOST]) + more
            for place in (1, 2)
        )
        yield Check(AREA, gpu, call, DIFFERS, expected, found)


def _answer(reading: Mapping[str, Any]) -> str:
    if "value" in reading:
        return "a value"
    return str(reading.get("error") or reading.get("missing"))
