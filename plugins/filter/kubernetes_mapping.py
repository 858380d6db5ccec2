# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Kubernetes offers of a host's GPUs once they are shared as gpu_layout says."""

from __future__ import annotations

DOCUMENTATION = r"""
name: kubernetes_mapping
short_description: Map a GPU layout to the resources that a Kubernetes node offers
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Returns the resources that the node will offer, the configuration of the plugin that publishes them, and labels of the node.
    No cluster and no host is asked.
  - What the backend cannot express is refused, with the entry, the reason, and the backends that can.
  - Returns problems rather than failing, so that the caller can name the host.
  - C(docs/kubernetes.md) tells what maps to what.
options:
  _input:
    description: The variable C(gpu_layout).
    type: raw
    required: true
  backend:
    description: What publishes GPUs to Kubernetes.
    type: str
    choices: [nvidia_device_plugin, nvidia_dra, hami, volcano_vgpu]
    required: true
  state:
    description: What the module M(openfleet.gpu.gpu_info) returned on the host. It takes precedence over the two options below.
    type: dict
    default: {}
  lost:
    description:
      - What to do where the layout names a GPU that is lost (fallen off the bus). V(fail) is a problem, V(skip) maps the others.
      - A lost GPU is offered by no backend.
    type: str
    choices: [fail, skip]
    default: fail
  expected_gpus:
    description:
      - Catalogue keys of the host's GPUs in index order, for example C(H100-80GB), for hosts whose driver does not answer.
    type: list
    elements: str
    default: []
  pci_gpus:
    description: What the module M(openfleet.gpu.layout) found on the PCI bus; used where O(expected_gpus) is empty.
    type: list
    elements: dict
    default: []
  node:
    description: What Kubernetes calls the host.
    type: str
    default: ""
  mig_strategy:
    description:
      - How NVIDIA's device plugin names MIG devices. V(mixed) names them by their profile, V(single) as GPUs.
      - V(single) wants MIG mode on every GPU of the node, and instances of one profile.
    type: str
    choices: [mixed, single]
    default: mixed
seealso:
  - plugin: openfleet.gpu.plan_without_driver
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Show what Kubernetes would offer
  ansible.builtin.debug:
    msg: >-
      {{ (gpu_layout | openfleet.gpu.kubernetes_mapping('nvidia_device_plugin', expected_gpus=['H100-80GB', 'H100-80GB'])).plan }}
"""

RETURN = r"""
_value:
  description:
    - C(problems), a list of messages, empty where the layout can be mapped; C(checked), whether the GPUs were known, and so
      whether anything but the form of the layout was checked; C(plan), lines to print.
      Without a driver the GPUs are not known where the layout names them by UUID or PCI address.
    - C(resources), the number of each resource by name, for V(nvidia_dra) the number of devices by class and profile;
      C(config), the plugin's configuration for this node; C(config_name), for V(nvidia_device_plugin) the key of this
      configuration in a ConfigMap, by its content; C(labels) of the node. All are empty where there is a problem.
    - C(requests), how pods ask for what the name of a resource does not say, each with C(where), C(name), C(limits),
      C(annotations), C(environment) and C(claim), the C(spec) of a ResourceClaim; C(left_out), GPUs that the backend does not
      offer, each with C(where), C(gpus) and C(reason); C(notes), sentences.
    - C(refusals), what the backend cannot express, each with C(where), C(gpus), C(problem), C(cure) and C(backends), those that
      can.
  type: dict
"""

import dataclasses

from ..module_utils.assumed import assumed_gpus, gpus_on_the_bus
from ..module_utils.errors import FleetError, LayoutError
from ..module_utils.layout import parse_layout
from ..module_utils.lost_gpus import FAIL, POLICIES, answering
from ..module_utils.model import LostGpu, to_data
from ..plugin_utils.host_results import gpu_info
from ..plugin_utils.host_values import Reader
from ..plugin_utils.kubernetes.device_plugin import CONFIG_LABEL
from ..plugin_utils.kubernetes.mapping import map_node
from ..plugin_utils.kubernetes.model import BACKENDS, MIG_STRATEGIES, MIXED, NodeMapping
from ..plugin_utils.kubernetes.text import lines
from ..plugin_utils.rightsize.observed import host_of

#: What a host says of its PCI bus: at most so many GPUs.
_ON_THE_BUS = [{"device_id!": "pci_device"}, 64]


def kubernetes_mapping(
    layout_data, backend, state=None, expected_gpus=(), pci_gpus=(), node="", mig_strategy=MIXED, lost=FAIL
):
    """See DOCUMENTATION."""
    state, warnings = state or {}, ()
    try:
        _check_word("backend", backend, BACKENDS)
        _check_word("mig_strategy", mig_strategy, MIG_STRATEGIES)
        _check_word("lost", lost, POLICIES)
        layout = parse_layout(layout_data)
        if state.get("driver_present") is True:
            host = _host(node or "this host", state)
            answers = answering(layout, host, lost)
            layout, warnings, gpus = answers.layout, answers.warnings, host.gpus
        else:
            gpus = _gpus(node or "this host", layout, expected_gpus, pci_gpus)
        mapping = map_node(layout, gpus, backend, node, mig_strategy) if gpus else NodeMapping(backend)
    except LayoutError as error:
        return _answer(NodeMapping(backend), [str(problem) for problem in error.problems], checked=True)
    except FleetError as error:
        return _answer(NodeMapping(backend), [str(error)], checked=True)
    answer = _answer(mapping, list(map(str, mapping.refusals)), checked=bool(gpus))
    if gpus and not mapping.refusals:
        answer["plan"] = [*lines(mapping, node or "this host"), *warnings]
    return answer


def _host(name, state):
    """The host that gpu_info told of, lost GPUs included."""
    read = gpu_info(name, state)
    lost = tuple(LostGpu(row["index"], row.get("problem") or "") for row in read.get("lost_gpus") or ())
    return dataclasses.replace(host_of(name, read), lost=lost)


def _gpus(name, layout, expected_gpus, pci_gpus):
    """The GPUs that are expected, or on the host's bus; none where only a driver could say which GPUs the layout names."""
    if any(selector.kind in ("uuid", "pci") for entry in layout.entries for selector in entry.selectors):
        return ()
    if expected_gpus:
        return assumed_gpus(expected_gpus)
    found = Reader(name).read("pci_gpus", pci_gpus, _ON_THE_BUS)
    return gpus_on_the_bus([gpu["device_id"] for gpu in found])


def _check_word(option, word, words):
    if word not in words:
        raise FleetError(option, '"%.60s" is no value of this option' % word, "Write one of %s." % ", ".join(words))


def _answer(mapping, problems, checked):
    data = to_data(mapping)
    return dict(data, config_name=mapping.labels.get(CONFIG_LABEL, ""), problems=problems, checked=checked, plan=[])


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"kubernetes_mapping": kubernetes_mapping}
