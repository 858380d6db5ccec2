# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Offer the GPUs of a node with NVIDIA's device plugin, version 0.20.

Sources: https://github.com/NVIDIA/k8s-device-plugin. "README" below means the README.md of that repository, and paths are paths
in it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any, Mapping, Sequence

from ....module_utils.layout.profile_name import profile_order
from ...techniques.access import Clients, Turns
from ..kubernetes.backend import WITHOUT_MIG_MANAGER
from ..model import (
    MIXED,
    SINGLE,
    Node,
    NodeGpu,
    NodeInstance,
    Offer,
    Refusal,
    by_entry,
    gpus_text,
    refusal,
)

KEY = "nvidia_device_plugin"
# Keys of `sharing` in the plugin's configuration (README, "Shared Access to GPUs").
_SHARING = {Turns: "timeSlicing", Clients: "mps"}
GPU_RESOURCE = "nvidia.com/gpu"
# Node label that selects a key of the ConfigMap (README, "Updating Per-Node Configuration With a Node Label").
CONFIG_LABEL = "nvidia.com/device-plugin.config"
# Root directory of MPS, from the plugin's Helm chart. Without it, a plugin that uses MPS exits.
_MPS_ROOT = "/run/nvidia/mps"
# Minimum number of replicas that the plugin accepts.
_FEWEST_REPLICAS = 2


def offer(node: Node) -> Offer:
    """Return the plugin's offer of the node's GPUs, or the refused entries."""
    gpus, mig_strategy = node.gpus, node.mig_strategy
    whole = [each for each in gpus if each.instances is None]
    partitioned = [each for each in gpus if each.instances is not None]
    refusals = [*_refuse_others(whole), *_refuse_instances(partitioned, mig_strategy), *_refuse_sharing(whole, gpus)]
    if partitioned and mig_strategy == SINGLE:
        refusals += _refuse_single(whole, partitioned)
    if refusals:
        return Offer(KEY, refusals=tuple(refusals))
    replicas = max((_replicas(each) for each in whole), default=1)
    config = _config(
        whole, MIXED if partitioned and mig_strategy == MIXED else SINGLE if partitioned else "none", replicas
    )
    return Offer(
        KEY,
        _resources(whole, partitioned, mig_strategy, replicas),
        config,
        {CONFIG_LABEL: config_name(config), **WITHOUT_MIG_MANAGER},
        notes=tuple(_notes(whole)),
        config_name=config_name(config),
    )


def resource_name(profile: str) -> str:
    """Return the resource name of a MIG profile with the MIG strategy "mixed".

    Plus signs are replaced by dots (README, "Configuration Option Details"). Since version 0.20, profiles ending in
    ``-me``, ``+me.all`` and ``+gfx`` have separate resources.
    """
    return "nvidia.com/mig-%s" % profile.replace("+", ".")


def config_name(config: Mapping[str, Any]) -> str:
    """Return a configuration's key in the ConfigMap, derived from its content.

    The plugin's config-manager only compares the link to the selected file, and does not notice a changed content of
    the key. So a changed configuration gets a new key, to which the node's label is set.
    """
    content = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return "openfleet-%s" % hashlib.sha256(content.encode()).hexdigest()[:16]


def _config(whole: Sequence[NodeGpu], strategy: str, replicas: int) -> dict[str, Any]:
    """Return the plugin's configuration file.

    See README, "As a configuration file" and "Shared Access to GPUs". As the README recommends, a request for more than
    one replica fails, because the pod would not get a larger part of the GPU.
    """
    flags: dict[str, Any] = {"migStrategy": strategy}
    config: dict[str, Any] = {"version": "v1", "flags": flags}
    if replicas > 1:
        shared = {"failRequestsGreaterThanOne": True, "resources": [{"name": GPU_RESOURCE, "replicas": replicas}]}
        access = whole[0].access
        config["sharing"] = {_SHARING[type(access)]: shared}
        if isinstance(access, Clients):
            flags["mpsRoot"] = _MPS_ROOT
    return config


def _resources(
    whole: Sequence[NodeGpu], partitioned: Sequence[NodeGpu], mig_strategy: str, replicas: int
) -> dict[str, int]:
    instances = Counter(instance.profile for each in partitioned for instance in each.instances or ())
    parts = sum(len(instance.compute_slices) or 1 for each in partitioned for instance in each.instances or ())
    found = {}
    if whole:
        found[GPU_RESOURCE] = len(whole) * replicas
    elif partitioned and mig_strategy == SINGLE:
        found[GPU_RESOURCE] = parts
    if mig_strategy == MIXED:
        for profile in sorted(instances, key=profile_order):
            found[resource_name(profile)] = instances[profile]
    return found


def _replicas(each: NodeGpu) -> int:
    """Return the number of pods that may share the GPU."""
    return each.access.pods if each.access else 1


def _refuse_others(whole: Sequence[NodeGpu]) -> list[Refusal]:
    """Refuse techniques that the plugin does not support.

    For example, the plugin has no quotas for memory and SMs (README, "Shared Access to GPUs").
    """
    found = []
    for group in by_entry(whole):
        technique = group[0].technique
        if technique is not None and type(group[0].access) not in _SHARING:
            found.append(refusal(group, "the device plugin does not support %s" % technique.title))
    return found


def _refuse_instances(partitioned: Sequence[NodeGpu], mig_strategy: str) -> list[Refusal]:
    found = []
    for group in by_entry(partitioned):
        instances = group[0].instances or ()
        if not instances:
            # With both strategies, the plugin refuses a GPU in MIG mode without instances (internal/rm/device_map.go,
            # assertAllMigDevicesAreValid).
            found.append(
                refusal(
                    group,
                    "MIG mode is on without an instance, and then the device plugin exits for all GPUs of the node",
                    "Add an instance or disable MIG mode.",
                )
            )
        shared = next((instance.technique for instance in instances if instance.technique), None)
        if shared is not None:
            # For example, the plugin supports MPS only for full GPUs (README, "With CUDA MPS").
            found.append(refusal(group, "the device plugin has no %s inside MIG instances" % shared.title))
        split = next((instance for instance in instances if instance.compute_slices), None)
        if split and mig_strategy == MIXED:
            # A MIG device that is not a whole GPU instance matches none of the resource patterns (internal/rm/rm.go,
            # AddDefaultResourcesToConfig).
            found.append(
                refusal(
                    group,
                    "%s is split into compute instances, and then the device plugin exits for all GPUs of the node under the "
                    "MIG strategy mixed" % split.profile,
                    "Remove compute_instances.",
                )
            )
    return found


def _refuse_single(whole: Sequence[NodeGpu], partitioned: Sequence[NodeGpu]) -> list[Refusal]:
    """Refuse the MIG strategy "single" unless all of the node's MIG devices are equal.

    See internal/rm/device_map.go, buildDeviceMapFromConfigResources and assertAllMigDevicesAreValid.
    """
    cure = "Use the MIG strategy mixed (gpu_kubernetes_mig_strategy)."
    if whole:
        problem = "the MIG strategy single requires MIG mode on every GPU, and %s without" % _are(whole)
        return [refusal(group, problem, cure) for group in by_entry(partitioned)]
    kinds = {kind: None for each in partitioned for instance in each.instances or () for kind in _kinds(instance)}
    if len(kinds) > 1:
        problem = "the MIG strategy single requires one kind of MIG device, and the layout has %s" % " and ".join(kinds)
        return [refusal(group, problem, cure) for group in by_entry(partitioned)]
    return []


def _kinds(instance: NodeInstance) -> list[str]:
    if not instance.compute_slices:
        return [instance.profile]
    return ["%dc.%s" % (slices, instance.profile) for slices in instance.compute_slices]


def _refuse_sharing(whole: Sequence[NodeGpu], node: Sequence[NodeGpu]) -> list[Refusal]:
    """Refuse entries if GPUs without MIG have different sharing modes.

    The plugin configures time slicing and MPS per resource, not per GPU, and a node can use only one of the two
    (README, "Shared Access to GPUs"). The plugin ignores the configuration's field `devices` (api/config/v1/config.go,
    DisableResourceNamingInConfig).
    """
    found = []
    for group in by_entry([each for each in whole if type(each.access) in _SHARING]):
        here = group[0]
        if here.technique is None:
            raise AssertionError("a shared GPU without a technique")
        number = _replicas(here)
        if isinstance(here.access, Clients):
            found += _refuse_clients(group, here.access, node)
        elif number == 1:
            continue
        others = [each for each in whole if (each.sharing, _replicas(each)) != (here.sharing, number)]
        if others:
            problem = "%s with %d replicas covers all GPUs of a node without MIG, and %s another sharing" % (
                here.technique.title,
                number,
                "%s %s" % (gpus_text([each.gpu.index for each in others]), "have" if len(others) > 1 else "has"),
            )
            found.append(refusal(group, problem))
    return found


def _refuse_clients(group: Sequence[NodeGpu], clients: Clients, node: Sequence[NodeGpu]) -> list[Refusal]:
    """Refuse MPS settings that the plugin's MPS daemon does not support.

    The daemon divides memory and SMs evenly among its clients (cmd/mps-control-daemon/mps/daemon.go). MPS is not supported on
    devices with MIG (README, "With CUDA MPS"), and the plugin refuses ``sharing.mps`` with the MIG strategy "mixed".
    """
    found = []
    if any(each.instances is not None for each in node):
        found.append(refusal(group, "the device plugin has no MPS on a node with MIG"))
    if clients.pods < _FEWEST_REPLICAS:
        found.append(refusal(group, "the device plugin shares a GPU between at least %d pods" % _FEWEST_REPLICAS))
    elif clients.sm_percent != 100 // clients.pods:
        problem = "the device plugin gives each of %d clients %d percent of the SMs, not %d" % (
            clients.pods,
            100 // clients.pods,
            clients.sm_percent,
        )
        found.append(refusal(group, problem))
    limit = clients.memory_bytes
    sizes = [each.gpu.memory_total_bytes for each in group if each.gpu.memory_total_bytes]
    if len(sizes) < len(group):
        problem = "the device plugin divides the memory of a GPU, and the driver does not report this GPU's size"
        return [*found, refusal(group, problem, "Choose another sharing or backend.")]
    smallest = min(sizes) // clients.pods
    if limit is not None and limit < smallest:
        problem = (
            "the device plugin gives each of %d clients an equal share of the memory (%d MiB), more than the %d MiB"
            % (
                clients.pods,
                smallest >> 20,
                limit >> 20,
            )
        )
        found.append(refusal(group, problem))
    return found


def _notes(whole: Sequence[NodeGpu]) -> list[str]:
    notes = []
    if any(isinstance(each.access, Clients) for each in whole):
        notes.append(
            "The device plugin starts its own MPS daemon, which cannot run together with the layout's, and limits each client to "
            "an equal share of the memory."
        )
    unlisted = [each.gpu.index for each in whole if each.entry is None]
    if unlisted:
        notes.append("No entry lists %s, so the device plugin offers the current state." % gpus_text(unlisted))
    return notes


def _are(node: Sequence[NodeGpu]) -> str:
    return "%s %s" % (gpus_text([each.gpu.index for each in node]), "are" if len(node) > 1 else "is")
