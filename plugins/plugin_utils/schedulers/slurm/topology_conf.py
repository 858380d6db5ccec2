# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Format the lines of topology.conf for nodes with a known switch. Pure.

https://slurm.schedmd.com/topology.conf.html
"""

from __future__ import annotations

import re
from typing import Mapping

from ....module_utils.errors import FleetError

TREE, BLOCK = PLUGINS = ("topology/tree", "topology/block")
# The switch that connects all others.
TOP = "gpu_fleet"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def topology_lines(switches: Mapping[str, str], plugin: str) -> list[str]:
    """Return the lines of topology.conf.

    `switches` has each node's top-of-rack switch, by Slurm's node name. `plugin` is the cluster's TopologyPlugin.
    Raises FleetError if a name or the plugin is invalid.
    """
    if plugin not in PLUGINS:
        raise FleetError(
            "TopologyPlugin",
            "%.60r uses no topology.conf" % plugin,
            "Set it to topology/tree or topology/block in slurm.conf.",
        )
    nodes: dict[str, list[str]] = {}
    for node, switch in sorted(switches.items()):
        for word, what in ((node, "Slurm node"), (switch, "switch")):
            if not (isinstance(word, str) and _NAME.fullmatch(word)):
                raise FleetError(
                    "gpu_slurm_switch of %.60s" % node,
                    "%.60r is not the name of a %s" % (word, what),
                    "Use letters, digits, _, . and -.",
                )
        nodes.setdefault(switch, []).append(node)
    if TOP in nodes:
        where = "gpu_slurm_switch of %s" % nodes[TOP][0]
        raise FleetError(where, "%s is the name of the switch that connects all others" % TOP, "Use another name.")
    kind = "SwitchName" if plugin == TREE else "BlockName"
    lines = ["%s=%s Nodes=%s" % (kind, switch, ",".join(names)) for switch, names in sorted(nodes.items())]
    if plugin == TREE and len(nodes) > 1:
        lines.append("SwitchName=%s Switches=%s" % (TOP, ",".join(sorted(nodes))))
    return lines
