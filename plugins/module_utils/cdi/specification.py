# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the CDI specifications of this collection with pure functions.

Each specification has one device.
"""

from __future__ import annotations

from typing import Any, Mapping


def device(kind: str, name: str, edits: Mapping[str, Any]) -> dict[str, Any]:
    """Return a specification with one device that applies `edits` to containers."""
    # Use the oldest CDI version that is sufficient, so that old engines can read it. Names that begin with a digit need
    # 0.5.0 (https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md, Released versions).
    version = "0.5.0" if name[:1].isdigit() else "0.3.0"
    return {"cdiVersion": version, "kind": kind, "devices": [{"name": name, "containerEdits": dict(edits)}]}
