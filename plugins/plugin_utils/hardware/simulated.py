# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare a driver with the simulated library for the same GPU models. Pure.

Only the kind of answer is compared: a value, or the same error. model_file.py compares the values.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Iterator, Mapping, Sequence

from ...module_utils.hardware.model_readings import (
    Readings,
    fields_of,
    is_filled,
    why_links_are_off,
    with_parameters,
)
from .model_file import ModelFile, file_of
from .outcome import DIFFERS, PASSED, Check, not_run

AREA = "simulated library"
#: Maximum number of differences to show per function.
_MOST = 4


def models_of(reading: Mapping[str, Any], files: Sequence[ModelFile]) -> tuple[list[str], str]:
    """Return (models of all GPUs in the order of their index, problem).

    If a GPU cannot be simulated, the list is empty and the problem says why.
    """
    keys = []
    for gpu in sorted(reading["nvml"]["gpus"], key=lambda gpu: gpu["index"]):
        if gpu["problem"]:
            return [], "GPU %d does not answer" % gpu["index"]
        readings = Readings(gpu["calls"])
        device = fields_of(readings)["pci_device_id"].value
        match = file_of(device, files) if device else None
        if match is None:
            return [], "no model file has GPU %d" % gpu["index"]
        if any(readings.value("nvmlDeviceGetMigMode") or ()):
            return [], "GPU %d is in MIG mode, but simulated GPUs start without it" % gpu["index"]
        keys.append(match[0].model.key)
    return keys, "" if keys else "the host has no GPUs"


def checks(reading: Mapping[str, Any], other: Mapping[str, Any] | None, reason: str) -> list[Check]:
    """Return the checks that compare the readings with simulated GPUs.

    Without readings of simulated GPUs, returns one check that was not run, with the reason.
    """
    if other is None:
        return [not_run(AREA, None, "all functions", reason)]
    result = list(_compared(None, reading["nvml"]["calls"], other["nvml"]["calls"], ""))
    links_off = why_links_are_off(Readings(with_parameters((), reading["files"])))
    simulated = {gpu["index"]: gpu["calls"] for gpu in other["nvml"]["gpus"]}
    for gpu in reading["nvml"]["gpus"]:
        if gpu["index"] in simulated:
            result += _compared(gpu["index"], gpu["calls"], simulated[gpu["index"]], links_off)
    return result


def _compared(
    gpu: int | None, calls: Sequence[Mapping[str, Any]], simulated: Sequence[Mapping[str, Any]], links_off: str
) -> Iterator[Check]:
    """Yield one check per function.

    A simulated GPU always has NVLinks. If the actual GPU's links cannot be read, `links_off` is the reason.
    """
    simulated_answers = {(reading["call"], reading["of"]): _answer(reading) for reading in simulated}
    by_call: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    unfilled: dict[str, int] = defaultdict(int)
    for reading in Readings(calls).calls:
        name = (reading["call"], reading["of"])
        if name not in simulated_answers:
            continue
        rows = by_call[reading["call"]]
        if not is_filled(reading):
            unfilled[reading["call"]] += 1
        elif not (links_off and _is_of_links(reading)):
            rows.append((reading["of"], simulated_answers[name], _answer(reading)))
    for call, rows in sorted(by_call.items()):
        differing = [row for row in rows if row[1] != row[2]]
        if not differing:
            yield _the_same(gpu, call, len(rows), unfilled[call], links_off)
            continue
        more = "; and %d more" % (len(differing) - _MOST) if len(differing) > _MOST else ""
        expected, found = (
            "; ".join("%s%s" % ("%s: " % row[0] if row[0] else "", row[place]) for row in differing[:_MOST]) + more
            for place in (1, 2)
        )
        yield Check(AREA, gpu, call, DIFFERS, expected, found)


def _the_same(gpu: int | None, call: str, compared: int, unfilled: int, links_off: str) -> Check:
    if not compared:
        return not_run(AREA, gpu, call, "the driver returns no value" if unfilled else links_off)
    found = "%d of %d" % (compared, compared)
    if unfilled:
        found += ", %d not filled in by the driver" % unfilled
    return Check(AREA, gpu, call, PASSED, "the same answer", found)


def _is_of_links(reading: Mapping[str, Any]) -> bool:
    return "nvlink" in ("%(call)s %(of)s" % reading).lower() or reading["of"] == "nvswitch links"


def _answer(reading: Mapping[str, Any]) -> str:
    if "value" in reading:
        return "a value"
    return str(reading.get("error") or reading.get("missing"))
