# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read and write the part `mps` of a layout entry or a MIG instance."""

from __future__ import annotations

from typing import Any

from ...layout.fields import PartContext, percent, size_bytes
from ...layout.reader import Key, Node
from ...layout.types import MOST_CLIENTS
from ...sizes import format_size
from .model import DAEMONS, Mps

KEYS_INSIDE_MIG = {
    "name": Key("name: inference", required=True),
    "clients": Key("clients: 4", required=True),
    "active_thread_percentage": Key("active_thread_percentage: 25", required=True),
    "pinned_memory_limit": Key("pinned_memory_limit: 18GiB"),
    "oversubscribe": Key("oversubscribe: true"),
}
KEYS = dict(KEYS_INSIDE_MIG, daemon_per=Key("daemon_per: entry"))


def parse(node: Node, context: PartContext) -> Mps | None:
    """Return the part, or None after reporting an error."""
    fields = node.fields(KEYS_INSIDE_MIG if context.inside_mig else KEYS)
    if fields is None:
        return None
    clients = fields.read("clients", lambda field: field.integer(1, MOST_CLIENTS))
    share = fields.read("active_thread_percentage", percent)
    oversubscribe = fields.read("oversubscribe", Node.boolean, False)
    if oversubscribe is False and clients and share and clients * share > 100:
        node.report(
            "%d clients with %d percent each need %d percent of the SMs" % (clients, share, clients * share),
            "Lower clients or active_thread_percentage, or set oversubscribe: true.",
        )
    return Mps(
        fields.read("name", lambda field: context.names.read(field, "MPS daemon")),
        clients,
        share,
        fields.read("pinned_memory_limit", size_bytes),
        oversubscribe,
        fields.read("daemon_per", lambda field: field.choice(DAEMONS), DAEMONS[0]),
    )


def to_data(mps: Mps) -> dict[str, Any]:
    """Return the part in its canonical form."""
    data: dict[str, Any] = {
        "name": mps.name,
        "clients": mps.clients,
        "active_thread_percentage": mps.active_thread_percentage,
    }
    if mps.pinned_memory_limit_bytes is not None:
        data["pinned_memory_limit"] = format_size(mps.pinned_memory_limit_bytes)
    if mps.oversubscribe:
        data["oversubscribe"] = True
    if mps.daemon_per != DAEMONS[0]:
        data["daemon_per"] = mps.daemon_per
    return data
