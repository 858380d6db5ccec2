# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose how much a benchmark group measures.

The group measures the usual amount, or a small one that only proves that the group works.
"""

from __future__ import annotations

from typing import Mapping


def amount(options: Mapping[str, str], usual: int, small: int, option: str = "") -> int:
    """Return the option's number, or `small` with SMALL=1, or `usual`.

    Raises ValueError if the option is not a number.
    """
    if option and options.get(option):
        return int(options[option])
    return small if options.get("SMALL") else usual
