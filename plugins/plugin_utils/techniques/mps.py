# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe MPS to the controller.

Workloads use a GPU at the same time, as clients of a daemon that limits each of them.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ...module_utils.techniques.mps.model import KEY, NAME, Mps
from ...module_utils.techniques.mps.rules import limits_bind, most_clients
from .access import Clients
from .protocol import FleetTechnique, Part, State


class FleetMps(FleetTechnique):
    """The technique MPS. `FleetTechnique` documents the members."""

    key = KEY
    title = "MPS"
    server = "MPS daemon"
    rows = NAME
    row_format: Mapping[str, Any] = {
        "name": "name",
        "devices": ["text", 64],
        "places": [{"gpu_uuid": "gpu_uuid"}, 64],
        "problem": "text",
    }
    # Kind of the daemon's clients in module_utils/holders.
    holder_kinds = (KEY,)
    proposed = True
    # All clients of a daemon have the same limits.
    equal_parts = True
    one_gpu = "each GPU has its own MPS daemon, and a process can use only one daemon"
    risk = "a fault of one workload can end all workloads on the GPU"

    def serves(self, state: State, gpu_uuid: str) -> str:
        """Return the daemon of the GPU."""
        places = (place for daemon in state.get(NAME) or () for place in daemon.get("places") or ())
        return "an %s" % self.server if any(place.get("gpu_uuid") == gpu_uuid for place in places) else ""

    def most_parts(self, compute_capability: str | None) -> int | None:
        """Return the maximum number of clients of a daemon."""
        return most_clients(compute_capability, None)

    def part(self, parts: Sequence[Part]) -> dict[str, Any]:
        """Return a GPU's daemon, with the limits of the largest client."""
        memory, percent = max(p.size.memory_mib for p in parts), max(1, *(p.size.sm_percent for p in parts))
        daemon: dict[str, Any] = {
            "name": "gpu%d" % parts[0].gpu_index,
            "clients": len(parts),
            "active_thread_percentage": percent,
        }
        if memory:
            daemon["pinned_memory_limit"] = "%dMiB" % memory
        return daemon

    def suits(self, isolation: str, latency: str) -> str:
        """Return the reason for a workload that needs no isolation and that cannot wait."""
        return "it trusts its neighbours and cannot wait" if isolation == "none" and latency != "batch" else ""

    def unfit(self, compute_capability: str | None, model: str) -> str:
        """Return the reason if GPUs of this model do not enforce the limits of clients."""
        if limits_bind(compute_capability):
            return ""
        return "it cannot wait, and MPS does not enforce limits on a %s" % model

    def access(self, part: Mps) -> Clients:
        """Return the daemon and the limits of its clients."""
        return Clients(part.name, part.clients, part.active_thread_percentage, part.pinned_memory_limit_bytes)
