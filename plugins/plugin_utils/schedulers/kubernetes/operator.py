# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Detect NVIDIA's GPU operator on a node, and states that block a change. Pure.

https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-mig.html

A node's labels determine which components the operator deploys there. The operator adds missing labels and keeps
existing values. Its component mig-manager applies the configuration in the label nvidia.com/mig.config, and removes all
other MIG instances. While mig-manager changes a node, it uses these labels to pause other components. After an
interruption, the components stay paused (https://github.com/NVIDIA/gpu-operator/issues/2833).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from ...host_values import text
from ..protocol import Place
from .api_objects import labels_of
from .backend import DEPLOY_LABEL, MIG_CONFIG_LABEL, WITHOUT_MIG_MANAGER

_DEPLOY = "nvidia.com/gpu.deploy."
_PLUGIN_LABEL = _DEPLOY + "device-plugin"
_MIG_STATE = "nvidia.com/mig.config.state"
# States in which mig-manager changes or reboots the node.
_MIG_AT_WORK = ("pending", "rebooting")
_ABSENT = ("false", "paused-for-mig-change")
# Components that hold GPUs, which mig-manager also pauses when it changes the MIG mode.
_CLIENTS = ("dcgm", "dcgm-exporter", "device-plugin", "gpu-feature-discovery", "nvsm")
# Label value that pauses a component. It differs from mig-manager's, so that labels that mig-manager left behind can be
# recognized. An administrator must handle those.
_PAUSED = "paused-for-openfleet-gpu"


@dataclass(frozen=True)
class Operator:
    """The GPU operator's state on a node.

    `is_there` is true if it manages the node. `problems` has the states that block a change, `dangers` the labels with
    which mig-manager would change the layout.
    """

    is_there: bool
    problems: tuple[str, ...] = ()
    dangers: tuple[str, ...] = ()

    @property
    def pausing(self) -> dict[str, str]:
        """Return the labels with which the node pauses components that hold GPUs."""
        return {_DEPLOY + name: _PAUSED for name in _CLIENTS} if self.is_there else {}


def find_operator(node: Any, policies: Sequence[Any], place: Place) -> Operator:
    """Return the operator's state from a node's labels and the ClusterPolicies.

    The operator's device plugin must read the ConfigMap `place.config_map`. This is not checked if the name is empty.
    """
    labels = labels_of(node)
    deployed = {name for name in labels if name.startswith(_DEPLOY)} - set(WITHOUT_MIG_MANAGER)
    problems = [problem for policy in policies if place.config_map for problem in _config(policy, place)]
    state = labels.get(_MIG_STATE, "")
    if state in _MIG_AT_WORK and labels.get(DEPLOY_LABEL) != WITHOUT_MIG_MANAGER[DEPLOY_LABEL]:
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
    return Operator(bool(policies) or bool(deployed), tuple(problems), tuple(_dangers(labels, policies, place.node)))


def removal_problem(node: Any, policies: Sequence[Any], restored: Mapping[str, str | None], name: str) -> str:
    """Return why a node's labels cannot be restored, or "".

    With the previous labels, mig-manager would start and remove the layout's instances. The removal continues if the
    ClusterPolicy disables mig-manager, or if an administrator has already enabled it on the node.
    """
    policy = next(filter(_runs_mig_manager, policies), None)
    if policy is None or restored.get(DEPLOY_LABEL, "false") not in (None, "true"):
        return ""
    config = restored.get(MIG_CONFIG_LABEL, labels_of(node).get(MIG_CONFIG_LABEL)) or _default_config(policy)
    if not config:
        return ""
    return (
        "node %s: with its previous labels, the GPU operator runs mig-manager, which applies %s and removes all other MIG "
        "instances. To keep the instances, disable mig-manager (kubectl patch clusterpolicy %s --type merge "
        '-p \'{"spec":{"migManager":{"enabled":false}}}\'). To leave the GPUs to mig-manager, run '
        "`kubectl label node %s %s=true --overwrite`. Then run again. Nothing was changed."
        % (name, text(config, 63), _policy_name(policy), name, DEPLOY_LABEL)
    )


def _dangers(labels: Mapping[str, str], policies: Sequence[Any], node: str) -> list[str]:
    """Return the labels that do not protect the layout from mig-manager."""
    disabled = policies and not any(map(_runs_mig_manager, policies))
    consequences = {
        DEPLOY_LABEL: "the GPU operator runs mig-manager on the node%s" % (" once it is enabled" if disabled else ""),
        MIG_CONFIG_LABEL: "mig-manager, if it runs on the node, applies %s and removes all other MIG instances"
        % (text(labels.get(MIG_CONFIG_LABEL) or "all-disabled", 63)),
    }
    return [
        "node %s: label %s is %s (planned: %s), so %s"
        % (node, name, text(labels[name], 63) if labels.get(name) else "missing", value, consequences[name])
        for name, value in WITHOUT_MIG_MANAGER.items()
        if labels.get(name) != value
    ]


def _runs_mig_manager(policy: Any) -> bool:
    """Return whether the operator deploys mig-manager, which is its default."""
    return _mapping(_mapping(policy, "spec"), "migManager").get("enabled") is not False


def _default_config(policy: Any) -> str:
    """Return the configuration that the operator selects on nodes without one.

    The configuration is empty only if the ClusterPolicy says so.
    """
    config = _mapping(_mapping(_mapping(policy, "spec"), "migManager"), "config")
    return "" if config.get("default") == "" else "all-disabled"


def _policy_name(policy: Any) -> str:
    return text(_mapping(policy, "metadata").get("name") or "cluster-policy", 253)


def _config(policy: Any, place: Place) -> list[str]:
    """Return a problem if the device plugin does not read the role's ConfigMap."""
    plugin = _mapping(_mapping(policy, "spec"), "devicePlugin")
    if plugin.get("enabled") is False:
        return []
    config = text(_mapping(plugin, "config").get("name") or "", 253)
    if config == place.config_map:
        return []
    name = _policy_name(policy)
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
