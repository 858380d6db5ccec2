# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the inventory's top-of-rack switches as Volcano's HyperNodes. Pure.

https://github.com/volcano-sh/volcano, docs/user-guide/how_to_use_network_topology_aware_scheduling.md. Nodes that share
a HyperNode of a lower tier have more bandwidth between each other.
"""

from __future__ import annotations

import re
from typing import Any, Sequence

from ....module_utils.errors import FleetError
from ..kubernetes.api_objects import OWNED
from ..protocol import Member

API, KIND = "topology.volcano.sh/v1alpha1", "HyperNode"
#: The HyperNode that contains all switches.
TOP = "gpu-fleet"
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?){0,3}")


def objects(members: Sequence[Member]) -> list[dict[str, Any]]:
    """Return a HyperNode for each switch, and one that contains them.

    Switches have tier 1, and the HyperNode above them tier 2. Raises FleetError if a switch's name cannot be the name
    of a HyperNode.
    """
    nodes: dict[str, list[str]] = {}
    for member in members:
        if not member.switch:
            continue
        where = "gpu_slurm_switch of %s" % member.host
        # Switches' names often have underscores and capital letters, which objects' names must not have.
        name = member.switch.lower().replace("_", "-")
        if not _NAME.fullmatch(name):
            cure = "Use letters, digits, -, _ and single dots."
            raise FleetError(where, "%.63r cannot be the name of a HyperNode" % member.switch, cure)
        if name == TOP:
            problem = "%s is the name of the HyperNode that contains all switches" % TOP
            raise FleetError(where, problem, "Use another name.")
        nodes.setdefault(name, []).append(member.node)
    found = [_hyper_node(name, 1, "Node", sorted(nodes[name])) for name in sorted(nodes)]
    return [*found, _hyper_node(TOP, 2, KIND, sorted(nodes))] if len(nodes) > 1 else found


def _hyper_node(name: str, tier: int, kind: str, names: Sequence[str]) -> dict[str, Any]:
    return {
        "apiVersion": API,
        "kind": KIND,
        "metadata": {"name": name, "labels": dict(OWNED)},
        "spec": {
            "tier": tier,
            "members": [{"type": kind, "selector": {"exactMatch": {"name": each}}} for each in names],
        },
    }
