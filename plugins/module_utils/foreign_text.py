# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shorten and clean texts from hosts and API servers, with pure functions.

The texts are for messages and reports.
"""

from __future__ import annotations

from typing import Any

from .printable import printable

#: Default maximum length of a text in characters.
MOST_TEXT = 1000
#: Show the type's name instead of a number above this limit.
_LARGEST = 1 << 60


def text(value: Any, most: int = MOST_TEXT) -> str:
    """Return the value as printable text with at most `most` characters."""
    whole = value if isinstance(value, str) else type(value).__name__ if _may_be_long(value) else str(value)
    written = printable("".join(whole[:most]))
    return written if len(whole) <= most and len(written) <= most else written[: most - 3] + "..."


def one_line(value: Any, most: int = MOST_TEXT) -> str:
    """Return the value as text in one line, for messages from servers."""
    # Take more characters than the maximum, because joining removes blanks.
    return text(" ".join(str(value)[: 4 * most].split()), most)


def _may_be_long(value: Any) -> bool:
    return not isinstance(value, (bool, int, float, type(None))) or (isinstance(value, int) and abs(value) > _LARGEST)
