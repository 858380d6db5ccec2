# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare RETURN of each filter with the keys of its result."""

from __future__ import annotations

import importlib

import pytest
import yaml

LAYOUT = [{"gpus": [0], "sharing": "exclusive"}]
MODELS = {"node": "h100-01", "expected_gpus": ["H100-80GB", "H100-80GB"]}
BACKENDS = ["nvidia_device_plugin", "nvidia_dra", "hami", "volcano_vgpu", "openfleet_dra", "openfleet_device_plugin"]


def documented_and_called(name, *arguments, **options):
    """Return the documented keys of a filter, and the keys of its result."""
    module = importlib.import_module(f"ansible_collections.openfleet.gpu.plugins.filter.{name}")
    documented = yaml.safe_load(module.RETURN)["_value"]["contains"]
    return set(documented), set(getattr(module, name)(*arguments, **options))


@pytest.mark.parametrize("layout", [LAYOUT, [{"gpus": [9]}]], ids=["valid", "invalid"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_of_kubernetes_mapping_are_documented(layout, backend):
    documented, returned = documented_and_called("kubernetes_mapping", layout, backend, **MODELS)
    assert returned == documented


@pytest.mark.parametrize("layout", [LAYOUT, [{"gpus": [9]}]], ids=["valid", "invalid"])
def test_keys_of_slurm_mapping_are_documented(layout):
    documented, returned = documented_and_called("slurm_mapping", layout, **MODELS)
    assert returned == documented


def test_keys_of_a_removal_from_slurm_are_documented():
    documented, returned = documented_and_called("slurm_mapping", LAYOUT, {}, removed=True, **MODELS)
    assert returned <= documented


def test_keys_of_scrape_plan_are_documented():
    hosts = {"h100-01": {"dcgm_exporter_source": "embedded", "dcgm_exporter_listen_address": "10.0.0.11"}}
    documented, returned = documented_and_called("scrape_plan", ["h100-01"], hosts)
    assert returned == documented
