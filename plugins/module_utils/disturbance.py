# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a plan would end, and for whom. Pure."""

from __future__ import annotations

import re
from typing import Any

from .frozen import frozen
from .holders.model import KUBELET, UNKNOWN
from .model import Holder, Process

#: How many a message and a result name: any user may start thousands.
_NAMED, _LISTED = 20, 200
#: Of a pod. A Slurm job has a number.
_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@frozen
class Disturbance:
    """Something that the plan would end: `what` is held, and by whom."""

    what: str
    who: tuple[Holder | Process, ...]

    def __str__(self) -> str:
        return "%s is in use by %s" % (self.what, ", ".join(self._names(_NAMED)))

    @property
    def pods(self) -> tuple[str, ...]:
        """UIDs of the pods that hold the thing: the kubelet gave it to them, or a process in their cgroup has it open."""
        holders = [holder for holder in self.who if isinstance(holder, Holder) and holder.job]
        found = {holder.job for holder in holders if holder.kind == KUBELET}
        found.update(holder.job for holder in holders if holder.kind != UNKNOWN and _UID.fullmatch(holder.job))
        return tuple(sorted(found))

    def to_data(self) -> dict[str, Any]:
        data = {"what": self.what, "who": self._names(_LISTED)}
        return {**data, "pods": list(self.pods[:_LISTED])} if self.pods else data

    def _names(self, most: int) -> list[str]:
        more = ["%d more" % (len(self.who) - most)] if len(self.who) > most else []
        return [str(holder) for holder in self.who[:most]] + more
