# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan and map GPUs that have no memory size or no settable compute mode."""

from __future__ import annotations

import dataclasses

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.change import planner
from ansible_collections.openfleet.gpu.plugins.module_utils.change.targets import targets
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import PlanError
from ansible_collections.openfleet.gpu.plugins.module_utils.export.layout import exported
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import layout_to_data, parse_layout
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.offers import offer_node

FIXED = "in the Windows Subsystem for Linux it belongs to Windows"
MPS = {"name": "inference", "clients": 2, "active_thread_percentage": 50}


def gpus(**fields):
    return [dataclasses.replace(gpu, **fields) for gpu in assumed_gpus(["L40S-48GB"])]


def plan(sharing, seen):
    layout = parse_layout([{"gpus": "all", "sharing": sharing}])
    return planner.plan(seen, targets(layout, seen))


@pytest.mark.parametrize("mode", ["default", None])
def test_fixed_compute_mode_refuses_exclusive_and_keeps_shared(mode):
    seen = gpus(compute_mode=mode, compute_mode_fixed=FIXED)
    with pytest.raises(PlanError) as error:
        plan("exclusive", seen)
    assert error.value.where.startswith("gpu_layout[0] on gpu 0") and FIXED in error.value.problem
    assert not plan("shared", seen).changes
    assert layout_to_data(exported(seen).layout) == [{"gpus": "all", "sharing": "shared"}]


@pytest.mark.parametrize("backend", ["hami", "volcano_vgpu"])
def test_a_plugin_that_counts_memory_refuses_a_gpu_without_a_size(backend):
    layout = parse_layout([{"gpus": "all", "sharing": "shared"}])
    (refused,) = offer_node(layout, gpus(memory_total_bytes=None), backend, "node").refusals
    assert "does not report this GPU's size" in refused.problem


def test_the_device_plugin_divides_no_memory_of_unknown_size():
    layout = parse_layout([{"gpus": "all", "sharing": "mps", "mps": MPS}])
    mapping = offer_node(layout, gpus(memory_total_bytes=None), "nvidia_device_plugin", "node")
    assert any("does not report this GPU's size" in refused.problem for refused in mapping.refusals)
    whole = parse_layout([{"gpus": "all", "sharing": "exclusive"}])
    assert not offer_node(whole, gpus(memory_total_bytes=None), "nvidia_device_plugin", "node").refusals
