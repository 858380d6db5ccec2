# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change the services beside a host's GPUs as one: they stop in reverse order, the GPUs change, then they start in order."""

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
        """Return what the journal has of the changes, by key of the technique."""
        return {change.key: change.record for change in self._changes}

    def stop(self, done: list[str]) -> None:
        """Do what comes before the GPUs change. Raises BusyError for holders in the way, or ends them."""
        for change in reversed(self._changes):
            change.stop(done)

    def start(self, host: Host, done: list[str]) -> None:
        """Do what comes after the GPUs changed, which are as in `host`."""
        for change in self._changes:
            change.start(host, done)

    def clear_away(self) -> None:
        """Take away what came, on the way back, before the GPUs."""
        for change in self._changes:
            change.clear_away()

    def bring_back(self, host: Host) -> None:
        """Restore what was there, on the way back, after the GPUs. Raises ApplyError with all that failed."""
        attempt_all(*(functools.partial(change.bring_back, host) for change in self._changes))

    def forget(self) -> None:
        """Remove what the new layout does not name, once it stands."""
        for change in self._changes:
            change.forget()
