# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change all services of a host as one: they stop in reverse order, the GPUs change, then they start in order."""

from __future__ import annotations

import functools
from typing import Any, Sequence

from ..errors import attempt_all
from ..model import Host
from ..services import Change


class HostChange:
    """The changes of several services, in the order of the registry of techniques. Its methods are those of `Change`."""

    def __init__(self, changes: Sequence[Change] = ()) -> None:
        self._changes = tuple(changes)

    @property
    def record(self) -> dict[str, dict[str, Any]]:
        """Return the journal's record of the changes, by key of the technique."""
        return {change.key: change.record for change in self._changes}

    def stop(self, done: list[str]) -> None:
        """Run the steps before the GPUs change. Raises BusyError for blocking holders, or ends them."""
        for change in reversed(self._changes):
            change.stop(done)

    def start(self, host: Host, done: list[str]) -> None:
        """Run the steps after the GPUs changed to the state in `host`."""
        for change in self._changes:
            change.start(host, done)

    def clear_away(self) -> None:
        """Roll back before the GPUs: remove what was created."""
        for change in self._changes:
            change.clear_away()

    def bring_back(self, host: Host) -> None:
        """Roll back after the GPUs: restore what was removed. Raises ApplyError with all failures."""
        attempt_all(*(functools.partial(change.bring_back, host) for change in self._changes))

    def forget(self) -> None:
        """Remove leftovers of the previous layout, after the new one is complete."""
        for change in self._changes:
            change.forget()
