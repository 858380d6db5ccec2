# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""For how long something has held, by what is known of the pieces of a window."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Mapping, Sequence

from .history import Key


@dataclass(frozen=True)
class Piece:
    """A part of the window, in seconds before its end, and of each subject a figure and the number of samples in it."""

    newest: int
    oldest: int
    figures: Mapping[Key, float]
    counts: Mapping[Key, float]


def lasting(pieces: Sequence[Piece], holds: Callable[[float], bool], step_seconds: float) -> dict[Key, int]:
    """For how long up to now it held of each subject, in seconds: as far back as is certain. `pieces` are the newest first.

    Certain is a stretch only with nearly all of its samples: a gap is neither idleness nor possession.
    """
    found: dict[Key, int] = {}
    for key in {key for piece in pieces for key in piece.figures}:
        count = 0.0
        for piece in pieces:
            if key in piece.figures and not holds(piece.figures[key]):
                break
            count += piece.counts.get(key, 0.0)
            if count >= math.floor(0.9 * piece.oldest / step_seconds):
                found[key] = piece.oldest
    return found
