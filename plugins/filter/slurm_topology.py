# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Format Slurm's topology.conf for nodes whose switch is known."""

from __future__ import annotations

from typing import Any, Callable, Mapping

DOCUMENTATION = r"""
name: slurm_topology
short_description: Format topology.conf for Slurm nodes whose switch is known
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Returns the lines of C(topology.conf) for the nodes of an inventory. It writes no file.
  - For V(topology/tree), each switch is a C(SwitchName), and the switch C(gpu_fleet) connects them. For V(topology/block), each
    switch is a C(BlockName).
  - Returns problems instead of failing.
options:
  _input:
    description: Top-of-rack switch of each node, by the node's name in Slurm.
    type: dict
    required: true
  plugin:
    description: C(TopologyPlugin) of the cluster, for example RV(openfleet.gpu.slurm_info#module:topology_plugin).
    type: str
    choices: [topology/tree, topology/block]
    required: true
seealso:
  - module: openfleet.gpu.slurm_info
  - plugin: openfleet.gpu.slurm_mapping
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Show the lines for two racks
  ansible.builtin.debug:
    msg: "{{ ({'h100-01': 'tor-a', 'h100-02': 'tor-b'} | openfleet.gpu.slurm_topology('topology/tree')).topology_conf }}"
"""

RETURN = r"""
_value:
  description:
    - C(topology_conf) lists the lines of C(topology.conf). It is empty if there are problems.
    - C(problems) lists messages.
  type: dict
  sample:
    problems: []
    topology_conf:
      - SwitchName=tor-a Nodes=h100-01
      - SwitchName=tor-b Nodes=h100-02
      - SwitchName=gpu_fleet Switches=tor-a,tor-b
"""


def slurm_topology(switches: object, plugin: str) -> dict[str, Any]:
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection for every task that uses one of them, so slow imports are local.
    from ..module_utils.errors import FleetError
    from ..plugin_utils.schedulers.slurm.topology_conf import topology_lines

    try:
        if not isinstance(switches, Mapping):
            raise FleetError("slurm_topology", "the input is not a mapping", "Map the name of each node to its switch.")
        return {"problems": [], "topology_conf": topology_lines(switches, plugin)}
    except FleetError as error:
        return {"problems": [str(error)], "topology_conf": []}


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"slurm_topology": slurm_topology}
