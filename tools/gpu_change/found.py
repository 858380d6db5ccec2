# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Store a GPU's original state on disk until a run restores it.

The record survives kill -9 and reboots.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

from ansible_collections.openfleet.gpu.plugins.module_utils import durable
from ansible_collections.openfleet.gpu.plugins.module_utils.change.journal import Journal
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Gpu
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.gpu_plan import Target, instance_text
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.registry import target_data, target_from_data

SCHEMA = 1


@dataclass(frozen=True)
class Original:
    """A GPU's original state, and instances that the command may have created.

    Each instance is (profile, start).
    """

    target: Target
    made: tuple[tuple[str, int], ...]

    def refuse_foreign(self, gpu: Gpu) -> None:
        """Raise FleetError if the GPU has instances that the command did not create.

        The command must not remove these instances.
        """
        foreign = [i for i in gpu.mig.instances if (i.profile, i.placement.start) not in self.made]
        if foreign:
            raise FleetError(
                gpu.short_label,
                "it has instances that check-gpu did not make: %s" % ", ".join(map(instance_text, foreign)),
                "Remove them, then run check-gpu --change again.",
            )


class Record:
    """The record of one host, and the journal of the current change.

    The end of a run removes both.
    """

    def __init__(self, directory: str) -> None:
        self._folder = Path(directory) / "check-gpu"
        self.path = self._folder / "found.json"
        self.journal = Journal(str(self._folder))

    def unfinished(self) -> bool:
        """Return whether an interrupted run left a record that this user can read."""
        with contextlib.suppress(OSError):
            return self.path.exists()
        return False

    def begin(self, target: Target, made: Sequence[tuple[str, int]]) -> None:
        """Write the record to disk before the first change. Raises ApplyError."""
        durable.write(
            self.path, {"schema": SCHEMA, "found": target_data(target), "made": [list(each) for each in made]}
        )

    def read(self) -> Original | None:
        """Return the record of an interrupted run, or None.

        Raises ApplyError if the file cannot be read.
        """
        data = durable.read(self.path, SCHEMA)
        if data is None:
            return None
        try:
            made = tuple((str(profile), int(start)) for profile, start in data["made"])
            return Original(target_from_data(data["found"]), made)
        except (KeyError, TypeError, ValueError):
            raise durable.damaged(self.path) from None

    def end(self) -> None:
        """Remove the record and the journal after the GPU was restored."""
        self.journal.end()
        durable.remove(self.path)
        with contextlib.suppress(OSError):
            self._folder.rmdir()
