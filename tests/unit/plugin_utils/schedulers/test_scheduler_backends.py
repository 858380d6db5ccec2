# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the registry of scheduler backends and the filter scheduler_backend."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

import pytest

from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_mapping import kubernetes_mapping
from ansible_collections.openfleet.gpu.plugins.filter.scheduler_backend import scheduler_backend
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import parse_layout
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers import registry
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.kubernetes.backend import KubernetesBackend
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.offers import offer_node
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.protocol import Place

pytestmark = pytest.mark.core

ROOT = Path(__file__).resolve().parents[4]
NOTHING = {"applies": False, "config_label": "", "empty_config": "", "component": "", "reads": [], "shares": False}
LAYOUTS = (
    [{"gpus": [0], "sharing": "exclusive"}],
    [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}]}],
    [{"gpus": [0], "sharing": "time_slicing", "time_slicing": {"slice": "default", "replicas": 4}}],
)


class Counted(KubernetesBackend):
    """A backend for tests, without a ConfigMap."""

    key = "counted"
    applies = True
    fixed_labels: ClassVar[dict[str, str]] = {"example.com/node": "true"}
    early_labels = ()
    resource = re.compile(r"example\.com/gpu")


@pytest.mark.parametrize("key", registry.KEYS)
def test_each_key_of_the_registry_has_a_class_with_that_key(key):
    assert registry.backend(key).key == key


@pytest.mark.parametrize("key", registry.KEYS)
def test_pods_are_listed_before_their_claims(key):
    """List pods first, because the module reads only claims that these pods name.

    Otherwise, a removal would not see pods with claims.
    """
    needs = scheduler_backend(key)
    kinds = [each for each in [needs.get("offered_in"), *needs["reads"]] if each]
    for place, kind in enumerate(kinds):
        assert not kind["of_pods"] or "Pod" in [each["kind"] for each in kinds[:place]]


def test_backend_of_the_dra_driver_reads_claims_of_pods_only():
    assert [
        each["of_pods"] for each in scheduler_backend("nvidia_dra")["reads"] if each["kind"] == "ResourceClaim"
    ] == [True]


@pytest.mark.parametrize("key", registry.ALL_KEYS)
def test_each_backend_of_any_scheduler_has_its_key(key):
    assert registry.any_backend(key).key == key


@pytest.mark.parametrize("key", [key for key in registry.ALL_KEYS if not key.startswith("openfleet_")])
@pytest.mark.parametrize(
    "entry",
    [
        {"sharing": "vgpu", "vgpu": {}, "leases": {"by": "host", "groups": ["ml"]}},
        {"sharing": "mig", "mig": [], "leases": {"by": "host", "groups": ["ml"], "profiles": ["1g.10gb"]}},
        {"sharing": "vgpu", "vgpu": {}, "leases": {"by": "kubernetes"}},
    ],
    ids=["vgpu", "mig", "pods"],
)
def test_no_backend_offers_gpus_with_leases(key, entry):
    layout = parse_layout([{"gpus": [0], **entry}, {"gpus": [1], "sharing": "exclusive"}])
    offer = offer_node(layout, assumed_gpus(["H100-80GB"] * 2), key)
    (refused,) = offer.refusals
    assert (refused.where, refused.gpus, offer.resources) == ("gpu_layout[0]", (0,), {})
    assert "it has leases" in str(refused)
    assert refused.backends == (("openfleet_dra",) if entry["leases"]["by"] == "kubernetes" else ())


@pytest.mark.parametrize(
    "path", ["plugins/filter/kubernetes_mapping.py", "roles/gpu_kubernetes/meta/argument_specs.yml"]
)
def test_choices_are_the_keys_of_the_registry(path):
    assert "choices: [%s]\n" % ", ".join(registry.KEYS) in (ROOT / path).read_text("utf-8")


@pytest.mark.parametrize("key", ["no_such_backend", "slurm"])
def test_another_key_has_no_backend_for_kubernetes(key):
    with pytest.raises(KeyError):
        registry.backend(key)


def test_the_filter_describes_a_backend_that_writes_to_the_cluster():
    described = needs("nvidia_device_plugin")
    assert described == {
        "applies": True,
        "config_label": "nvidia.com/device-plugin.config",
        "empty_config": "version: v1\n",
        "component": "device plugin",
        "reads": [],
        "shares": False,
    }


def test_the_filter_describes_a_backend_that_publishes_devices():
    described = scheduler_backend("nvidia_dra")
    assert needs("nvidia_dra") == {**NOTHING, "applies": True, "component": "DRA driver", "reads": described["reads"]}
    assert described["offered_in"]["kind"] == "ResourceSlice"
    kinds = {"DeviceClass", "ResourceClaimTemplate", "ResourceClaim", "DaemonSet", "Pod"}
    assert {each["kind"] for each in described["reads"]} == kinds
    assert described["defaults"]["namespace"] == "dra-driver-nvidia-gpu"


def test_the_filter_describes_the_backend_with_shared_objects():
    described = scheduler_backend("volcano_vgpu")
    assert needs("volcano_vgpu") == {**NOTHING, "applies": True, "component": "vGPU plugin", "shares": True}
    assert described["config_key"] == "config.json"
    assert described["defaults"]["namespace"] == "kube-system"
    assert described["defaults"]["config_map"] == "volcano-vgpu-node-config"


@pytest.mark.parametrize("key", ["", "no_such_backend", "NVIDIA_DRA", None, 3, ["hami"], {"hami": 1}])
def test_an_unknown_backend_needs_nothing(key):
    assert needs(key) == NOTHING


def needs(key):
    return {name: value for name, value in scheduler_backend(key).items() if name in NOTHING}


def refusals(key, layout):
    return offer_node(parse_layout(layout), assumed_gpus(["H100-80GB"]), key).refusals


@pytest.mark.parametrize("key", registry.KEYS)
def test_a_backend_that_writes_labels_can_remove_them(key):
    # A record must not have labels that the backend does not use. It would count as unreadable, and block the next run.
    backend = registry.backend(key)
    offered = [layout for layout in LAYOUTS if not refusals(key, layout)]
    assert offered
    for layout in offered if backend.applies else ():
        offer = kubernetes_mapping(layout, key, expected_gpus=["H100-80GB"], node="n1")
        node = {"metadata": {"name": "n1", "labels": {}}}
        changes = backend.changes(offer, node, None, Place("n1", "ns", "cm"))
        node["metadata"].update(labels=changes.labels, annotations=changes.annotations)
        assert offer["labels"] and not backend.changes(offer, node, None, Place("n1", "ns", "cm")).problems
        removal = backend.removal("n1", [node], None)
        assert removal.problems == () and removal.labels == dict.fromkeys(offer["labels"])


def test_a_backend_without_a_config_map_restarts_no_plugin():
    # This role and NVIDIA's device plugin have the same default namespace and selector.
    offer = {"labels": Counted.fixed_labels, "config_name": "", "config": {}, "resources": {"example.com/gpu": 2}}
    place = Place("n1", "ns", "cm")
    node = {"metadata": {"name": "n1", "labels": {}}, "status": {"allocatable": {"example.com/gpu": "1"}}}
    first = Counted().changes(offer, node, None, place)
    assert (first.labels, first.pending, first.data) == (offer["labels"], {"example.com/gpu": (2, 1)}, {})
    assert not first.restart
    node["metadata"]["labels"] = first.labels
    assert not Counted().changes(offer, node, None, place).restart
