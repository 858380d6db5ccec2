# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep a journal, so that a change of a host's layout is atomic.

The journal is written before the first step and removed after the last one. If a run finds a journal, an earlier run
was interrupted, for example by kill -9 or a power loss.
"""

# `frozen` makes dataclasses.
# pylint: disable=invalid-field-call
from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Mapping, Sequence

from .. import durable
from ..frozen import frozen
from ..plan.gpu_plan import Target
from ..plan.transaction import SCHEMA, run_name, this_run
from ..vendors.registry import target_data, target_from_data


@frozen
class Entry:
    """The content of a journal: the run, and the targets of the old and new layout."""

    before: tuple[Target, ...]
    after: tuple[Target, ...]
    run: str | None = None
    #: The journal data of service changes (`services.Change`), by the technique's key.
    beside: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    #: The data of `unnamed.AppliedRecord` for the old and the new layout. Empty if the run does not change that record.
    applied: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def interrupted(self) -> str:
        """Return the first words of each message about this journal."""
        return "a run was interrupted%s" % (" (%s)" % self.run if self.run else "")


class Journal:
    """The journal of a host."""

    def __init__(self, directory: str) -> None:
        self.path = Path(directory) / "journal.json"

    def begin(
        self,
        before: Sequence[Target],
        after: Sequence[Target],
        beside: Mapping[str, Mapping[str, Any]] | None = None,
        applied: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Write the journal to disk. Call this before anything changes."""
        content = {
            "schema": SCHEMA,
            "run": this_run(),
            "before": list(map(target_data, before)),
            "after": list(map(target_data, after)),
            "beside": dict(beside or {}),
            # Earlier releases do not know this key.
            **({"applied": dict(applied)} if applied else {}),
        }
        durable.write(self.path, content)

    def end(self) -> None:
        """Remove the journal after the old or the new layout is complete."""
        durable.remove(self.path)

    def read(self) -> Entry | None:
        """Return the journal of an interrupted run, or None.

        Raises ApplyError if this release cannot read the journal.
        """
        data = durable.read(self.path, SCHEMA)
        if data is None:
            return None
        try:
            run = data["run"]
            who = None if run is None else run_name(run)
            before, after = (tuple(map(target_from_data, data[name])) for name in ("before", "after"))
            return Entry(before, after, who, {**data["beside"]}, {**data.get("applied", {})})
        except (KeyError, TypeError, ValueError):
            raise durable.damaged(self.path) from None
