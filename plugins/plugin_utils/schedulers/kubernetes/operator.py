# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Detect NVIDIA's GPU operator on a node, and states that block a change. Pure.

https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-mig.html

Labels of a node determine which components the operator deploys there. The operator adds missing labels and keeps existing
values. While mig-manager changes a node, it uses these labels to pause other components. If it is interrupted, the components
stay paused (https://github.com/NVIDIA/gpu-operator/issues/2833).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from ...host_values import text
from ..protocol import Place
from .api_objects import labels_of
from .backend import WITHOUT_MIG_MANAGER

_DEPLOY = "nvidia.com/gpu.deploy."
_PLUGIN_LABEL = _DEPLOY + "device-plugin"
_MIG_STATE = "nvidia.com/mig.config.state"
# States in which mig-manager changes or reboots the node.
_MIG_AT_WORK = ("pending", "rebooting")
_ABSENT = ("false", "paused-for-mig-change")
# Components that hold GPUs. mig-manager pauses the same components when it changes the MIG mode.
_CLIENTS = ("dcgm", "dcgm-exporter", "device-plugin", "gpu-feature-discovery", "nvsm")
# Label value that pauses a component. mig-manager uses another value. So labels that mig-manager left behind can be
# recognized, and an administrator must handle them.
_PAUSED = "paused-for-openfleet-gpu"


@dataclass(frozen=True)
class Operator:
    """The state of the GPU operator on a node.

    `is_there` is true if the operator manages the node. `problems` are the states that block a change.
    """

    is_there: bool
    problems: tuple[str, ...] = ()

    @property
    def pausing(self) -> dict[str, str]:
        """Return the node labels that pause the components that hold GPUs."""
        return {_DEPLOY + name: _PAUSED for name in _CLIENTS} if self.is_there else {}


def find_operator(node: Any, policies: Sequence[Any], place: Place) -> Operator:
    """Return the state of the operator from a node's labels and the ClusterPolicies.

    `place.config_map` is the name of the ConfigMap that the operator's device plugin must read. If the name is empty, the
    device plugin is not checked.
    """
    labels = labels_of(node)
    deployed = {name for name in labels if name.startswith(_DEPLOY)} - set(WITHOUT_MIG_MANAGER)
    problems = [problem for policy in policies if place.config_map for problem in _config(policy, place)]
    without = all(labels.get(name) == value for name, value in WITHOUT_MIG_MANAGER.items())
    state = labels.get(_MIG_STATE, "")
    if state in _MIG_AT_WORK and not without:
        problems.append(
            "node %s: the GPU operator's mig-manager is changing its GPUs (label %s: %s). Wait until it is done (success or "
            "failed) and run again. Nothing was changed." % (place.node, _MIG_STATE, state)
        )
    if place.config_map and labels.get(_PLUGIN_LABEL) in _ABSENT:
        problems.append(
            "node %s: the label %s: %s keeps the device plugin off the node. If nothing is changing the node, run "
            "`kubectl label node %s %s=true --overwrite`. Nothing was changed."
            % (place.node, _PLUGIN_LABEL, labels[_PLUGIN_LABEL], place.node, _PLUGIN_LABEL)
        )
    return Operator(bool(policies) or bool(deployed), tuple(problems))


def _config(policy: Any, place: Place) -> list[str]:
    """Return a problem if the device plugin does not read the role's ConfigMap."""
    plugin = _mapping(_mapping(policy, "spec"), "devicePlugin")
    if plugin.get("enabled") is False:
        return []
    config = text(_mapping(plugin, "config").get("name") or "", 253)
    if config == place.config_map:
        return []
    name = text(_mapping(policy, "metadata").get("name") or "cluster-policy", 253)
    reads = "reads the ConfigMap %s" % config if config else "reads no ConfigMap"
    other = ", or set gpu_kubernetes_config_map: %s" % config if config else ""
    return [
        "node %s: the GPU operator's device plugin %s. Set it to %s (kubectl patch clusterpolicy %s --type merge "
        '-p \'{"spec":{"devicePlugin":{"config":{"name":"%s"}}}}\')%s. Nothing was changed.'
        % (place.node, reads, place.config_map, name, place.config_map, other)
    ]


def _mapping(parent: Any, key: str) -> Mapping[str, Any]:
    value = parent.get(key) if isinstance(parent, Mapping) else None
    return value if isinstance(value, Mapping) else {}
