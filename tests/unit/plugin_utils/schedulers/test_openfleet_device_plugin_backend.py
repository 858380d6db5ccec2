# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the backend that offers fixed tenants as extended resources."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_changes import kubernetes_changes
from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_mapping import kubernetes_mapping
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.openfleet_device_plugin.backend import (
    resource_of,
)

sys.path.insert(0, str(Path(__file__).parents[4] / "roles" / "gpu_kubernetes" / "files"))

from openfleet_dra import device_plugin

KEY = "openfleet_device_plugin"
SERVING = "gpu.openfleet.io/tenant-serving"
LEASED = {
    "gpus": [0],
    "sharing": "vgpu",
    "vgpu": {"tenants": [{"name": "serving", "memory": "8GiB", "sm_percent": 30}]},
    "leases": {"by": "kubernetes"},
}
OTHER = {"gpus": [1], "sharing": "exclusive"}


def mapping(*layout, backend=KEY):
    return kubernetes_mapping(list(layout), backend, expected_gpus=["H100-80GB"] * 2, node="n1")


def changes(allocatable, backend=KEY, layout=(LEASED, OTHER), objects=()):
    node = {"kind": "Node", "metadata": {"name": "n1"}, "status": {"allocatable": allocatable}}
    return kubernetes_changes(mapping(*layout, backend=backend), node=node, name="n1", objects=list(objects))


def test_each_tenant_is_a_resource_with_one_device():
    found = mapping(LEASED, OTHER)
    assert found["problems"] == [] and found["resources"] == {SERVING: 1}
    [request] = found["requests"]
    assert request["limits"] == {SERVING: 1}
    assert [each["gpus"] for each in found["left_out"]] == [[1]]


def test_entry_without_tenants_is_refused_and_the_dra_backend_named():
    [problem] = mapping({**LEASED, "vgpu": {}}, OTHER)["problems"]
    assert "no fixed tenants" in problem and "openfleet_dra can express it" in problem


def test_run_waits_until_the_node_offers_the_tenants():
    assert changes({})["pending"] == {SERVING: [1, 0]} and changes({})["restart"] is False
    assert changes({SERVING: "1"})["pending"] == {}
    assert changes({SERVING: "1", "gpu.openfleet.io/tenant-old": "1"})["pending"] == {
        "gpu.openfleet.io/tenant-old": [0, 1]
    }


def test_backend_with_dra_waits_until_the_tenants_are_removed():
    [problem] = changes({SERVING: "1"}, backend="openfleet_dra")["problems"]
    assert "the plugin for tenants offers %s 1" % SERVING in problem and KEY in problem
    assert changes({SERVING: "0"}, backend="openfleet_dra")["problems"] == []


@pytest.mark.parametrize("name", ["serving", "Big.Model", "a-", "x" * 63, "9"])
def test_role_and_plugin_use_the_same_names(name):
    pool = {"gpus": [], "tenants": [{"name": name, "cdi": ["a/b=c"]}]}
    assert device_plugin.resources(pool) == {resource_of(name): ("a/b=c",)}
