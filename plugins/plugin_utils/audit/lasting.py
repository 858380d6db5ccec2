# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""For how long something has held, by what is known of the pieces of a window."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Mapping, Sequence

from .history import Key

#: Of the samples of the stretch that it is said to have lasted for, and of every shorter one on the way there.
_LEAST_RATIO, _LEAST_RATIO_BETWEEN = 0.9, 0.5
#: What may be missing at the end: so old at most is what is taken for the state now (signals.py).
_FRESH_SECONDS = 900.0


@dataclass(frozen=True)
class Piece:
    """A part of the window, in seconds before its end, and of each subject a figure and the number of samples in it."""

    newest: int
    oldest: int
    figures: Mapping[Key, float]
    counts: Mapping[Key, float]


def lasting(pieces: Sequence[Piece], holds: Callable[[float], bool], step_seconds: float) -> dict[Key, int]:
    """For how long up to now it held of each subject, in seconds: as far back as is certain. `pieces` are the newest first.

    Certain is a stretch only with nearly all of its samples: a gap is neither idleness nor possession. That goes for a gap that
    has not ended above all, in which something may have begun just now; and a long one hides in no longer stretch.
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
