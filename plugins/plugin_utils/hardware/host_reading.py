# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Accept readings from an untrusted host, after checks of their size and format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

from ...module_utils.errors import FleetError
from ..host_values import bounded
from ..private import make_folder, write
from . import model_file, page, report
from .acceptance import Limits

#: Maximum number of entries in the readings from a host. A host with 32 GPUs sends about 100,000.
_MOST_ENTRIES = 400_000
#: Maximum number of entries in a host's readings. A host with 32 GPUs sends about 100,000.
_MOST_GPUS, _MOST_INDEX, _MOST_PARTS, _MOST_LETTERS = 64, 1023, 64, 1 << 26


@dataclass(frozen=True)
class Judged:
    """A host's report. `files` has the content of the report's files by name."""

    report: dict[str, Any]
    files: dict[str, str]


def judged(host: str, reading: Any, identify: bool, limits: Limits | None = None) -> Judged:
    """Return a host's report.

    With `limits`, it includes the acceptance. Raises FleetError if the host sent an invalid reading.
    """
    files = model_file.model_files()
    try:
        taken = bounded(reading, _MOST_ENTRIES)
        _check_form(taken)
        made = report.make(taken, files, host, identify, limits)
        text = report.to_text(made)
        if len(text) > _MOST_LETTERS:
            raise ValueError("a report of %d characters" % len(text))
        return Judged(made, {"gpu-check.json": text, "gpu-check.html": page.to_text(made)})
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, OSError) as error:
        raise FleetError(
            host,
            "the host sent GPU readings in an invalid format",
            "Find out who changed the programs that root runs on this host.",
        ) from error


def _check_form(reading: Any) -> None:
    """Check numbers and indices of GPUs, and names of calls.

    Raises TypeError if one is invalid. The code that uses the other values checks these itself.
    """
    gpus = reading["nvml"]["gpus"]
    if len(gpus) > _MOST_GPUS or len({gpu["index"] for gpu in gpus}) < len(gpus):
        raise TypeError("more GPUs than a host has")
    others = reading["nvidia_smi"].get("gpus") or ()
    # Limit the number of serial numbers, because each of them is searched in all texts.
    if len(others) > _MOST_GPUS or any(len(each.get("mig_devices") or ()) > _MOST_PARTS for each in others):
        raise TypeError("more GPUs than a host has")
    for gpu in gpus:
        index = gpu["index"]
        if (
            not isinstance(index, int)
            or isinstance(index, bool)
            or not 0 <= index <= _MOST_INDEX
            or not isinstance(gpu["problem"], (str, type(None)))
        ):
            raise TypeError("a GPU without an index")
    for reading_of in [reading["nvml"], *reading["nvml"]["gpus"]]:
        for each in reading_of["calls"]:
            if not isinstance(each["call"], str) or not isinstance(each["of"], str):
                raise TypeError("a reading without a name")


def write_report(host: str, directory: str, files: Mapping[str, str]) -> list[str]:
    """Write a report's files. Returns their paths.

    Raises FleetError if the host's name is not a valid directory name, and OSError if a file cannot be written.
    """
    if "/" in host or "\0" in host or host.startswith("."):
        raise FleetError(host, "its name is not a valid directory name", "Rename the host in the inventory.")
    folder = Path(directory).expanduser().absolute() / host
    make_folder(folder)
    for name, text in files.items():
        write(folder / name, text)
    return [str(folder / name) for name in files]
