# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Quote values for PromQL.

The names of hosts, GPUs and tenants come from exporters, so they can be any text.

Strings: https://prometheus.io/docs/prometheus/latest/querying/basics/#string-literals
Regular expressions (RE2): https://github.com/google/re2/wiki/Syntax
"""

from __future__ import annotations

import re
from typing import Iterable

#: Characters that have a special meaning in regular expressions.
_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")
#: Characters that are escaped in strings. A quote or a newline would end the string. Other control characters are unreadable in
#: logs.
_ESCAPED = re.compile(r'[\\"\x00-\x1f\x7f-\x9f\u2028\u2029]')
#: Half of a surrogate pair, which UTF-8 cannot encode.
_SURROGATE = re.compile("[\ud800-\udfff]")


def quote(text: str) -> str:
    """Return the text as a string literal of PromQL."""
    return '"%s"' % _ESCAPED.sub(_escape, _SURROGATE.sub("\ufffd", text))


def literal(text: str) -> str:
    """Return the regular expression that only matches this text, without quotes."""
    return _SPECIAL.sub(r"\\\g<0>", text)


def any_of(texts: Iterable[str]) -> str:
    """Return the string literal for ``label=~`` that matches only these texts."""
    return quote("|".join(map(literal, texts)))


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    # Always use four digits: `\xNN` would be a byte, and a byte above 0x7f is only a part of a character.
    return "\\" + character if character in '\\"' else "\\u%04x" % ord(character)
