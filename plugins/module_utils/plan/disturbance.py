# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define what a plan would interrupt, and the holders, as pure functions."""

from __future__ import annotations

import re
from typing import Any

from ..frozen import frozen
from ..holders.model import KUBELET, UNKNOWN
from ..model import Holder, Process

#: Maximum number of holders in a message and in a result. Any user may start thousands of processes.
_NAMED, _LISTED = 20, 200
#: A pod's UID. A Slurm job's id is a number instead.
_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@frozen
class Disturbance:
    """An object that a plan would end or change (`what`), and its holders (`who`)."""

    what: str
    who: tuple[Holder | Process, ...]

    def __str__(self) -> str:
        return "%s is in use by %s" % (self.what, ", ".join(self._names(_NAMED)))

    @property
    def pods(self) -> tuple[str, ...]:
        """Return the UIDs of the pods among the holders.

        A pod holds the object with an allocation or a process.
        """
        holders = [holder for holder in self.who if isinstance(holder, Holder) and holder.job]
        uids = {holder.job for holder in holders if holder.kind == KUBELET}
        uids.update(holder.job for holder in holders if holder.kind != UNKNOWN and _UID.fullmatch(holder.job))
        return tuple(sorted(uids))

    def to_data(self) -> dict[str, Any]:
        data = {"what": self.what, "who": self._names(_LISTED)}
        return {**data, "pods": list(self.pods[:_LISTED])} if self.pods else data

    def _names(self, most: int) -> list[str]:
        more = ["%d more" % (len(self.who) - most)] if len(self.who) > most else []
        return [str(holder) for holder in self.who[:most]] + more
