# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Escape control characters in names that users choose."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Escape control characters in the text, such as \x1b and \u2028.

    Terminals and parsers interpret them: a carriage return overwrites a line on root's terminal, and U+0085 and U+2028
    end a line in YAML.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escaped(ord(letter)) for letter in text)


def _escaped(code: int) -> str:
    return "\\x%02x" % code if code < 0x100 else "\\u%04x" % code if code < 0x10000 else "\\U%08x" % code
