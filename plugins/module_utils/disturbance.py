# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a plan would end, and for whom. Pure."""

from __future__ import annotations

from typing import Any

from .frozen import frozen
from .model import Holder, Process

#: How many a message and a result name: any user may start thousands.
_NAMED, _LISTED = 20, 200


@frozen
class Disturbance:
    """Something that the plan would end: `what` is held, and by whom."""

    what: str
    who: tuple[Holder | Process, ...]

    def __str__(self) -> str:
        return "%s is in use by %s" % (self.what, ", ".join(self._names(_NAMED)))

    def to_data(self) -> dict[str, Any]:
        return {"what": self.what, "who": self._names(_LISTED)}

    def _names(self, most: int) -> list[str]:
        more = ["%d more" % (len(self.who) - most)] if len(self.who) > most else []
        return [str(holder) for holder in self.who[:most]] + more
