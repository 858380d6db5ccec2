# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Layouts on a host of which a GPU is lost."""

from __future__ import annotations

import dataclasses

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.change.lost_gpus import FAIL, POLICIES, SKIP, answering
from ansible_collections.openfleet.gpu.plugins.module_utils.change.targets import targets
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import NvmlError
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Host, LostGpu
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import parse_layout

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
def test_a_lost_gpu_that_the_layout_does_not_name_is_a_warning(host, policy):
    layout = parse_layout([entry([0]), entry([UUID % 1, "0000:13:00.0"])])
    found = answering(layout, host, policy)
    assert found.layout == layout
    assert found.warnings == ("gpu 2 is lost: the layout does not name it (GPU is lost)",)


@pytest.mark.parametrize(
    "gpus",
    [[0, 2], "all", {"model": "H100*"}, [UUID % 9], ["0000:f1:00.0"]],
    ids=["index", "all", "model", "uuid", "pci"],
)
def test_an_entry_that_names_it_or_may_mean_it_fails_by_name(host, gpus):
    with pytest.raises(NvmlError) as error:
        answering(parse_layout([entry(gpus)]), host, FAIL)
    assert error.value.where.startswith("gpu_layout[0].gpus[") and error.value.problem == "gpu 2 is lost: GPU is lost"
    assert "gpu_layout_lost: skip" in error.value.cure
    # site.yml tolerates it as the host's trouble, not the inventory's.
    assert (error.value.code, error.value.gpu) == (15, "2")


def test_skip_leaves_it_out_of_its_entry(host):
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
def test_what_is_divided_between_gpus_is_left_out_whole(host, more, left):
    found = answering(parse_layout([entry([0, 2], **more), entry([3])]), host, SKIP)
    assert sorted(named(found.layout, host)) == [*left, 3]
    says = "applied to its other GPUs" if left else "not applied"
    assert says in found.warnings[0]


def test_an_entry_of_nothing_but_lost_gpus_is_not_applied(host):
    found = answering(parse_layout([entry([2]), entry([0], "exclusive")]), host, SKIP)
    assert sorted(named(found.layout, host)) == [0]
    assert found.warnings == ("gpu 2 is lost: gpu_layout[0] is not applied (GPU is lost)",)
