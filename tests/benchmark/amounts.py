# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose how much a group measures: the usual amount, or a little to prove that the group works."""

from __future__ import annotations

from typing import Mapping


def amount(options: Mapping[str, str], usual: int, small: int, option: str = "") -> int:
    """Return the number that `option` asks for, else `small` in a run with SMALL=1, else `usual`.

    Raises ValueError if the option is not a number.
    """
    if option and options.get(option):
        return int(options[option])
    return small if options.get("SMALL") else usual
