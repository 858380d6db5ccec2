# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the GPUs that HAMi has registered for a node with the layout. Pure.

HAMi's device plugin lists its GPUs in a node annotation, as JSON. It checks them every 30 s, and writes the annotation
after a change (WatchAndRegister in pkg/device-plugin/nvidiadevice/nvinternal/plugin/register.go of HAMi 2.10). The
annotation has no time. When the plugin ends, the kubelet's number of resources becomes 0, which shows that the
annotation is stale.
"""

from __future__ import annotations

import json
from typing import Any, Mapping

from ...host_values import text
from ..kubernetes.api_objects import annotations_of

REGISTER = "hami.io/node-nvidia-register"
MODE = "hami-core"
# Names of the compared numbers in messages.
_TITLES = {"count": "pods", "devmem": "memory MiB", "devcore": "cores"}
# Maximum number of registered GPUs to read.
_MOST = 64


def registered(node: Any) -> dict[str, dict[str, Any]] | None:
    """Return a node's registered GPUs by UUID.

    Returns None if the annotation is missing or unreadable. HAMi before 2.5 has another format.
    """
    try:
        rows = json.loads(annotations_of(node).get(REGISTER, ""))
    except ValueError:
        return None
    if not isinstance(rows, list) or len(rows) > _MOST or not all(isinstance(row, dict) for row in rows):
        return None
    return {row["id"]: row for row in rows if isinstance(row.get("id"), str)}


def differences(planned: Mapping[str, Mapping[str, int]], node: Any) -> dict[str, tuple[int, int]]:
    """Return the numbers that differ from the plan.

    The result has (planned, registered) by name. `planned` is `Offer.registered`. A GPU that is registered but not
    planned has the planned number 0. Without the annotation, each planned GPU counts as not registered.
    """
    current = registered(node) or {}
    found = {}
    for uuid, numbers in planned.items():
        row = current.get(uuid)
        if row is None:
            found["registered %s" % text(uuid, 64)] = (1, 0)
            continue
        if row.get("mode") != MODE:
            found["%s in mode %s" % (text(uuid, 64), MODE)] = (1, 0)
        for name, number in numbers.items():
            value = row.get(name, 0)
            value = value if isinstance(value, int) and not isinstance(value, bool) else -1
            if value != number:
                found["%s of %s" % (_TITLES[name], text(uuid, 64))] = (number, value)
    for uuid in current:
        if uuid not in planned:
            found["registered %s" % text(uuid, 64)] = (0, 1)
    return found


def unhealthy(node: Any) -> list[str]:
    """Return the UUIDs of registered GPUs that HAMi reports as unhealthy."""
    return [text(uuid, 64) for uuid, row in (registered(node) or {}).items() if row.get("health") is not True]
