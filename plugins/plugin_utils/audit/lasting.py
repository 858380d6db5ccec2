# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Calculate how long a condition has been true, from parts of the window."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Mapping, Sequence

from .history import Key

#: Minimum share of samples that must exist: in the whole interval, and in each shorter interval with the same end.
_LEAST_RATIO, _LEAST_RATIO_BETWEEN = 0.9, 0.5
#: Maximum number of seconds between the last sample and the end of the window. signals.py has the same limit for the
#: current state.
_FRESH_SECONDS = 900.0


@dataclass(frozen=True)
class Piece:
    """A part of the window, with each subject's statistic and sample count.

    The part lies between `oldest` and `newest`, in seconds before the end of the window.
    """

    newest: int
    oldest: int
    figures: Mapping[Key, float]
    counts: Mapping[Key, float]


def lasting(pieces: Sequence[Piece], holds: Callable[[float], bool], step_seconds: float) -> dict[Key, int]:
    """Return how many seconds the condition has certainly been true, by subject.

    The interval ends at the end of the window. `pieces` are sorted, the newest first.

    An interval counts only if nearly all of its samples exist, because a gap proves nothing. The limit is strictest for
    the newest piece: if its last samples are missing, the condition may just have changed. Each shorter interval has a
    limit as well, because a long gap could hide in a longer interval.
    """
    found: dict[Key, int] = {}
    for key in {key for piece in pieces for key in piece.figures}:
        count = 0.0
        for piece in pieces:
            if key in piece.figures and not holds(piece.figures[key]):
                break
            count += piece.counts.get(key, 0.0)
            samples = piece.oldest / step_seconds
            if piece.newest == 0 and count < math.floor(samples - max(_FRESH_SECONDS / step_seconds, 0.1 * samples)):
                break
            if count < math.floor(_LEAST_RATIO_BETWEEN * samples):
                break
            if count >= math.floor(_LEAST_RATIO * samples):
                found[key] = piece.oldest
    return found
