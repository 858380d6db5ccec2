# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Export layouts from GPUs. GPUs with equal settings share an entry.

The export reports state that a layout cannot express. Other tests compare it with real plans.
"""

from __future__ import annotations

import dataclasses

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.export import layout as export
from ansible_collections.openfleet.gpu.plugins.module_utils.model import (
    ComputeInstance,
    GpuInstance,
    Placement,
    Setting,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import layout_to_data, parse_layout
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps.model import MpsDaemon, MpsPlace, MpsSeen
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.model import VgpuSeat, VgpuSeen, VgpuTenant


def exported(gpus, pin_placements=False, daemons=(), tenants=()):
    """Return the layout that the export makes of these GPUs, daemons and tenants."""
    seen = {"mps": [MpsSeen(daemon, (), True) for daemon in daemons], "vgpu": [VgpuSeen(one) for one in tenants]}
    return export.exported(gpus, pin_placements, seen=seen)


def gpus(count=1):
    return assumed_gpus(["H100-80GB"] * count)


def partitioned(gpu, *instances, pending=True):
    mig = dataclasses.replace(gpu.mig, enabled=True, pending=pending, instances=instances)
    return dataclasses.replace(gpu, mig=mig, compute_mode=None)


def half(start, *slices):
    compute = tuple(ComputeInstance(number, n, Placement(number, n)) for number, n in enumerate(slices))
    return GpuInstance(start, "3g.40gb", Placement(start, 4), compute)


def data(found):
    layout = layout_to_data(found.layout)
    # Every exported value must be a valid layout.
    assert parse_layout(layout) == found.layout
    return layout


def test_equal_gpus_share_an_entry():
    one, two, three = gpus(3)
    busy = dataclasses.replace(two, compute_mode="exclusive_process")
    assert data(exported([one, busy, three])) == [
        {"gpus": [0, 2], "sharing": "shared"},
        {"gpus": [1], "sharing": "exclusive"},
    ]
    assert data(exported([one, two, three])) == [{"gpus": "all", "sharing": "shared"}]


def test_equal_instances_are_counted_unless_pinned():
    gpu = partitioned(gpus()[0], half(0, 3), half(4, 3))
    assert data(exported([gpu]))[0]["mig"] == [{"profile": "3g.40gb", "count": 2}]
    assert data(exported([gpu], pin_placements=True))[0]["mig"] == [
        {"profile": "3g.40gb", "placement": 0},
        {"profile": "3g.40gb", "placement": 4},
    ]


def test_split_instance_lists_its_parts():
    gpu = partitioned(gpus()[0], half(0, 1, 2), half(4, 1))
    assert data(exported([gpu]))[0]["mig"] == [
        {"profile": "3g.40gb", "compute_instances": ["2c.3g.40gb", "1c.3g.40gb"]},
        {"profile": "3g.40gb", "compute_instances": ["1c.3g.40gb"]},
    ]


@pytest.mark.parametrize(
    ("change", "said", "left"),
    [
        (lambda gpu: partitioned(gpu, half(0)), "3g.40gb@0 has no compute instance", 1),
        (lambda gpu: partitioned(gpu, half(0, 3), pending=False), "MIG mode is pending", 0),
        (lambda gpu: dataclasses.replace(gpu, compute_mode="prohibited"), "prohibited", 0),
        (lambda gpu: dataclasses.replace(gpu, compute_mode=None), "not told", 0),
    ],
)
def test_inexpressible_state_is_reported(change, said, left):
    found = exported([change(gpus()[0])])
    assert len(found.left_out) == 1 and said in found.left_out[0]
    assert len(data(found)) == left


def exclusive(gpu):
    return dataclasses.replace(gpu, compute_mode="exclusive_process")


def test_mps_daemons_are_exported_with_their_devices():
    one, two, three = map(exclusive, gpus(3))
    alone = MpsDaemon("alone", (MpsPlace(one.uuid),), 4, 25, 18 << 30)
    pair = MpsDaemon("pair", (MpsPlace(two.uuid), MpsPlace(three.uuid)), 4, 50)
    caps = {"clients": 4, "active_thread_percentage": 25, "pinned_memory_limit": "18GiB"}
    both = {"clients": 4, "active_thread_percentage": 50, "oversubscribe": True, "daemon_per": "entry"}
    assert data(exported([one, two, three], daemons=[alone, pair])) == [
        {"gpus": [0], "sharing": "mps", "mps": dict(caps, name="alone")},
        {"gpus": [1, 2], "sharing": "mps", "mps": dict(both, name="pair")},
    ]


def test_a_daemon_in_an_instance_belongs_to_it():
    gpu = partitioned(gpus()[0], half(0, 3), half(4, 3))
    inside = MpsDaemon("inside", (MpsPlace(gpu.uuid, "3g.40gb", 4),), 2, 50)
    assert data(exported([gpu], daemons=[inside]))[0]["mig"] == [
        {"profile": "3g.40gb"},
        {"profile": "3g.40gb", "mps": {"name": "inside", "clients": 2, "active_thread_percentage": 50}},
    ]


def test_time_slice_is_time_slicing_unless_a_process_mode_is_set():
    one, two = (dataclasses.replace(gpu, settings={"time_slice": Setting("long")}) for gpu in gpus(2))
    found = exported([one, exclusive(two)])
    assert data(found) == [{"gpus": [0], "sharing": "time_slicing", "time_slicing": {"slice": "long"}}]
    assert "compute mode (exclusive_process, time slice long)" in found.left_out[0]


def test_daemon_on_an_open_gpu_is_reported():
    gpu = gpus()[0]
    found = exported([gpu], daemons=[MpsDaemon("a", (MpsPlace(gpu.uuid),), 4, 25)])
    assert found.layout.entries == ()
    assert "compute mode (default, MPS daemon a)" in found.left_out[0]


def tenant(name, *gpus, percent=30, **more):
    return VgpuTenant(name, 8 << 30, percent, tuple(VgpuSeat(gpu.uuid, 0) for gpu in gpus), **more)


@pytest.mark.parametrize(
    ("providers", "told"),
    [
        # On a kernel that can limit memory, auto would select dmem instead.
        (("preload", "preload"), "preload"),
        (("mps", "mps"), "mps"),
        # dmem is the strongest provider, so auto selects it as well.
        (("dmem", "dmem"), "auto"),
        (("dmem", "preload"), "auto"),
    ],
)
def test_provider_keeps_tenants_unchanged(providers, told):
    (gpu,) = gpus(1)
    there = [tenant(name, gpu, provider=provider) for name, provider in zip("ab", providers)]
    (entry,) = exported([gpu], tenants=there).layout.entries
    assert entry.part.provider == told


def test_tenants_are_exported_with_shared_gpus():
    one, two, three = gpus(3)
    there = [
        tenant("b", two),
        tenant("pair", one, two, priority=1, oversubscribe_managed=True),
        tenant("a", three, policy="burst"),
    ]
    b = {"name": "b", "memory": "8GiB", "sm_percent": 30}
    pair = {"name": "pair", "memory": "8GiB", "sm_percent": 30, "priority": 1, "gpus": 2, "oversubscribe_managed": True}
    a = dict(b, name="a")
    expected = [
        {"gpus": [0, 1], "sharing": "vgpu", "vgpu": {"provider": "preload", "tenants": [b, pair]}},
        {"gpus": [2], "sharing": "vgpu", "vgpu": {"policy": "burst", "provider": "preload", "tenants": [a]}},
    ]
    assert data(exported([one, two, three], tenants=there)) == expected
    expected[0]["vgpu"]["tenants"][0]["gpu"] = 1
    expected[1]["vgpu"]["tenants"][0]["gpu"] = 2
    assert data(exported([one, two, three], pin_placements=True, tenants=there)) == expected


def test_colocated_tenants_are_exported_with_latency():
    (gpu,) = gpus()
    there = [
        dataclasses.replace(tenant(name, gpu, policy="colocate", priority=priority), waterline_percent=70)
        for priority, name in enumerate("ab")
    ]
    (found,) = data(exported([gpu], tenants=there))
    assert (found["vgpu"]["policy"], found["vgpu"]["waterline_percent"]) == ("colocate", 70)
    assert [(one["latency"], "priority" in one) for one in found["vgpu"]["tenants"]] == [
        ("online", False),
        ("offline", False),
    ]


def test_oversubscription_is_exported():
    (gpu,) = gpus()
    many = [tenant("t%d" % n, gpu, percent=23) for n in range(5)]
    found = data(exported([gpu], tenants=many))
    assert found[0]["vgpu"]["oversubscribe"] == {"sm": 1.15}
    # 1.26 is the ratio of 100 GiB to the GPU's 81559 MiB, rounded up.
    huge = [dataclasses.replace(each, memory_bytes=20 << 30) for each in many]
    assert data(exported([gpu], tenants=huge))[0]["vgpu"]["oversubscribe"] == {"memory": 1.26, "sm": 1.15}


@pytest.mark.parametrize(
    ("change", "tenants", "said"),
    [
        ({"compute_mode": "exclusive_process"}, [("a", {})], "compute mode default"),
        ({}, [("a", {}), ("b", {"policy": "burst"})], "differ in policy"),
        ({"uuid": "GPU-other"}, [("a", {})], "is missing"),
    ],
)
def test_inexpressible_tenants_are_reported(change, tenants, said):
    (gpu,) = gpus()
    there = [tenant(name, gpu, **more) for name, more in tenants]
    found = exported([dataclasses.replace(gpu, **change)], tenants=there)
    assert said in found.left_out[0]
    assert not [entry for entry in found.layout.entries if entry.sharing == "vgpu"]
