# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the base class of all actions that run a module on a host."""

from __future__ import annotations

import json
import re
from typing import Any

from ansible.plugins.action import ActionBase

from ..module_utils.printable import printable

#: An escape sequence in a JSON string, or a character that may control a terminal. A character above U+FFFF is a pair
#: of escape sequences.
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|[^ -~\n\t]", re.DOTALL
)
#: Characters whose JSON escapes stay, because they do not control a terminal.
_KEPT = frozenset('\n\t\\"/')


class HostAction(ActionBase):  # type: ignore[misc]  # ansible-core has no types for it
    """Escapes control characters in a module's output before Ansible reads it.

    Escaping in the action itself is too late: ansible-core 2.21 removes warnings from a result before the action gets
    it, and prints them as the host sent them.
    """

    def _parse_returned_data(self, res: Any, *profile: Any) -> Any:
        texts = {key: printable_json(res[key]) for key in ("stdout", "stderr") if isinstance(res.get(key), str)}
        return super()._parse_returned_data({**res, **texts}, *profile)


def printable_json(output: str) -> str:
    r"""Return JSON text with the control characters in its strings escaped.

    Tabs and line ends are kept. A control character is replaced by the text of its escape sequence: the JSON `"\u001b"` becomes
    `"\\x1b"`.
    If the output does not contain an object, it is not JSON, for example a traceback. In that case, backslashes are not
    doubled.
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
