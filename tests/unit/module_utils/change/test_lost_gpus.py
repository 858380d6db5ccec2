# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply layouts on a host with a lost GPU."""

from __future__ import annotations

import dataclasses

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.change.lost_gpus import FAIL, POLICIES, SKIP, answering
from ansible_collections.openfleet.gpu.plugins.module_utils.change.targets import targets
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import NvmlError
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Host, LostGpu, to_data
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import parse_layout
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.request import Request
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.request import answer as kubernetes

UUID = "GPU-5c89d3fa-0000-4000-8000-00000000000%d"
MPS = {"name": "inference", "clients": 2, "active_thread_percentage": 50}
TENANT = {"name": "a", "memory": "1GiB", "sm_percent": 20}


@pytest.fixture(name="host")
def of_four_gpus_one_is_lost():
    gpus = [
        dataclasses.replace(gpu, uuid=UUID % gpu.index, pci_address="0000:%02x:00.0" % (0x10 + gpu.index))
        for gpu in assumed_gpus(["H100-80GB"] * 4)
    ]
    return Host("580", "13.580", "13.0", True, (gpus[0], gpus[1], gpus[3]), (LostGpu(2, "GPU is lost"),))


def entry(gpus, sharing="shared", **more):
    return {"gpus": gpus, "sharing": sharing, **more}


def named(layout, host):
    index = {gpu.uuid: gpu.index for gpu in host.gpus}
    return {index[target.gpu_uuid]: target.where for target in targets(layout, host.gpus)}


@pytest.mark.parametrize("policy", POLICIES)
def test_lost_gpu_without_an_entry_is_a_warning(host, policy):
    layout = parse_layout([entry([0]), entry([UUID % 1, "0000:13:00.0"])])
    found = answering(layout, host, policy)
    assert found.layout == layout
    assert found.warnings == ("gpu 2 is lost: the layout does not name it (GPU is lost)",)


@pytest.mark.parametrize(
    "gpus",
    [[0, 2], "all", {"model": "H100*"}, [UUID % 9], ["0000:f1:00.0"]],
    ids=["index", "all", "model", "uuid", "pci"],
)
def test_entry_that_may_match_a_lost_gpu_fails(host, gpus):
    with pytest.raises(NvmlError) as error:
        answering(parse_layout([entry(gpus)]), host, FAIL)
    assert error.value.where.startswith("gpu_layout[0].gpus[") and error.value.problem == "gpu 2 is lost: GPU is lost"
    assert "gpu_layout_lost: skip" in error.value.cure
    # site.yml treats an error with this code as a fault of the host, not of the inventory.
    assert (error.value.code, error.value.gpu) == (15, "2")


def test_skip_removes_it_from_its_entry(host):
    found = answering(parse_layout([entry([0, 2]), entry([3], "exclusive")]), host, SKIP)
    assert named(found.layout, host) == {0: "gpu_layout[0]", 3: "gpu_layout[1]"}
    assert found.warnings == ("gpu 2 is lost: gpu_layout[0] is applied to its other GPUs (GPU is lost)",)
    found = answering(parse_layout([entry("all")]), host, SKIP)
    assert sorted(named(found.layout, host)) == [0, 1, 3]


@pytest.mark.parametrize(
    ("more", "left"),
    [
        ({"sharing": "mps", "mps": MPS}, [0]),
        ({"sharing": "mps", "mps": dict(MPS, daemon_per="entry")}, []),
        ({"sharing": "vgpu", "vgpu": {"tenants": [TENANT]}}, []),
        ({"sharing": "mig", "mig": []}, [0]),
    ],
    ids=["daemons of their own", "one daemon", "tenants", "mig"],
)
def test_entries_that_span_gpus_are_skipped_completely(host, more, left):
    found = answering(parse_layout([entry([0, 2], **more), entry([3])]), host, SKIP)
    assert sorted(named(found.layout, host)) == [*left, 3]
    says = "applied to its other GPUs" if left else "not applied"
    assert says in found.warnings[0]


def test_entry_of_only_lost_gpus_is_not_applied(host):
    found = answering(parse_layout([entry([2]), entry([0], "exclusive")]), host, SKIP)
    assert sorted(named(found.layout, host)) == [0]
    assert found.warnings == ("gpu 2 is lost: gpu_layout[0] is not applied (GPU is lost)",)


@pytest.fixture(name="sick")
def of_four_gpus_two_do_not_work(host):
    known = LostGpu(2, "Unknown Error", UUID % 2, "0000:12:00.0", "NVIDIA L40S", "nvmlDeviceGetName", 999, "Unknown")
    missing = LostGpu(None, "the driver does not count it", pci_address="0000:f1:00.0")
    return dataclasses.replace(host, lost=(known, missing))


@pytest.mark.parametrize(
    ("gpus", "named"),
    [
        ([2], "gpu 2 (%s) does not work: Unknown Error" % (UUID % 2)),
        ([UUID % 2], "gpu 2 (%s) does not work: Unknown Error" % (UUID % 2)),
        (["0000:12:00.0"], "gpu 2 (%s) does not work: Unknown Error" % (UUID % 2)),
        (["0000:f1:00.0"], "the GPU at 0000:f1:00.0 is missing: the driver does not count it"),
        ([7], "the GPU at 0000:f1:00.0 is missing: the driver does not count it"),
        ([UUID % 9], "the GPU at 0000:f1:00.0 is missing: the driver does not count it"),
    ],
    ids=["index", "uuid", "pci", "pci of a missing one", "unknown index", "unknown uuid"],
)
def test_selector_matches_the_gpu_by_name(sick, gpus, named):
    with pytest.raises(NvmlError) as error:
        answering(parse_layout([entry(gpus)]), sick, FAIL)
    assert error.value.problem == named


def test_other_model_is_not_matched(sick):
    only_known = dataclasses.replace(sick, lost=sick.lost[:1])
    layout = parse_layout([entry({"model": "H100*"})])
    assert answering(layout, only_known, FAIL).layout == layout
    found = answering(parse_layout([entry("all")]), sick, SKIP)
    assert sorted(named(found.layout, sick)) == [0, 1, 3] and len(found.warnings) == 2


def test_controller_plans_without_lost_gpus_of_gpu_info(sick):
    state = {"driver_present": True, "gpus": [to_data(gpu) for gpu in sick.gpus], "lost_gpus": to_data(sick.lost)}
    state["gpus"][0]["memory_total_bytes"] = None
    refused = kubernetes(Request([entry("all", "exclusive")], "nvidia_device_plugin", state))
    assert "gpu 2 (%s) does not work" % (UUID % 2) in refused["problems"][0], refused
    planned = kubernetes(Request([entry("all", "exclusive")], "nvidia_device_plugin", state, lost=SKIP))
    assert not planned["problems"] and planned["resources"] == {"nvidia.com/gpu": 3}
