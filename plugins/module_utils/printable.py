# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write out control characters in what other users call their processes, units and jobs."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return the text with what a terminal or a parser may act on written out: \x1b, \u2028.

    Names and command lines are chosen by other users: a carriage return rewrites a line of root's terminal, and U+0085 and U+2028
    end a line of YAML.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _written_out(ord(letter)) for letter in text)


def _written_out(code: int) -> str:
    return "\\x%02x" % code if code < 0x100 else "\\u%04x" % code if code < 0x10000 else "\\U%08x" % code
