# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The form of the CDI specifications that this collection writes: one device each. Pure."""

from __future__ import annotations

from typing import Any, Mapping


def device(kind: str, name: str, edits: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a container that has the device `kind=name` what `edits` say."""
    # The oldest version that has all of it, for the engines that read no later one: names that begin with a digit came with
    # 0.5.0 (https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md, Released versions).
    version = "0.5.0" if name[:1].isdigit() else "0.3.0"
    return {"cdiVersion": version, "kind": kind, "devices": [{"name": name, "containerEdits": dict(edits)}]}
