#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kubelet_info
short_description: Report a kubelet's policies for NUMA nodes and CPUs
version_added: "0.1.0"
description:
  - "Internal: only this collection uses this module."
  - Reads the options of the kubelet's process and its configuration files on the host, with those of its option C(--config-dir).
    It does not contact the cluster, so that no account needs the permission C(nodes/proxy).
author:
  - openfleet.gpu contributors (!UNKNOWN)
extends_documentation_fragment:
  - openfleet.gpu.errors
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  platform:
    platforms: linux
seealso:
  - plugin: openfleet.gpu.kubelet_topology
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Read the kubelet's policies
  openfleet.gpu.kubelet_info:
  register: kubelet
"""

RETURN = r"""
running:
  description: Whether a separate kubelet process runs on the host. Distributions such as k3s have none.
  returned: success
  type: bool
  sample: true
config:
  description: The kubelet's configuration file. Empty if it has none.
  returned: success
  type: str
  sample: /var/lib/kubelet/config.yaml
config_dir:
  description:
    - Folder of the kubelet's option C(--config-dir). Empty if it has none. Its files take precedence over RV(config).
  returned: success
  type: str
  sample: /etc/kubernetes/kubelet.conf.d
topology_policy:
  description: C(topologyManagerPolicy). Empty if no kubelet runs.
  returned: success
  type: str
  sample: single-numa-node
topology_scope:
  description: C(topologyManagerScope).
  returned: success
  type: str
  sample: container
cpu_policy:
  description: C(cpuManagerPolicy).
  returned: success
  type: str
  sample: static
memory_policy:
  description: C(memoryManagerPolicy).
  returned: success
  type: str
  sample: None
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.kubernetes.kubelet_config import read_kubelet
from ..module_utils.runner import run


def main() -> None:
    """Run the module."""
    module = AnsibleModule({}, supports_check_mode=True)
    run(module, lambda: dict(read_kubelet(), changed=False))


if __name__ == "__main__":
    main()
