# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Convert load patterns to the text for gpusimLoad.

The patterns come from a command line or from a recorded CSV.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Iterator

from .errors import FleetError
from .sizes import BYTES_PER_UNIT, parse_size_bytes

PATTERNS = ("constant", "square", "sine")

# Columns of a recorded load. Only the first one is required.
UTILIZATION, MEMORY, POWER = "utilization_percent", "memory_mib", "power_watts"

# gpusim.h uses this value for a sample whose power follows its utilization.
POWER_FOLLOWS = -1


class LoadError(FleetError):
    """A load that this tool cannot read."""


def pattern_text(
    pattern: str, utilization: str | None, memory: str | None, power: str | None, period: float | None
) -> str:
    """Return the text of a constant, square or sine load.

    Values are `HIGH` or `LOW..HIGH`.
    """
    lines = [f"pattern {pattern}"]
    if period is not None:
        lines.append(f"period_seconds {period:g}")
    for option, text, key, unit in (
        ("--utilization", utilization, "utilization", "_percent"),
        ("--memory", memory, "memory", "_mib"),
        ("--power", power, "power", "_mw"),
    ):
        if text is None:
            continue
        low, high = _bounds(option, text)
        if low is not None:
            if pattern == "constant":
                raise LoadError(option, "a constant load has no range", "Give one value, or another --pattern")
            lines.append(f"{key}_low{unit} {low}")
        lines.append(f"{key}{unit} {high}")
    return "\n".join(lines) + "\n"


def shares_text(sm: int | None, occupancy: int | None, tensor: int | None, bandwidth: int | None) -> str:
    """Return the load's GPM values, in percent of its utilization.

    None selects the library's default.
    """
    shares = {"sm": sm, "occupancy": occupancy, "tensor": tensor, "bandwidth": bandwidth}
    return "".join(f"{key}_percent {value}\n" for key, value in shares.items() if value is not None)


def samples_text(path: str, interval: float) -> str:
    """Return the text of a CSV recording.

    Its header is utilization_percent[,memory_mib][,power_watts].
    """
    lines = ["pattern samples", f"interval_seconds {interval:g}"]
    lines += [f"sample {utilization} {memory} {power}" for utilization, memory, power in _samples(path)]
    if len(lines) == 2:
        raise LoadError(path, "has no samples", "Put at least one line under the header")
    return "\n".join(lines) + "\n"


def _samples(path: str) -> Iterator[tuple[int | float, int, int]]:
    """Yield each line's (percent, MiB, milliwatts)."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        cure = f"Use one of {', '.join(PATTERNS)}, or a readable CSV file"
        raise LoadError(f"--pattern {path}", f"cannot be read: {error.strerror}", cure) from error
    reader = csv.DictReader(text.splitlines())
    header = reader.fieldnames or []
    if UTILIZATION not in header or set(header) - {UTILIZATION, MEMORY, POWER}:
        cure = f"Make it {UTILIZATION},{MEMORY},{POWER}; the last two are optional"
        raise LoadError(f"{path}:1", f"the header is {','.join(header) or 'empty'}", cure)
    for row in reader:
        try:
            power = row.get(POWER)
            yield (
                _plain(float(row[UTILIZATION])),
                round(float(row.get(MEMORY) or 0)),
                round(float(power) * 1000) if power else POWER_FOLLOWS,
            )
        except (TypeError, ValueError) as error:
            raise LoadError(f"{path}:{reader.line_num}", "is not a line of numbers", "Fix the file") from error


def _bounds(option: str, text: str) -> tuple[int | float | None, int | float]:
    """Return (low or None, high) in the library's unit: percent, MiB or milliwatts."""
    low, dots, high = text.rpartition("..")
    return (_number(option, low) if dots else None), _number(option, high)


def _number(option: str, text: str) -> int | float:
    if option == "--memory":
        return memory_bytes(text) // BYTES_PER_UNIT["MiB"]
    try:
        number = float(text)
        if number < 0 or (option == "--utilization" and number > 100):
            raise ValueError
    except ValueError:
        unit = "percent, 0 to 100" if option == "--utilization" else "watts"
        raise LoadError(option, f"{text!r} is not a number of {unit}", "Give VALUE or LOW..HIGH") from None
    return round(number * 1000) if option == "--power" else _plain(number)


def _plain(number: float) -> int | float:
    """Return a whole number as int, to write it without decimals."""
    return int(number) if number.is_integer() else number


def memory_bytes(text: str) -> int:
    """Return a size in bytes. The text has a unit, or is 0."""
    if text == "0":
        return 0
    try:
        return parse_size_bytes(text)
    except FleetError as error:
        raise LoadError("--memory", error.problem, error.cure) from error
