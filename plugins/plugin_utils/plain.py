# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Convert Ansible's values to plain Python types."""

from __future__ import annotations

from typing import Any, Mapping


def plain(value: Any) -> Any:
    """Convert Ansible's strings, lists and dictionaries to Python types, recursively."""
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, str):
        return "".join(value)
    return value
