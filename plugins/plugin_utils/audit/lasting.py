# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Calculate for how long a condition has held, from pieces of a window."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Mapping, Sequence

from .history import Key

#: Minimum share of samples that must be present in the interval, and in every shorter one.
_LEAST_RATIO, _LEAST_RATIO_BETWEEN = 0.9, 0.5
#: Maximum time without samples at the end. signals.py uses the same limit for the current state.
_FRESH_SECONDS = 900.0


@dataclass(frozen=True)
class Piece:
    """A part of the window, in seconds before its end, with a figure and the number of samples of each subject."""

    newest: int
    oldest: int
    figures: Mapping[Key, float]
    counts: Mapping[Key, float]


def lasting(pieces: Sequence[Piece], holds: Callable[[float], bool], step_seconds: float) -> dict[Key, int]:
    """Return for how many seconds up to now the condition certainly held, by subject.

    `pieces` are ordered from the newest.

    An interval counts only if nearly all of its samples exist, because a gap proves nothing. A gap at the end counts most
    strictly, since something may have just started. A long gap must not disappear within a longer interval.
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
