# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The base of all actions that run a module on a host."""

from __future__ import annotations

import json
import re
from typing import Any

from ansible.plugins.action import ActionBase

from ..module_utils.printable import printable

#: An escape sequence of a JSON string, or two for a character beyond U+FFFF; or a character that a terminal may act on.
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|[^ -~\n\t]", re.DOTALL
)
#: Escape sequences that terminals show as text.
_KEPT = frozenset('\n\t\\"/')


class HostAction(ActionBase):  # type: ignore[misc]  # ansible-core has no types for it
    """Escape control characters in a module's output before Ansible reads it.

    ansible-core 2.21 takes warnings out of a result before an action sees it, and prints them as the host wrote them.
    """

    def _parse_returned_data(self, res: Any, *profile: Any) -> Any:
        texts = {key: printable_json(res[key]) for key in ("stdout", "stderr") if isinstance(res.get(key), str)}
        return super()._parse_returned_data({**res, **texts}, *profile)


def printable_json(output: str) -> str:
    r"""Return JSON text with escaped control characters in its strings.

    Tabs and line ends stay. A control character becomes its escape sequence as text: the JSON `"\u001b"` becomes `"\\x1b"`.
    Output without an object, such as a traceback, has no strings to keep valid, and gets single backslashes.
    """
    if "{" not in output:
        return "".join(letter if letter in "\n\t" else printable(letter) for letter in output)
    return _ESCAPE.sub(_escaped, output)


def _escaped(match: re.Match[str]) -> str:
    written = match.group()
    if written.startswith("\\"):
        try:
            character = json.loads('"%s"' % written)
        except ValueError:
            return written
        if character in _KEPT or character.isprintable():
            return written
    else:
        character = written
    return printable(character).replace("\\", "\\\\")
