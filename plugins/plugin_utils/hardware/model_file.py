# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare a GPU's readings with the model file, and report differing lines."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Sequence

from ...module_utils.catalogue import Model, parse_model
from ...module_utils.hardware.model_readings import Field, Readings, fields_of, profile_names
from .outcome import DIFFERS, PASSED, Check, compared, not_run, shown

MODELS = Path(__file__).resolve().parents[2] / "module_utils" / "models"
#: A model file's path in reports.
_SHOWN = "plugins/module_utils/models/%s"
#: Fields that depend on the board and its firmware. A model file has one example.
_OF_A_BOARD = ("vbios_version", "board_part_number", "gpu_part_number")
_DIFFERENT_BOARDS = "boards of a model differ here: the file has the example %s, this one has %s"
#: Tolerances for an idle GPU's values: (in the field's unit, in percent). They depend on the room temperature and the
#: board.
_TOLERANCES = {
    "power_watts.idle": (15, 30),
    "memory_power_watts": (15, 50),
    "idle_fan_percent": (20, 0),
    "module_power_watts.idle": (100, 30),
    "temperatures_celsius.idle": (20, 0),
    "memory_temperatures_celsius.idle": (20, 0),
}
AREA = "model file"


class ModelFile:
    """A model file's values, and their line numbers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text(encoding="utf-8")
        self.model: Model = parse_model(self.text, path.name)
        self.data: dict[str, Any] = json.loads(self.text)
        self._lines = self.text.splitlines()

    def where(self, path: str) -> str:
        """Return a field's file and line, for messages."""
        return "%s:%d" % (_SHOWN % self.path.name, self.line(path))

    def variant(self, board: int, subsystem_id: Any) -> dict[str, Any]:
        """Return the values of the variant with this subsystem id, by field path.

        Returns {} if the file has no such variant.
        """
        matching = [one for one in self.model.variants if not board and one.pci_subsystem_id == subsystem_id]
        return {"pci_subsystem_id": matching[0].pci_subsystem_id, **matching[0].differences} if matching else {}

    def where_in_variant(self, subsystem_id: str, path: str) -> str:
        """Return the file and line of a variant's value, for messages."""
        begin, wanted = '{"pci_subsystem_id": "%s"' % subsystem_id, '"%s":' % path
        first = next((number for number, line in enumerate(self._lines) if begin in line), 0)
        lines = enumerate(self._lines[first:], first + 1)
        return "%s:%d" % (
            _SHOWN % self.path.name,
            next((number for number, line in lines if wanted in line), first + 1),
        )

    def line(self, path: str) -> int:
        """Return a field's line number, starting at 1.

        If the file lacks the profile, returns the line of the list of profiles.
        """
        if not path.startswith("profiles."):
            return self._top(path.partition(".")[0])
        name, _dot, field = path[len("profiles.") :].rpartition(".")
        begin = re.compile(r'\{"name": "%s",' % re.escape(name))
        for number, line in enumerate(self._lines):
            if begin.search(line):
                return self._within(number, field) + 1
        return self._top("profiles")

    def _top(self, field: str) -> int:
        field = {"name": "boards", "pci_device_id": "boards"}.get(field, field)
        start = '  "%s":' % field
        return next((number for number, line in enumerate(self._lines, 1) if line.startswith(start)), 1)

    def _within(self, first: int, field: str) -> int:
        for number in range(first, len(self._lines)):
            if number > first and '{"name":' in self._lines[number]:
                break
            if '"%s":' % field in self._lines[number].partition('"unconfirmed":')[0]:
                return number
        return first

    def value(self, path: str, board: int) -> Any:
        """Return a field's value. `board` is the product's position in `boards`."""
        if path in ("name", "pci_device_id"):
            return self.data["boards"][board][path]
        if path.startswith("profiles."):
            name, _dot, field = path[len("profiles.") :].rpartition(".")
            return next((profile[field] for profile in self.data["profiles"] if profile["name"] == name), None)
        first, *parts = path.split(".")
        # An optional field may be missing.
        value: Any = self.data.get(first)
        for part in parts:
            value = value[part]
        return value

    def unconfirmed(self, path: str) -> str:
        """Return why a value is unconfirmed, or "" if it is confirmed."""
        if path.startswith("profiles."):
            name, _dot, field = path[len("profiles.") :].rpartition(".")
            profile = next((profile for profile in self.data["profiles"] if profile["name"] == name), {})
            return str(profile.get("unconfirmed", {}).get(field, ""))
        return str(self.data["unconfirmed"].get(path.partition(".")[0], ""))


@lru_cache(maxsize=None)
def model_files(directory: Path = MODELS) -> tuple[ModelFile, ...]:
    """Return all model files. Raises CatalogueError."""
    return tuple(ModelFile(path) for path in sorted(directory.glob("*.json")))


def checks(index: int, readings: Readings, files: Sequence[ModelFile], simulated: bool = False) -> list[Check]:
    """Return the checks that compare one GPU with its model file.

    Values of a simulated GPU that do not come from the model file (models/README.md) are not compared.
    """
    fields = fields_of(readings)
    device = fields["pci_device_id"]
    if device.value is None:
        return [not_run(AREA, index, "which model it is", device.reason or "its PCI device id is unknown")]
    match = file_of(device.value, files)
    if match is None:
        what = "%s (PCI device id %s)" % (shown(fields["name"].value), device.value)
        cure = "no model file has this PCI device id (create one with gpusim record)"
        return [Check(AREA, index, "which model it is", DIFFERS, "a model of the catalogue", what, cure, _SHOWN % "")]
    file, board = match
    result = [
        Check(
            AREA,
            index,
            "which model it is",
            PASSED,
            file.model.key,
            "%s: %s" % (file.model.key, shown(fields["name"].value)),
        )
    ]
    variant = file.variant(board, fields["pci_subsystem_id"].value)
    for path, field in fields.items():
        if path in variant:
            where = file.where_in_variant(variant["pci_subsystem_id"], path)
            result.append(_against(index, path, variant[path], field, where))
        elif simulated and field.known and file.value(path, board) in (None, []) and field.value is not None:
            result.append(not_run(AREA, index, path, "the file has no value, but the simulated GPU needs one"))
        else:
            result.append(_check(index, file, board, path, field))
    named = set(profile_names(fields))
    if fields["mig_capable"].value and named:
        for profile in file.model.profiles:
            if profile.name not in named:
                where = file.where("profiles.%s.name" % profile.name)
                result.append(
                    Check(
                        AREA,
                        index,
                        "profiles.%s" % profile.name,
                        DIFFERS,
                        "a profile",
                        "NVML does not list it",
                        where=where,
                    )
                )
    return result


def _against(index: int, path: str, expected: Any, field: Field, where: str) -> Check:
    """Compare a field with a variant's value."""
    if not field.known:
        return not_run(AREA, index, path, field.reason)
    check = compared(AREA, index, path, expected, field.value, where)
    return check if check.outcome == PASSED else _of_a_board(index, path, expected, field) or check


def _of_a_board(index: int, path: str, expected: Any, field: Field) -> Check | None:
    """Return a check that was not run for a field that depends on the board.

    Returns None for any other field.
    """
    if path not in _OF_A_BOARD and not path.startswith("inforom."):
        return None
    return not_run(AREA, index, path, _DIFFERENT_BOARDS % (shown(expected), shown(field.value)))


def file_of(device_id: str, files: Sequence[ModelFile]) -> tuple[ModelFile, int] | None:
    """Return (model file, position of the board) for a PCI device id, or None."""
    for file in files:
        for number, board in enumerate(file.model.boards):
            if board.pci_device_id == device_id:
                return file, number
    return None


def _check(index: int, file: ModelFile, board: int, path: str, field: Field) -> Check:
    if not field.known:
        return not_run(AREA, index, path, field.reason)
    expected = file.value(path, board)
    if path in _TOLERANCES and isinstance(expected, int) and isinstance(field.value, int):
        least, percent = _TOLERANCES[path]
        if abs(expected - field.value) <= max(least, expected * percent / 100):
            return Check(AREA, index, path, PASSED, "about %d" % expected, shown(field.value))
    check = compared(AREA, index, path, expected, field.value, file.where(path))
    if check.outcome == PASSED:
        return check
    of_a_board = _of_a_board(index, path, expected, field)
    if of_a_board:
        return of_a_board
    reasons = []
    if board:
        reasons.append("the file describes %s, and this is another board of the model" % file.model.name)
    if file.unconfirmed(path):
        reasons.append("unconfirmed in the file: %s" % file.unconfirmed(path))
    return Check(AREA, index, path, DIFFERS, check.expected, check.found, "; ".join(reasons), check.where)
