# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Command lines of others, as they may be shown: they come into logs, reports and web hooks that more people read than /proc.

A secret is known by the name before it, not by its looks: ``wandb login KEY`` has none, and its key stays.
"""

from __future__ import annotations

import re
from typing import Sequence

#: In place of a secret.
HIDDEN = "***"

_KIND = (
    r"(?:password|passwd|passphrase|secret|token|credentials?"
    r"|(?:api|access|account|auth|encryption|private|secret)[-_.]?key|(?<![a-z0-9])(?:pass|pwd))"
)
_NAME = r"[\w.-]*" + _KIND
#: An argument or variable that is nothing but a secret, whatever its value has in it.
_WHOLE = re.compile(r"((?:--?)?%s)=." % _NAME, re.IGNORECASE | re.DOTALL)
#: An option whose value is the next argument.
_BEFORE = re.compile(r"--?%s" % _NAME, re.IGNORECASE)
#: One within an argument: of a script, a header, an address. It is looked for at every place, so that nothing of any length
#: comes before it: an argument may be a megabyte.
_WITHIN = re.compile(r"(%s[\"']?\s{0,9}[=:]\s{0,9}[\"']?)[^\s\"'&,;)]+" % _KIND, re.IGNORECASE)
_HEADER = re.compile(r"(authorization:\s{0,9}(?:\w{1,99}\s{1,9})?)\S+", re.IGNORECASE)
_ADDRESS = re.compile(r"(://[^/\s:@]*:)[^/\s@]+(?=@)")


def shown(words: Sequence[str]) -> str:
    """Return the arguments in a line, secrets hidden and control characters written out."""
    line = []
    follows = False
    for word in words:
        if follows and not word.startswith("-"):
            line.append(HIDDEN)
        else:
            line.append(_hidden(word))
        follows = bool(_BEFORE.fullmatch(word))
    return printable(" ".join(line))


def _hidden(word: str) -> str:
    whole = _WHOLE.match(word)
    if whole:
        return "%s=%s" % (whole.group(1), HIDDEN)
    for pattern in (_HEADER, _WITHIN, _ADDRESS):
        word = pattern.sub(r"\1" + HIDDEN, word)
    return word


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
