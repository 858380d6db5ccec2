# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the CDI specifications of this collection, with one device each. Pure."""

from __future__ import annotations

from typing import Any, Mapping


def device(kind: str, name: str, edits: Mapping[str, Any]) -> dict[str, Any]:
    """Return a specification of a device that applies `edits` to containers."""
    # The oldest sufficient version, for old engines. Names that begin with a digit need 0.5.0
    # (https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md, Released versions).
    version = "0.5.0" if name[:1].isdigit() else "0.3.0"
    return {"cdiVersion": version, "kind": kind, "devices": [{"name": name, "containerEdits": dict(edits)}]}
