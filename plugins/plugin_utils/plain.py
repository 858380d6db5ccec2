# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Ansible hands to an action, as Python's own types."""

from __future__ import annotations

from typing import Any, Mapping


def plain(value: Any) -> Any:
    """Ansible's own strings, lists and dictionaries as Python's."""
    if isinstance(value, Mapping):
        return {plain(key): plain(found) for key, found in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(found) for found in value]
    if isinstance(value, str):
        return "".join(value)
    return value
