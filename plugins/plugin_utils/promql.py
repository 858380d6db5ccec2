# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Quote values for PromQL. Names of hosts, GPUs and tenants come from exporters, and a host may report any text as one.

Strings: https://prometheus.io/docs/prometheus/latest/querying/basics/#string-literals
Expressions of RE2: https://github.com/google/re2/wiki/Syntax
"""

from __future__ import annotations

import re
from typing import Iterable

#: What means something to RE2; every other character stands for itself.
_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")
#: Characters that a string has as an escape only. A newline ends a string in double quotes; the others are not readable in logs.
_ESCAPED = re.compile(r'[\\"\x00-\x1f\x7f-\x9f\u2028\u2029]')
#: Half of a character: UTF-8, and so a query, has none.
_SURROGATE = re.compile("[\ud800-\udfff]")


def quote(text: str) -> str:
    """Return the string literal that stands for the text."""
    return '"%s"' % _ESCAPED.sub(_escape, _SURROGATE.sub("\ufffd", text))


def literal(text: str) -> str:
    """Return the regular expression that matches the text and nothing else. It is no string literal yet."""
    return _SPECIAL.sub(r"\\\g<0>", text)


def any_of(texts: Iterable[str]) -> str:
    """Return the string literal that makes ``label=~`` match each of the texts and nothing else."""
    return quote("|".join(map(literal, texts)))


def _escape(found: re.Match[str]) -> str:
    character = found.group()
    # Of four digits: \xNN is a byte, and part of a character above 0x7f.
    return "\\" + character if character in '\\"' else "\\u%04x" % ord(character)
