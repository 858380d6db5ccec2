# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Format numbers with nouns, for reports and messages."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return the number with the noun in singular or plural: `1 GPU`, `2 GPUs`.

    The default of `plural` is the noun with an `s`.
    """
    return "%d %s" % (number, noun if number == 1 else plural or noun + "s")
