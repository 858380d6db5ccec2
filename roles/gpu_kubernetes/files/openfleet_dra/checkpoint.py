# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read which claims the kubelet has prepared, from its checkpoint.

The kubelet writes a claim into the file before it calls the plugin, and removes it after the plugin has taken the claim
back (pkg/kubelet/cm/dra/manager.go). Only root can write the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import FrozenSet, Optional

_NAME = "dra_manager_state"
_MOST_BYTES = 64 << 20


def claims(folder: Path) -> Optional[FrozenSet[str]]:
    """Return the UIDs of the claims in the kubelet's checkpoint.

    `folder` is the kubelet's root folder. Returns None if the file cannot be read. Do not give back anything then.
    """
    try:
        with (folder / _NAME).open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        data = json.loads(json.loads(text.decode())["Data"])
        return frozenset(str(entry["ClaimUID"]) for entry in data["ClaimInfoStateList"] or ())
    except (OSError, ValueError, KeyError, TypeError):
        return None
