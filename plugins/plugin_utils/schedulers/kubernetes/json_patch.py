# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create operations of JSON patches. Pure.

https://www.rfc-editor.org/rfc/rfc6902
"""

from __future__ import annotations

from typing import Any, Mapping


def test(path: str, value: Any) -> Mapping[str, Any]:
    """Return the operation that refuses the patch if a value differs.

    None means that the value must be missing.
    """
    return {"op": "test", "path": path, "value": value}


def add(path: str, value: Any) -> Mapping[str, Any]:
    """Return the operation that sets a value."""
    return {"op": "add", "path": path, "value": value}


def remove(path: str) -> Mapping[str, Any]:
    """Return the operation that removes a value."""
    return {"op": "remove", "path": path}


def annotation_path(name: str) -> str:
    """Return the path of an annotation."""
    return "/metadata/annotations/" + _escaped(name)


def label_path(name: str) -> str:
    """Return the path of a label."""
    return "/metadata/labels/" + _escaped(name)


def _escaped(name: str) -> str:
    """Escape a name for a JSON pointer (https://www.rfc-editor.org/rfc/rfc6901)."""
    return name.replace("~", "~0").replace("/", "~1")
