# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Map a gpu_layout with each scheduler backend.

The results must match the table and the rules of docs/kubernetes-mapping.md.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from functools import lru_cache

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import SelectorError
from ansible_collections.openfleet.gpu.plugins.module_utils.model import (
    ComputeInstance,
    GpuInstance,
    Mig,
    Placement,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import SHARINGS, parse_layout
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.nvidia_device_plugin.offer import (
    config_name,
    resource_name,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.offers import offer_node
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.registry import KEYS
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.registry import backend as backend_of

pytestmark = pytest.mark.core

#: The tests list the exact answers of these backends. Tests of all backends iterate over KEYS.
DEVICE_PLUGIN, DRA, HAMI, VOLCANO = EXACT = ("nvidia_device_plugin", "nvidia_dra", "hami", "volcano_vgpu")

GIB = 1 << 30
H100 = assumed_gpus(["H100-80GB"] * 8)
UUIDS = tuple("GPU-%08x-0000-4000-8000-000000000000" % index for index in range(8))

EXCLUSIVE, SHARED = {"sharing": "exclusive"}, {"sharing": "shared"}
MIG = {"sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "1g.10gb", "count": 2}]}
SPLIT = {
    "sharing": "mig",
    "mig": [{"profile": "3g.40gb", "compute_instances": ["1c.3g.40gb", "2c.3g.40gb"]}],
}
NO_INSTANCES = {"sharing": "mig", "mig": []}
DAEMON = {"name": "inference", "clients": 4, "active_thread_percentage": 25}
MPS = {"sharing": "mps", "mps": DAEMON}
MPS_INSIDE = {"sharing": "mig", "mig": [{"profile": "3g.40gb", "mps": dict(DAEMON, name="inside")}]}
SLICED = {"sharing": "time_slicing", "time_slicing": {"slice": "long", "replicas": 4}}
TENANTS = {
    "sharing": "vgpu",
    "vgpu": {
        "tenants": [
            {"name": "a", "memory": "8GiB", "sm_percent": 30},
            {"name": "b", "memory": "16GiB", "sm_percent": 60},
        ]
    },
}
ENTRIES = [None, EXCLUSIVE, SHARED, MIG, SPLIT, NO_INSTANCES, MPS, MPS_INSIDE, SLICED, TENANTS]
PAIRS = list(itertools.permutations(range(len(ENTRIES)), 2))


def layout(*entries):
    """Return a layout in which the first entry is for GPU 0, and so on.

    If an entry is None, the layout leaves out the GPU.
    """
    return parse_layout([dict(entry, gpus=[index]) for index, entry in enumerate(entries) if entry])


def gpus(number):
    """Return GPUs that have UUIDs, as a driver reports them."""
    return [dataclasses.replace(gpu, uuid=uuid) for gpu, uuid in zip(H100[:number], UUIDS)]


def mapped(backend, *entries, number=None, **options):
    return offer_node(layout(*entries), gpus(number or len(entries)), backend, "h100-01", **options)


def vgpu(**changes):
    tenant = {"name": "a", "memory": "8GiB", "sm_percent": 30, **changes.pop("tenant", {})}
    return {"sharing": "vgpu", "vgpu": {"tenants": [tenant], **changes}}


@lru_cache(maxsize=None)
def mapped_pair(backend, first, second):
    """Map a node with two GPUs. The arguments are positions in ENTRIES."""
    return mapped(backend, ENTRIES[first], ENTRIES[second])


def outcome(mapping):
    return "refused" if mapping.refusals else "left out" if mapping.left_out else "offered"


# -- The table: one GPU with each backend --


@pytest.mark.parametrize(
    ("entry", "by_device_plugin", "by_dra", "by_hami", "by_volcano"),
    [
        (EXCLUSIVE, "offered", "offered", "left out", "left out"),
        (SHARED, "offered", "offered", "offered", "offered"),
        (MIG, "offered", "offered", "left out", "left out"),
        (SPLIT, "refused", "refused", "left out", "left out"),
        (NO_INSTANCES, "refused", "offered", "left out", "left out"),
        (MPS, "offered", "offered", "left out", "left out"),
        (MPS_INSIDE, "refused", "offered", "refused", "refused"),
        (SLICED, "offered", "offered", "offered", "offered"),
        (TENANTS, "refused", "refused", "offered", "offered"),
    ],
)
def test_whole_gpu_with_each_backend(entry, by_device_plugin, by_dra, by_hami, by_volcano):
    found = [outcome(mapped(backend, entry)) for backend in (DEVICE_PLUGIN, DRA, HAMI, VOLCANO)]
    assert found == [by_device_plugin, by_dra, by_hami, by_volcano]


def test_each_sharing_is_in_the_table_of_backends():
    """Check that each backend's table has every kind of sharing.

    The device plugin and DRA would offer a GPU with an unknown kind as an unshared GPU.
    """
    assert {entry["sharing"] for entry in ENTRIES if entry} == set(SHARINGS)


@pytest.mark.parametrize("backend", KEYS)
def test_layout_is_published_completely_or_refused(backend):
    for places in PAIRS:
        found, pair = mapped_pair(backend, *places), [ENTRIES[place] for place in places]
        if found.refusals:
            assert not (found.resources or found.config or found.labels or found.requests or found.left_out), pair
        else:
            left_out = {index for each in found.left_out for index in each.gpus}
            offered = [entry for index, entry in enumerate(pair) if index not in left_out and entry is not NO_INSTANCES]
            assert bool(found.resources) == bool(offered), pair
            assert set(backend_of(backend).early_labels) <= set(found.labels)
            if backend in EXACT:
                assert found.labels["nvidia.com/gpu.deploy.mig-manager"] == "false"


@pytest.mark.parametrize("backend", KEYS)
def test_the_backends_that_a_refusal_names_offer_the_entry(backend):
    named = 0
    for pair in PAIRS:
        for refused in mapped_pair(backend, *pair).refusals:
            assert backend not in refused.backends
            for other in KEYS:
                found = mapped_pair(other, *pair)
                places = {each.where for each in (*found.refusals, *found.left_out)}
                assert (other in refused.backends) == (other != backend and refused.where not in places)
            named += len(refused.backends)
    # Backends for leases are an exception: they leave out entries without leases, and refuse none.
    assert named or backend_of(backend).leases


def test_refusal_names_entry_reason_and_a_capable_backend():
    (refused,) = mapped(DEVICE_PLUGIN, EXCLUSIVE, TENANTS).refusals
    assert [name for name in refused.backends if name in EXACT] == [HAMI, VOLCANO]
    assert str(dataclasses.replace(refused, backends=(HAMI, VOLCANO))) == (
        "gpu_layout[1] (gpu 1): the device plugin does not support tenants with quotas. "
        "hami or volcano_vgpu can express it (gpu_kubernetes_backend)."
    )


def test_refusal_without_capable_backend_names_the_change():
    (refused,) = mapped(DEVICE_PLUGIN, SPLIT).refusals
    assert refused.backends == ()
    assert str(refused).endswith("Remove compute_instances. No other backend can express it.")


def test_selector_without_match_is_an_error():
    with pytest.raises(SelectorError):
        mapped(DEVICE_PLUGIN, EXCLUSIVE, EXCLUSIVE, number=1)


# -- NVIDIA's device plugin --


def test_mig_devices_are_resources_by_profile():
    found = mapped(DEVICE_PLUGIN, MIG, MIG, EXCLUSIVE)
    assert list(found.resources.items()) == [
        ("nvidia.com/gpu", 1),
        ("nvidia.com/mig-3g.40gb", 2),
        ("nvidia.com/mig-1g.10gb", 4),
    ]
    assert found.config == {"version": "v1", "flags": {"migStrategy": "mixed"}}


@pytest.mark.parametrize(
    ("profile", "resource"),
    [
        ("3g.40gb", "nvidia.com/mig-3g.40gb"),
        ("1g.10gb+me", "nvidia.com/mig-1g.10gb.me"),
        ("1g.24gb+me.all", "nvidia.com/mig-1g.24gb.me.all"),
        ("1g.24gb+gfx", "nvidia.com/mig-1g.24gb.gfx"),
        ("1g.24gb-me", "nvidia.com/mig-1g.24gb-me"),
    ],
)
def test_a_plus_sign_of_a_profile_becomes_a_dot(profile, resource):
    assert resource_name(profile) == resource


def test_without_mig_there_is_no_mig_strategy():
    found = mapped(DEVICE_PLUGIN, EXCLUSIVE, SHARED)
    assert (found.resources, found.config["flags"]) == ({"nvidia.com/gpu": 2}, {"migStrategy": "none"})


def test_single_counts_mig_devices_as_gpus():
    sevenths = {"sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 7}]}
    found = mapped(DEVICE_PLUGIN, sevenths, sevenths, mig_strategy="single")
    assert found.resources == {"nvidia.com/gpu": 14}
    assert found.config["flags"] == {"migStrategy": "single"}


def test_single_counts_equal_parts_of_split_instances():
    halves = {"sharing": "mig", "mig": [{"profile": "2g.20gb", "compute_instances": ["1c.2g.20gb", "1c.2g.20gb"]}]}
    assert mapped(DEVICE_PLUGIN, halves, mig_strategy="single").resources == {"nvidia.com/gpu": 2}


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ((MIG,), "the layout has 3g.40gb and 1g.10gb"),
        ((SPLIT,), "the layout has 2c.3g.40gb and 1c.3g.40gb"),
        (({"sharing": "mig", "mig": [{"profile": "1g.10gb"}]}, EXCLUSIVE), "gpu 1 is without"),
        (({"sharing": "mig", "mig": [{"profile": "1g.10gb"}]}, None), "gpu 1 is without"),
    ],
)
def test_single_needs_equal_mig_devices_on_every_gpu(entries, problem):
    (refused,) = mapped(DEVICE_PLUGIN, *entries, mig_strategy="single").refusals
    assert refused.problem.endswith(problem)
    assert "mixed" in refused.cure


def test_time_slicing_of_all_gpus_multiplies_them():
    found = mapped(DEVICE_PLUGIN, SLICED, SLICED)
    assert found.resources == {"nvidia.com/gpu": 8}
    assert found.config["sharing"] == {
        "timeSlicing": {"failRequestsGreaterThanOne": True, "resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}
    }
    assert found.config["flags"] == {"migStrategy": "none"}


def test_time_slicing_does_not_affect_gpus_with_mig():
    found = mapped(DEVICE_PLUGIN, SLICED, MIG)
    assert found.resources == {"nvidia.com/gpu": 4, "nvidia.com/mig-3g.40gb": 1, "nvidia.com/mig-1g.10gb": 2}
    assert found.config["sharing"]["timeSlicing"]["resources"] == [{"name": "nvidia.com/gpu", "replicas": 4}]


def test_one_replica_is_no_sharing():
    once = {"sharing": "time_slicing", "time_slicing": {"slice": "long"}}
    found = mapped(DEVICE_PLUGIN, once, EXCLUSIVE)
    assert (found.resources, "sharing" in found.config) == ({"nvidia.com/gpu": 2}, False)


@pytest.mark.parametrize(
    "other", [EXCLUSIVE, SHARED, None, {"sharing": "time_slicing", "time_slicing": {"slice": "long"}}]
)
def test_time_slicing_is_for_all_gpus_without_mig(other):
    (refused,) = mapped(DEVICE_PLUGIN, SLICED, other).refusals
    assert (refused.where, refused.gpus) == ("gpu_layout[0]", (0,))
    assert refused.problem.endswith("gpu 1 has another sharing")


def test_two_numbers_of_replicas_are_refused():
    twice = {"sharing": "time_slicing", "time_slicing": {"slice": "long", "replicas": 2}}
    found = mapped(DEVICE_PLUGIN, SLICED, twice)
    assert [each.where for each in found.refusals] == ["gpu_layout[0]", "gpu_layout[1]"]


def test_mps_of_all_gpus_multiplies_them():
    second = dict(MPS, mps=dict(DAEMON, name="other"))
    found = mapped(DEVICE_PLUGIN, MPS, second)
    assert found.resources == {"nvidia.com/gpu": 8}
    assert found.config["flags"] == {"migStrategy": "none", "mpsRoot": "/run/nvidia/mps"}
    assert found.config["sharing"]["mps"]["resources"] == [{"name": "nvidia.com/gpu", "replicas": 4}]
    assert any("its own MPS daemon" in note for note in found.notes)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"clients": 1, "active_thread_percentage": 100}, "between at least 2 pods"),
        ({"active_thread_percentage": 20}, "gives each of 4 clients 25 percent of the SMs, not 20"),
        (
            {"active_thread_percentage": 50, "oversubscribe": True},
            "gives each of 4 clients 25 percent of the SMs, not 50",
        ),
        ({"pinned_memory_limit": "18GiB"}, "an equal share of the memory"),
    ],
)
def test_mps_divides_evenly(change, problem):
    (refused,) = mapped(DEVICE_PLUGIN, dict(MPS, mps=dict(DAEMON, **change))).refusals
    assert problem in refused.problem
    assert [name for name in refused.backends if name in EXACT] == [DRA]


def test_third_of_the_sms_is_rounded_down_like_the_plugin():
    thirds = dict(MPS, mps={"name": "a", "clients": 3, "active_thread_percentage": 33})
    assert mapped(DEVICE_PLUGIN, thirds).resources == {"nvidia.com/gpu": 3}


@pytest.mark.parametrize("other", [EXCLUSIVE, SLICED, MIG, None])
def test_mps_is_for_the_whole_node(other):
    refused = [each for each in mapped(DEVICE_PLUGIN, MPS, other).refusals if each.where == "gpu_layout[0]"]
    assert len(refused) == 1


def seen(gpu, *instances):
    """Return the GPU in MIG mode with these instances.

    An instance is a profile, and the slices of its compute instances.
    """
    found = tuple(
        GpuInstance(
            number,
            profile,
            Placement(0, 1),
            tuple(ComputeInstance(n, s, Placement(0, s)) for n, s in enumerate(slices)),
        )
        for number, (profile, slices) in enumerate(instances)
    )
    return dataclasses.replace(gpu, mig=dataclasses.replace(gpu.mig, enabled=True, pending=True, instances=found))


def test_gpu_without_an_entry_is_offered_as_detected():
    node = [seen(gpus(1)[0], ("2g.20gb", [2])), *gpus(2)[1:]]
    found = offer_node(layout(None, EXCLUSIVE), node, DEVICE_PLUGIN)
    assert found.resources == {"nvidia.com/gpu": 1, "nvidia.com/mig-2g.20gb": 1}


@pytest.mark.parametrize("instances", [[], [("3g.40gb", [2, 1])], [("3g.40gb", [])]])
def test_gpu_without_an_entry_can_crash_the_plugin(instances):
    node = [gpus(1)[0], seen(gpus(2)[1], *instances)]
    (refused,) = offer_node(layout(EXCLUSIVE), node, DEVICE_PLUGIN).refusals
    assert str(refused).startswith("gpu 1 (without an entry): ")


def test_instances_of_an_unknown_model_are_distinguished():
    unknown = dataclasses.replace(gpus(1)[0], mig=Mig(capable=True))
    found = offer_node(layout(), [seen(unknown, ("3g.40gb", [3]))], DEVICE_PLUGIN)
    assert found.resources == {"nvidia.com/mig-3g.40gb": 1}


def test_a_configuration_is_named_by_its_content():
    config = mapped(DEVICE_PLUGIN, SLICED).config
    assert config_name(dict(reversed(list(config.items())))) == config_name(config)
    others = [mapped(DEVICE_PLUGIN, entry).config for entry in (EXCLUSIVE, MIG, MPS)]
    names = {config_name(each) for each in (config, *others)}
    assert len(names) == 4
    # The name becomes a key of a ConfigMap and the value of a label.
    assert all(re.fullmatch(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,61}[A-Za-z0-9]", name) for name in names)


def test_node_label_is_the_name_of_its_configuration():
    found = mapped(DEVICE_PLUGIN, MIG)
    assert found.labels["nvidia.com/device-plugin.config"] == config_name(found.config)


# -- NVIDIA's DRA driver --


def parameters(request):
    (config,) = request.claim["devices"]["config"]
    return config["opaque"]["parameters"]


def selector(request):
    (wanted,) = request.claim["devices"]["requests"]
    return wanted["exactly"]["selectors"][0]["cel"]["expression"]


def test_dra_publishes_a_mixed_layout():
    found = mapped(DRA, EXCLUSIVE, MIG, MPS, SLICED)
    assert found.resources == {"gpu.nvidia.com": 3, "mig.nvidia.com/3g.40gb": 1, "mig.nvidia.com/1g.10gb": 2}
    assert found.config == {"featureGates": {"DynamicMIG": False, "MPSSupport": True, "TimeSlicingSettings": True}}


def test_dra_needs_no_gate_without_sharing():
    once = {"sharing": "time_slicing", "time_slicing": {"slice": "default", "replicas": 4}}
    found = mapped(DRA, EXCLUSIVE, MIG, once)
    assert found.config == {"featureGates": {"DynamicMIG": False}}


def test_a_claim_selects_the_gpus_of_its_entry():
    claims = {each.where: each for each in mapped(DRA, EXCLUSIVE, SLICED).requests}
    assert selector(claims["gpu_layout[1]"]) == "device.attributes['gpu.nvidia.com'].uuid in ['%s']" % UUIDS[1]
    assert "config" not in claims["gpu_layout[0]"].claim["devices"]


@pytest.mark.parametrize(("word", "interval"), [("short", "Short"), ("medium", "Medium"), ("long", "Long")])
def test_claim_has_the_length_of_the_slice(word, interval):
    (request,) = mapped(DRA, {"sharing": "time_slicing", "time_slicing": {"slice": word}}).requests
    assert parameters(request) == {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "GpuConfig",
        "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}},
    }


def test_a_claim_has_the_limits_of_mps():
    (request,) = mapped(DRA, dict(MPS, mps=dict(DAEMON, pinned_memory_limit="18GiB"))).requests
    assert parameters(request)["sharing"] == {
        "strategy": "MPS",
        "mpsConfig": {"defaultActiveThreadPercentage": 25, "defaultPinnedDeviceMemoryLimit": "18432Mi"},
    }


def test_a_claim_for_mps_inside_an_instance():
    (request,) = mapped(DRA, MPS_INSIDE).requests
    assert parameters(request)["kind"] == "MigDeviceConfig"
    assert selector(request) == (
        "device.attributes['gpu.nvidia.com'].profile == '3g.40gb' && "
        "device.attributes['gpu.nvidia.com'].parentUUID in ['%s']" % UUIDS[0]
    )


def test_templates_are_named_by_node_sharing_gpus_and_profile():
    entries = [dict(entry, gpus=[number]) for number, entry in enumerate((EXCLUSIVE, MIG, MPS, MPS_INSIDE))]
    found = offer_node(layout(*entries), gpus(4), DRA, "node-a")
    assert [request.template for request in found.requests] == [
        "node-a-exclusive-0",
        "node-a-mig-1-3g.40gb",
        "node-a-mig-1-1g.10gb",
        "node-a-mps-2",
        "node-a-mig-3-3g.40gb-mps",
    ]
    # Without UUIDs, a claim could also get GPUs of other entries, so there is no template.
    unknown = offer_node(layout(EXCLUSIVE), H100[:1], DRA, "node-a")
    assert [request.template for request in unknown.requests] == [""]


def test_current_devices_of_the_host_have_their_resource():
    divided = seen(gpus(1)[0], ("3g.40gb", [3]))
    (instance,) = divided.mig.instances
    parts = (dataclasses.replace(instance.compute_instances[0], mig_uuid="MIG-1"),)
    mig = dataclasses.replace(divided.mig, instances=(dataclasses.replace(instance, compute_instances=parts),))
    found = offer_node(layout(MIG), [dataclasses.replace(divided, mig=mig)], DRA, "node-a")
    assert found.devices == {"MIG-1": "mig.nvidia.com/3g.40gb"}
    found = offer_node(layout(MIG), gpus(2), DRA, "node-a")
    assert found.devices == {UUIDS[0]: "gpu.nvidia.com", UUIDS[1]: "gpu.nvidia.com"}


def test_claims_for_gpus_without_uuids_select_none_with_a_note():
    found = offer_node(layout(EXCLUSIVE), H100[:1], DRA)
    assert "selectors" not in found.requests[0].claim["devices"]["requests"][0]["exactly"]
    assert any("UUIDs" in note for note in found.notes)


# -- HAMi, and Volcano's vGPU plugin --


def test_hami_shares_shared_gpus_and_filters_others():
    found = mapped(HAMI, EXCLUSIVE, MIG, SHARED, SLICED)
    assert found.resources == {"nvidia.com/gpu": 8}
    assert found.config == {
        "nodeconfig": [
            {
                "name": "h100-01",
                "operatingmode": "hami-core",
                "devicesplitcount": 4,
                "devicememoryscaling": 1.0,
                "devicecorescaling": 1.0,
                "migstrategy": "none",
                "filterdevices": {"uuid": [UUIDS[0], UUIDS[1]], "index": []},
            }
        ]
    }
    assert found.labels["gpu"] == "on"
    assert [(each.where, each.gpus) for each in found.left_out] == [("gpu_layout[0]", (0,)), ("gpu_layout[1]", (1,))]


@pytest.mark.parametrize("backend", [HAMI, VOLCANO])
def test_gpu_without_an_entry_is_not_shared(backend):
    found = mapped(backend, SHARED, None)
    assert found.config["nodeconfig"][0]["filterdevices"]["uuid"] == [UUIDS[1]]
    assert [str(each) for each in found.left_out] == ["gpu 1 is not offered: it has no entry."]


def test_gpus_without_uuids_are_filtered_by_index():
    found = offer_node(layout(SHARED, EXCLUSIVE), H100[:2], HAMI)
    assert found.config["nodeconfig"][0]["filterdevices"] == {"uuid": [], "index": [1]}


def test_a_node_without_gpus_to_share_has_no_configuration():
    found = mapped(VOLCANO, EXCLUSIVE)
    assert (found.resources, found.config, found.labels) == (
        {},
        {},
        {"nvidia.com/gpu.deploy.mig-manager": "false", "nvidia.com/mig.config": "managed-by-openfleet-gpu"},
    )


def test_an_entry_of_hami_filters_all_gpus_of_a_node_without_gpus_to_share():
    found = mapped(HAMI, EXCLUSIVE)
    assert found.config["nodeconfig"][0]["filterdevices"]["uuid"] == [UUIDS[0]]
    assert (found.resources, "gpu" in found.labels) == ({}, False)


def test_tenant_is_a_request_of_a_pod():
    (request, _other) = mapped(HAMI, TENANTS).requests
    assert (request.where, request.name) == ("gpu_layout[0]", "a")
    assert request.limits == {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192, "nvidia.com/gpucores": 30}
    assert request.environment == {"GPU_CORE_UTILIZATION_POLICY": "force"}
    assert request.annotations == {}


def test_a_tenant_of_volcano():
    (request, _other) = mapped(VOLCANO, TENANTS).requests
    assert request.limits == {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 8192, "volcano.sh/vgpu-cores": 30}


def test_a_pinned_tenant_of_hami_names_its_gpu():
    (request,) = mapped(HAMI, vgpu(tenant={"gpu": 0})).requests
    assert request.annotations == {"nvidia.com/use-gpuuuid": UUIDS[0]}
    found = offer_node(layout(vgpu(tenant={"gpu": 0})), H100[:1], HAMI)
    assert found.requests[0].annotations == {}
    assert any("not pinned" in note for note in found.notes)


def test_priorities_of_hami():
    low = {"name": "b", "memory": "8GiB", "sm_percent": 30, "priority": 1}
    entry = vgpu()
    entry["vgpu"]["tenants"].append(low)
    assert [each.limits["nvidia.com/priority"] for each in mapped(HAMI, entry).requests] == [0, 1]


def test_the_policy_contended_is_hamis_default():
    (request,) = mapped(HAMI, vgpu(policy="contended")).requests
    assert request.environment == {"GPU_CORE_UTILIZATION_POLICY": "default"}


@pytest.mark.parametrize(
    ("entry", "by_hami", "by_volcano"),
    [
        (vgpu(policy="burst"), "policy burst", "policy burst"),
        (vgpu(provider="mps"), "provider: mps", "provider: mps"),
        (vgpu(provider="dmem"), "provider: dmem", "provider: dmem"),
        (vgpu(tenant={"group": "researchers"}), "Unix group of tenant a", "Unix group of tenant a"),
        (vgpu(tenant={"was": "b"}), "earlier name (was) of tenant a", "earlier name (was) of tenant a"),
        (vgpu(tenant={"oversubscribe_managed": True}), "managed memory beyond", "managed memory beyond"),
        (vgpu(tenant={"priority": 2}), "only the priorities 0 and 1", "does not support priorities"),
        (vgpu(tenant={"priority": 1}), None, "does not support priorities"),
        (vgpu(tenant={"gpu": 0}), None, "cannot pin a tenant"),
    ],
)
def test_inexpressible_tenants(entry, by_hami, by_volcano):
    for backend, problem in ((HAMI, by_hami), (VOLCANO, by_volcano)):
        problems = [each.problem for each in mapped(backend, entry).refusals]
        assert len(problems) == (problem is not None)
        assert all(problem in each for each in problems)


def test_volcano_counts_memory_and_cores_as_resources():
    found = mapped(VOLCANO, TENANTS, EXCLUSIVE, SHARED)
    total_mib = H100[0].memory_total_bytes // (1 << 20)
    assert found.resources == {
        "volcano.sh/vgpu-number": 20,
        "volcano.sh/vgpu-memory": 2 * total_mib,
        "volcano.sh/vgpu-cores": 200,
    }


@pytest.mark.parametrize("backend", [HAMI, VOLCANO])
def test_oversubscription_is_per_node(backend):
    more = vgpu(oversubscribe={"memory": 1.5, "sm": 2.0})
    (node,) = mapped(backend, more, EXCLUSIVE).config["nodeconfig"]
    assert (node["devicememoryscaling"], node["devicecorescaling"]) == (1.5, 2.0)
    (refused,) = mapped(backend, more, SHARED).refusals
    assert (refused.where, "one oversubscription" in refused.problem) == ("gpu_layout[0]", True)


def test_oversubscription_scales_volcanos_resources():
    found = mapped(VOLCANO, vgpu(oversubscribe={"memory": 2.0, "sm": 1.5}))
    assert found.resources["volcano.sh/vgpu-cores"] == 150
    assert found.resources["volcano.sh/vgpu-memory"] == 2 * (H100[0].memory_total_bytes // (1 << 20))


def test_node_has_one_pod_count_for_all_gpus():
    many = {
        "sharing": "vgpu",
        "vgpu": {"tenants": [{"name": "t%d" % n, "memory": "1GiB", "sm_percent": 5} for n in range(12)]},
    }
    assert mapped(HAMI, many).config["nodeconfig"][0]["devicesplitcount"] == 12
    assert mapped(HAMI, TENANTS).config["nodeconfig"][0]["devicesplitcount"] == 10
    (refused,) = mapped(HAMI, many, SLICED).refusals
    assert refused.where == "gpu_layout[1]"
    twice = {"sharing": "time_slicing", "time_slicing": {"slice": "long", "replicas": 2}}
    assert [each.where for each in mapped(HAMI, SLICED, twice).refusals] == ["gpu_layout[0]", "gpu_layout[1]"]
