# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change all services of a host together.

The services stop in reverse order. Then the GPUs change. Then the services start in order.
"""

from __future__ import annotations

import functools
from typing import Any, Sequence

from ..errors import attempt_all
from ..model import Host
from ..plan.services import Change


class HostChange:
    """The changes of several services, in the order of the registry of techniques.

    The methods are the same as in `Change`.
    """

    def __init__(self, changes: Sequence[Change] = ()) -> None:
        self._changes = tuple(changes)

    @property
    def record(self) -> dict[str, dict[str, Any]]:
        """Return the journal data of each change, by the technique's key."""
        return {change.key: change.record for change in self._changes}

    def stop(self, done: list[str]) -> None:
        """Run the steps that must complete before the GPUs change.

        Blocking holders are ended if that is permitted. Otherwise BusyError is raised.
        """
        for change in reversed(self._changes):
            change.stop(done)

    def start(self, host: Host, done: list[str]) -> None:
        """Run the steps that follow the change of the GPUs to the state in `host`."""
        for change in self._changes:
            change.start(host, done)

    def clear_away(self) -> None:
        """Remove what the services created, before a rollback of the GPUs."""
        for change in self._changes:
            change.clear_away()

    def bring_back(self, host: Host) -> None:
        """Restore what the services removed, after a rollback of the GPUs.

        Raises one ApplyError with all failures.
        """
        attempt_all(*(functools.partial(change.bring_back, host) for change in self._changes))

    def forget(self) -> None:
        """Remove leftovers of the previous layout after the new layout is complete."""
        for change in self._changes:
            change.forget()
