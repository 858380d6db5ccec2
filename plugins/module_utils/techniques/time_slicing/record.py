# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Record the host's GPUs whose time slice is not the default.

If no GPU is recorded, only runs that set time slices must read them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterable, Sequence

from ... import durable
from ...model import Gpu
from .model import DEFAULT, time_slice_of

SCHEMA = 1


class Record:
    """The record of GPUs on which the collection set a time slice."""

    def __init__(self, directory: str) -> None:
        self.path = Path(directory) / "time_slices.json"

    def any(self) -> bool:
        """Return whether any GPU is recorded.

        Raises ApplyError if this release cannot read the file.
        """
        data = durable.read(self.path, SCHEMA)
        return bool(data and data["gpus"])

    def write(self, gpu_uuids: Iterable[str]) -> None:
        """Record exactly these GPUs."""
        data = {"schema": SCHEMA, "gpus": sorted(gpu_uuids)}
        known = durable.read(self.path, SCHEMA) or {"schema": SCHEMA, "gpus": []}
        if known != data:
            durable.write(self.path, data)


def record(directory: str, gpus: Sequence[Gpu], changing: Iterable[str] = ()) -> None:
    """Record the GPUs whose time slice is not the default.

    `changing` has the UUIDs of GPUs that the run will give such a time slice.
    """
    sliced = {gpu.uuid for gpu in gpus if time_slice_of(gpu) not in (None, DEFAULT)}
    Record(directory).write(sliced.union(changing))
