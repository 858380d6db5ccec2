# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute the GRES of a layout, and refuse entries that Slurm cannot express."""

from __future__ import annotations

import dataclasses
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.openfleet.gpu.plugins.module_utils.catalogue import load_models
from ansible_collections.openfleet.gpu.plugins.module_utils.model import ComputeInstance, GpuInstance, Placement
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.slurm.conf import lines_of as lines_in
from ansible_collections.openfleet.gpu.plugins.module_utils.slurm.mig_devices import DeviceNodes
from ansible_collections.openfleet.gpu.plugins.module_utils.slurm.node import gres_conf
from ansible_collections.openfleet.gpu.plugins.module_utils.slurm.task_slots import slots
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import SHARINGS, parse_layout
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.model import Node
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.node import node_gpus
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.offers import offer_node
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.slurm.devices import desired, gpu_types
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.slurm.gres import (
    Gres,
    GresError,
    joined,
    parse,
    totals,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.slurm.gres_conf import (
    GresConfError,
    lines,
    uuids,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.slurm.record import record

H100 = assumed_gpus(["H100-80GB"] * 8)
NEW, OLD = (24, 11, 5), (22, 5, 8)

EXCLUSIVE, SHARED = {"sharing": "exclusive"}, {"sharing": "shared"}
MIG = {"sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}
SEVENTHS = {"sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 7}]}
MEDIA = {"sharing": "mig", "mig": [{"profile": "1g.10gb+me"}]}
SPLIT = {"sharing": "mig", "mig": [{"profile": "3g.40gb", "compute_instances": ["1c.3g.40gb", "2c.3g.40gb"]}]}
NO_INSTANCES = {"sharing": "mig", "mig": []}
DAEMON = {"name": "inference", "clients": 4, "active_thread_percentage": 25}
MPS = {"sharing": "mps", "mps": DAEMON}
MPS_INSIDE = {"sharing": "mig", "mig": [{"profile": "3g.40gb", "mps": dict(DAEMON, name="inside")}]}
SLICED = {"sharing": "time_slicing", "time_slicing": {"slice": "long", "replicas": 4}}
ONE_REPLICA = {"sharing": "time_slicing", "time_slicing": {"slice": "long", "replicas": 1}}
TENANTS = {"sharing": "vgpu", "vgpu": {"tenants": [{"name": "a", "memory": "8GiB", "sm_percent": 30}]}}
BY_SLURM = {"by": "slurm", "most": {"sm_percent": 50}, "unit": {"memory": "8GiB", "sm_percent": 10}}
LEASED = {"sharing": "vgpu", "vgpu": {"policy": "fixed"}, "leases": BY_SLURM}
ENTRIES = [
    None, EXCLUSIVE, SHARED, MIG, SEVENTHS, MEDIA, SPLIT, NO_INSTANCES, MPS, MPS_INSIDE, SLICED, ONE_REPLICA, TENANTS, LEASED,
]  # fmt: skip
REFUSED_ALONE = [TENANTS]
PARTITIONED = [MIG, SEVENTHS, MEDIA, SPLIT, NO_INSTANCES, MPS_INSIDE]


def layout(*entries):
    """Return a layout in which the first entry is for GPU 0, and so on.

    If an entry is None, the layout leaves out the GPU.
    """
    return parse_layout([dict(entry, gpus=[index]) for index, entry in enumerate(entries) if entry])


def gpus(number):
    """Return GPUs that have UUIDs, as a driver reports them."""
    return [dataclasses.replace(gpu, uuid="GPU-%08x" % gpu.index) for gpu in H100[:number]]


def offered(*entries, version=NEW):
    return offer_node(layout(*entries), gpus(len(entries)), "slurm", "h100-01", version=version)


def with_instances(gpu, *instances):
    """Return the GPU in MIG mode with instances.

    An instance is (id, profile, start, compute slices of its parts).
    """
    made = []
    for number, profile, start, *slices in instances:
        parts = slices or [int(profile[0])]
        computes = [
            ComputeInstance(place, size, Placement(place, size), "MIG-%d-%d-%d" % (gpu.index, number, place))
            for place, size in enumerate(parts)
        ]
        made.append(GpuInstance(number, profile, Placement(start, 1), tuple(computes)))
    return gpu.with_instances(tuple(made), True)


# -- One GPU of each kind --


@pytest.mark.parametrize(
    ("entry", "gres"),
    [
        (None, "gpu:h100:1"),
        (EXCLUSIVE, "gpu:h100:1"),
        (SHARED, "gpu:h100:1"),
        (MIG, "gpu:3g.40gb:2"),
        (SEVENTHS, "gpu:1g.10gb:7"),
        (MEDIA, "gpu:1g.10gb.me:1"),
        (SPLIT, "gpu:2c.3g.40gb:1,gpu:1c.3g.40gb:1"),
        (MPS, "gpu:h100_mps:1,mps:100"),
        (MPS_INSIDE, "gpu:3g.40gb:1"),
        (SLICED, "gpu:h100:1,shard:4"),
        (ONE_REPLICA, "gpu:h100:1"),
        # 80 GB have room for nine units of 8 GiB.
        (LEASED, "quota:9"),
    ],
)
def test_gres_of_one_gpu(entry, gres):
    assert offered(entry).config["Gres"] == gres


def test_each_sharing_has_a_case():
    assert {entry["sharing"] for entry in ENTRIES if entry} == set(SHARINGS)


def test_split_gpu_beside_seven_whole_ones():
    found = offered(MIG, *[EXCLUSIVE] * 7)
    assert found.config == {
        "Gres": "gpu:3g.40gb:2,gpu:h100:7",
        "GresTypes": ["gpu"],
        "AccountingStorageTRES": ["gres/gpu", "gres/gpu:3g.40gb", "gres/gpu:h100"],
    }
    assert found.resources == {"gpu:3g.40gb": 2, "gpu:h100": 7}


def test_types_of_several_gpus_are_counted_together():
    mixed = {"sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 2}, {"profile": "3g.40gb"}]}
    assert offered(EXCLUSIVE, mixed, mixed, EXCLUSIVE).config["Gres"] == "gpu:h100:2,gpu:3g.40gb:2,gpu:1g.10gb:4"


def test_shards_of_gpus_are_added_up():
    two = {"sharing": "time_slicing", "time_slicing": {"slice": "long", "replicas": 2}}
    assert offered(SLICED, two, EXCLUSIVE).config["Gres"] == "gpu:h100:3,shard:6"
    assert offered(SLICED).config["GresTypes"] == ["gpu", "shard"]


def test_node_without_devices_has_no_gres():
    found = offered(NO_INSTANCES)
    assert (found.resources, found.config, found.refusals) == ({}, {}, ())
    assert found.notes == ("gpu 0 has no MIG instance, so Slurm cannot allocate it.",)


def test_job_of_an_mps_client_requests_its_share():
    (request,) = offered(MPS).requests
    assert (request.where, request.name, request.limits) == ("gpu_layout[0]", "inference", {"mps": 25})


def test_notes_name_the_gpus():
    notes = " ".join(offered(MPS_INSIDE, None).notes)
    assert "gpu 0: Slurm gives an instance with MPS to one job." in notes
    assert "No entry lists gpu 1" in notes


# -- Types --


def test_type_of_each_model_is_a_part_of_its_detected_name():
    # AutoDetect=nvml accepts a type only if the GPU's name contains it. slurmd replaces the spaces of the name by
    # underscores.
    for model in load_models().values():
        for board in model.boards:
            (gpu,) = gpus(1)
            (kind,) = gpu_types([dataclasses.replace(gpu, name=board.name)]).values()
            assert re.fullmatch(r"[a-z0-9._-]+", kind), board.name
            assert kind in board.name.lower().replace(" ", "_"), board.name


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx_pro_6000"),
        ("NVIDIA GeForce RTX 4090", "rtx_4090"),
        ("NVIDIA Thor", "thor"),
    ],
)
def test_short_name_of_a_model(name, kind):
    (gpu,) = gpus(1)
    assert list(gpu_types([dataclasses.replace(gpu, name=name)]).values()) == [kind]


def test_two_models_with_the_same_short_name_have_full_names():
    names = ["NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"]
    host = [dataclasses.replace(gpu, name=name) for gpu, name in zip(gpus(3), names)]
    assert list(gpu_types(host).values()) == ["a100-sxm4-40gb", "a100-sxm4-80gb", "h100"]


# -- Refusals --

#: The tests list the exact answers of these backends.
EXACT = ("nvidia_device_plugin", "nvidia_dra", "hami", "volcano_vgpu")


@pytest.mark.parametrize(
    ("entries", "where", "problem", "backends"),
    [
        ([EXCLUSIVE, TENANTS], "gpu_layout[1]", "Slurm does not support tenants with quotas", ("hami", "volcano_vgpu")),
        (
            [MIG, MPS],
            "gpu_layout[1]",
            "Slurm has no gres/mps on a node with MIG, and gpu 0 is in MIG mode",
            ("nvidia_dra",),
        ),
        (
            [MPS, dict(MPS, mps=dict(DAEMON, name="second"))],
            "gpu_layout[0]",
            "Slurm has gres/mps on one GPU of a node, and the layout has it on gpus 0, 1",
            ("nvidia_device_plugin", "nvidia_dra"),
        ),
        (
            [MPS, SLICED],
            "gpu_layout[0]",
            "wrong devices for jobs if gres/mps and gres/shard are used together, and gpu 1 has shards",
            ("nvidia_dra",),
        ),
        (
            [{"sharing": "mps", "mps": dict(DAEMON, clients=3, active_thread_percentage=50, oversubscribe=True)}],
            "gpu_layout[0]",
            "3 clients with 50 percent need more",
            ("nvidia_dra",),
        ),
    ],
)
def test_refusal_names_entry_reason_and_capable_backends(entries, where, problem, backends):
    refused = offered(*entries).refusals[0]
    # Other backends, which are added later, may support this entry too.
    assert (refused.where, tuple(name for name in refused.backends if name in EXACT)) == (where, backends)
    assert problem in refused.problem
    assert str(refused).endswith("%s can express it (gpu_kubernetes_backend)." % " or ".join(refused.backends))


@pytest.mark.parametrize(
    ("version", "is_refused"),
    [(None, True), ((22, 5, 8), True), ((23, 2, 6), True), ((23, 2, 7), False), ((23, 11, 0), False), (NEW, False)],
)
def test_shards_beside_mig_need_a_mended_release(version, is_refused):
    found = offered(MIG, SLICED, version=version)
    assert bool(found.refusals) == is_refused
    if is_refused:
        assert "Slurm before 23.02.7" in str(found.refusals[0])
        assert found.refusals[0].where == "gpu_layout[1]"


def test_shards_without_mig_need_no_version():
    assert not offered(SLICED, version=None).refusals


def test_gpu_without_a_model_is_refused():
    host = [dataclasses.replace(gpu, name="") for gpu in gpus(1)]
    (refused,) = offer_node(layout(EXCLUSIVE), host, "slurm", "n", version=NEW).refusals
    assert "GRES without a type" in refused.problem


@pytest.mark.parametrize("version", [None, OLD, NEW])
def test_layout_is_offered_completely_or_refused(version):
    # Daemons of two entries cannot have the same name.
    equal = [(entry, entry) for entry in ENTRIES if entry not in (MPS, MPS_INSIDE, TENANTS, LEASED)]
    for pair in [*itertools.permutations(ENTRIES, 2), *equal]:
        found = offered(*pair, version=version)
        must_refuse = (
            any(entry in REFUSED_ALONE for entry in pair)
            or (MPS in pair and (SLICED in pair or any(e in PARTITIONED for e in pair)))
            or (SLICED in pair and any(e in PARTITIONED for e in pair) and version != NEW)
            or (LEASED in pair and version == OLD)
        )
        assert bool(found.refusals) == must_refuse, pair
        if found.refusals:
            assert not (found.resources or found.config or found.requests or found.notes), pair
        else:
            gres, _others = parse(found.config.get("Gres", ""), "n")
            assert {each.kind: each.count for each in gres} == found.resources, pair
            # If a GRES name occurs with and without a type on one node, Slurm refuses the node.
            assert all(bool(each.type) == (each.name == "gpu") for each in gres), pair
            assert len({each.kind for each in gres}) == len(gres), pair


@pytest.mark.parametrize(
    ("version", "is_refused"), [((22, 5, 8), True), ((23, 11, 0), True), ((24, 11, 0), False), (None, False)]
)
def test_leases_of_jobs_need_a_release_with_which_they_were_tested(version, is_refused):
    found = offer_node(parse_layout([dict(LEASED, gpus=[0])]), gpus(1), "slurm", version=version)
    assert bool(found.refusals) == is_refused
    if is_refused:
        assert "jobs get leases with Slurm 24.11 or later, and the node runs 2" in found.refusals[0].problem


def test_plan_says_which_jobs_are_online():
    leases = {**LEASED["leases"], "online": ["inference"]}
    entry = dict(LEASED, gpus=[0], vgpu={**LEASED["vgpu"], "policy": "colocate"}, leases=leases)
    found = offer_node(parse_layout([entry]), gpus(1), "slurm", version=NEW)
    assert "Leases of jobs in the partition inference are online, and all others are offline." in found.notes


def test_units_of_an_entry_are_counted_so_that_each_job_fits():
    both = parse_layout([dict(LEASED, gpus=[1, 2]), dict(EXCLUSIVE, gpus=[0])])
    found = offer_node(both, gpus(3), "slurm", version=NEW)
    # Each job has at most five units. One more always fits if the others have at most 2 * (9 - 5) + 1 units.
    assert found.resources == {"gpu:h100": 1, "quota": 14}
    assert found.config["GresTypes"] == ["gpu", "quota"]
    assert "A job can request up to 5. Slurm gets 14 of 18, so that each job fits on a GPU." in " ".join(found.notes)
    assert [(one.where, one.limits) for one in found.requests] == [("gpu_layout[0]", {"quota": 1})]


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ([LEASED, LEASED], "several entries have leases"),
        ([dict(LEASED, vgpu=TENANTS["vgpu"])], "it has fixed tenants beside leases of Slurm"),
        (
            [dict(LEASED, leases=dict(BY_SLURM, unit={"memory": "81GiB", "sm_percent": 10}))],
            "no unit of its leases fits",
        ),
        ([dict(LEASED, leases={"by": "kubernetes"})], "it has leases, and a scheduler would offer the same parts"),
        ([dict(LEASED, leases={"by": "host", "groups": ["ml"]})], "it has leases, and a scheduler would offer"),
    ],
)
def test_leases_that_slurm_cannot_count_are_refused(entries, problem):
    assert problem in str(offered(*entries).refusals[-1])


def test_other_schedulers_refuse_leases_of_slurm():
    for key in EXACT:
        assert "it has leases" in str(offer_node(layout(LEASED), gpus(1), key).refusals[0])


def test_kubernetes_backends_do_not_name_slurm():
    # The variable gpu_kubernetes_backend cannot choose Slurm.
    refused = offer_node(layout(MIG, MPS), gpus(2), "nvidia_device_plugin").refusals[0]
    assert "nvidia_dra" in refused.backends and "slurm" not in refused.backends


# -- GRES as text --


@pytest.mark.parametrize(
    ("text", "gres", "others"),
    [
        ("gpu:h100:8(S:0-1)", [Gres("gpu", "h100", 8)], []),
        ("gpu:3g.40gb:2(S:0),gpu:h100:7,nic:ib:2", [Gres("gpu", "3g.40gb", 2), Gres("gpu", "h100", 7)], ["nic:ib:2"]),
        ("gpu:1c.3g.40gb", [Gres("gpu", "1c.3g.40gb", 1)], []),
        ("gpu:8,shard:32,mps:200", [Gres("gpu", "", 8), Gres("shard", "", 32), Gres("mps", "", 200)], []),
        ("gpu", [Gres("gpu", "", 1)], []),
        ("gpu:rtx_4090:2", [Gres("gpu", "rtx_4090", 2)], []),
        ("gpu:h100:2,shard:h100:4,shard:a100:2,mps:h100:0", [Gres("gpu", "h100", 2), Gres("shard", "", 6)], []),
        ("(null)", [], []),
        ("", [], []),
    ],
)
def test_gres_of_a_node_are_parsed(text, gres, others):
    assert parse(text, "node n") == (tuple(gres), tuple(others))


@pytest.mark.parametrize("text", ["gpu:h100:2K", "gpu:a:b:2"])
def test_gres_without_a_valid_count_is_an_error(text):
    with pytest.raises(GresError, match=r"node n.*NAME\[:TYPE\]\[:COUNT\]"):
        parse(text, "node n")


KINDS = st.text("abcdefghij0123456789._-", min_size=1, max_size=12).filter(lambda kind: not kind[0].isdigit())


GRES = st.builds(Gres, st.just("gpu"), KINDS | st.just(""), st.integers(1, 10**8)) | st.builds(
    Gres, st.sampled_from(["shard", "mps"]), st.just(""), st.integers(1, 10**8)
)


@given(st.lists(GRES, unique_by=lambda each: each.kind))
def test_formatted_gres_are_parsed_to_the_same_values(gres):
    assert parse(joined(gres), "n") == (tuple(gres), ())
    assert sum(totals(gres).values()) == sum(each.count for each in gres)


# -- gres.conf --

NODES = DeviceNodes(
    {"GPU-%08x" % index: index for index in range(8)},
    {
        name: number
        for gpu in range(8)
        for gi in range(15)
        for name, number in [
            ("gpu%d/gi%d/access" % (gpu, gi), 3 + 135 * gpu + 9 * gi),
            *(("gpu%d/gi%d/ci%d/access" % (gpu, gi, ci), 4 + 135 * gpu + 9 * gi + ci) for ci in range(8)),
        ]
    },
)


def node(host, *entries):
    return Node(node_gpus(layout(*entries), host), "h100-01", version=NEW)


def lines_of(host, *entries, nodes=NODES, order=None):
    found = node(host, *entries)
    return lines(found, nodes, desired(found.gpus) if order is None else order)


def test_lines_name_the_current_device_nodes():
    host = gpus(3)
    host[0] = with_instances(host[0], (2, "3g.40gb", 0), (1, "3g.40gb", 4))
    found = lines_of(host, MIG, SLICED, EXCLUSIVE)
    line = "NodeName=h100-01 AutoDetect=off Name="
    caps = "/dev/nvidia-caps/nvidia-cap"
    assert found == [
        line + "gpu Type=3g.40gb MultipleFiles=/dev/nvidia0,%s21,%s22" % (caps, caps),
        line + "gpu Type=3g.40gb MultipleFiles=/dev/nvidia0,%s12,%s13" % (caps, caps),
        line + "gpu Type=h100 File=/dev/nvidia1",
        line + "gpu Type=h100 File=/dev/nvidia2",
        line + "shard File=/dev/nvidia1 Count=4",
    ]
    assert uuids([*desired(node(host, MIG, SLICED, EXCLUSIVE).gpus), None]) == [
        "MIG-0-2-0",
        "MIG-0-1-0",
        "GPU-00000001",
        "GPU-00000002",
        "",
    ]


def test_parts_of_a_split_instance_are_devices():
    host = [with_instances(gpus(1)[0], (1, "3g.40gb", 0, 1, 2))]
    found = [text.partition("Type=")[2] for text in lines_of(host, SPLIT)]
    caps = "/dev/nvidia0,/dev/nvidia-caps/nvidia-cap12,/dev/nvidia-caps/nvidia-cap"
    assert found == ["2c.3g.40gb MultipleFiles=%s14" % caps, "1c.3g.40gb MultipleFiles=%s13" % caps]


def test_mps_is_on_the_gpu_of_its_entry():
    found = lines_of(gpus(2), EXCLUSIVE, MPS)
    assert found[-1].endswith("Name=mps File=/dev/nvidia1 Count=100")


def test_units_of_leases_have_no_device_nodes():
    found = lines_of(gpus(2), EXCLUSIVE, LEASED)
    prefix = "NodeName=h100-01 AutoDetect=off Name="
    assert found == [prefix + "gpu Type=h100 File=/dev/nvidia0", prefix + "quota Count=9 Flags=CountOnly"]


def test_minor_may_differ_from_the_index():
    nodes = DeviceNodes({"GPU-00000000": 1, "GPU-00000001": 0}, NODES.capabilities)
    assert [text.split("=")[-1] for text in lines_of(gpus(2), None, None, nodes=nodes)] == [
        "/dev/nvidia1",
        "/dev/nvidia0",
    ]


@pytest.mark.parametrize(
    ("host", "nodes", "problem"),
    [
        (
            gpus(1),
            NODES,
            r"h100-01: gpu 0 .*GPU-00000000\): its MIG instances differ from the layout. Apply the layout first.",
        ),
        (
            [with_instances(gpus(1)[0], (2, "3g.40gb", 0), (1, "3g.40gb", 4))],
            DeviceNodes(NODES.minors, {}),
            "no capability gpu0/gi2/access",
        ),
        (
            [with_instances(gpus(1)[0], (2, "3g.40gb", 0), (1, "3g.40gb", 4))],
            DeviceNodes({}, NODES.capabilities),
            "no device node of the GPU",
        ),
    ],
)
def test_missing_device_is_an_error(host, nodes, problem):
    with pytest.raises(GresConfError, match=problem):
        lines_of(host, MIG, nodes=nodes)


def test_pads_use_device_nodes_that_no_job_needs():
    whole = desired(node(gpus(2), None, None).gpus)
    nodes = DeviceNodes(NODES.minors, {"config": 1, "monitor": 2})
    found = [
        text.partition("Type=")[2]
        for text in lines_of(gpus(2), None, None, nodes=nodes, order=[None, *whole, None, None])
    ]
    files = "MultipleFiles=/dev/nvidia-caps/nvidia-cap1,/dev/nvidia-caps/nvidia-cap2"
    assert found == [
        "pad %s" % files, "h100 File=/dev/nvidia0", "h100 File=/dev/nvidia1", "pad2 %s" % files, "pad2 %s" % files,
    ]  # fmt: skip
    with pytest.raises(GresConfError, match="no capabilities config and monitor, which pads need"):
        lines_of(gpus(2), None, None, order=[*whole, None])


# -- The devices in the current gres.conf --


def recorded(host, found, gres, nodes=None):
    nodes = nodes or NODES
    return record(found, "h100-01", parse(gres, "n")[0], host, nodes)


def test_current_devices_are_read_from_gres_conf():
    host = [with_instances(gpus(1)[0], (2, "3g.40gb", 0), (1, "3g.40gb", 4)), *gpus(3)[1:]]
    found = lines_of(host, MIG, None, None)
    names = (("3g.40gb", "MIG-0-2-0"), ("3g.40gb", "MIG-0-1-0"), ("h100", "GPU-00000001"), ("h100", "GPU-00000002"))
    assert recorded(host, found, "gpu:3g.40gb:2,gpu:h100:2") == names
    assert recorded(host, found[::-1], "gpu:h100:2(S:0),gpu:3g.40gb:2") == (names[3], names[2], names[1], names[0])


def test_device_that_is_gone_has_no_uuid():
    host = [with_instances(gpus(1)[0], (2, "3g.40gb", 0), (1, "3g.40gb", 4))]
    found = lines_of(host, MIG)
    now = [with_instances(gpus(1)[0], (1, "3g.40gb", 4))]
    assert recorded(now, found, "gpu:3g.40gb:2") == (("3g.40gb", ""), ("3g.40gb", "MIG-0-1-0"))


@pytest.mark.parametrize(
    ("found", "uuids_found"),
    [
        (
            ["NodeName=h100-01 AutoDetect=off Name=gpu Type=h100 File=/dev/nvidia[1,0]"],
            ["GPU-00000001", "GPU-00000000"],
        ),
        (["name=gpu type=h100 file=/dev/nvidia0,/dev/nvidia1"], ["GPU-00000000", "GPU-00000001"]),
        (
            ["AutoDetect=nvml", "NodeName=h100-01 AutoDetect=off Name=gpu Type=h100 File=/dev/nvidia[0-1]"],
            ["GPU-00000000", "GPU-00000001"],
        ),
        (["Name=gpu Type=h100 File=/dev/nvidia0", "Name=gpu Type=h100 File=/dev/null"], ["GPU-00000000", ""]),
        # With these lines, Slurm itself must find the devices, or the lines differ from the GRES of the node.
        (["AutoDetect=nvml", "Name=gpu Type=h100 File=/dev/nvidia[0-1]"], []),
        (["Name=gpu Type=h100 Count=2"], []),
        (["Name=gpu Type=h100 File=/dev/nvidia0"], []),
        (["Name=gpu Type=a100 File=/dev/nvidia[0-1]"], []),
        ([], []),
    ],
)
def test_lines_of_an_administrator_are_read(found, uuids_found):
    assert [uuid for _kind, uuid in recorded(gpus(2), found, "gpu:h100:2")] == uuids_found


@pytest.mark.parametrize(
    "text",
    [
        "Name=gpu Type=h100 File=/dev/nvidia0,/dev/nvidia[1-2]",
        "Name=gpu Type=h100 \\\n  File=/dev/nvidia0,\\\n/dev/nvidia[1-2]",
        "NodeName = h100-[01-02] Name = gpu Type = h100 File = /dev/nvidia[0-2]",
        'nodename="h100-01" NAME="gpu" type="h100" FILE="/dev/nvidia[0-2]" # File=/dev/nvidia9',
        "NodeName=other Name=gpu File=/dev/nvidia9\nAutoDetect=off\nName=gpu Type=h100 File=/dev/nvidia[0-2] Count=3",
        "Name=gpu Type=h100 File=/dev/nvidia[0-1]\nName=gpu Type=h100 MultipleFiles=/dev/nvidia[2]",
    ],
)
def test_all_readers_of_gres_conf_number_the_devices_alike(tmp_path, text):
    (tmp_path / "gres.conf").write_text("Include more.conf\n")
    (tmp_path / "more.conf").write_text(text + "\n")
    found = gres_conf(tmp_path, "h100-01")
    expected = ["GPU-%08d" % number for number in range(3)]
    assert [uuid for _kind, uuid in recorded(gpus(3), found, "gpu:h100:3")] == expected
    minors = {uuid: number for number, uuid in enumerate(expected)}
    assert [slot["gpu"] for slot in slots(found, "h100-01", ["h100"], minors)] == expected
    assert [path for line in lines_in("", text) if line.is_for("h100-01") for (path,) in line.devices] == [
        "/dev/nvidia%d" % number for number in range(3)
    ]


@given(st.lists(st.sampled_from([EXCLUSIVE, MIG, SEVENTHS, SPLIT, SLICED]), min_size=1, max_size=8))
def test_lines_and_node_agree(entries):
    """Compare gres.conf with the node's line.

    If these differ, slurmd ends or drains the node.
    """
    made = {
        id(MIG): [(2, "3g.40gb", 0), (1, "3g.40gb", 4)],
        id(SEVENTHS): [(number + 7, "1g.10gb", number) for number in range(7)],
        id(SPLIT): [(1, "3g.40gb", 0, 1, 2)],
    }
    host = [
        with_instances(gpu, *made[id(entry)]) if id(entry) in made else gpu
        for gpu, entry in zip(gpus(len(entries)), entries)
    ]
    found = lines_of(host, *entries)
    gres, _others = parse(offer_node(layout(*entries), host, "slurm", version=NEW).config["Gres"], "n")
    types = re.findall(r"Name=gpu Type=(\S+)", "\n".join(found))
    counted = [Gres("gpu", kind, types.count(kind)) for kind in dict.fromkeys(types)]
    # Device numbers follow the order of the node's types, so gres.conf must have the same order.
    assert counted == [each for each in gres if each.name == "gpu"]
    assert types == [each.type for each in counted for _number in range(each.count)]
    shards = sum(map(int, re.findall(r"Name=shard File=\S+ Count=(\d+)", "\n".join(found))))
    assert shards == sum(each.count for each in gres if each.name == "shard")
    devices = uuids(desired(node(host, *entries).gpus))
    assert [uuid for _kind, uuid in recorded(host, found, joined(gres))] == devices
    assert len(devices) == len(set(devices)) == len(types)
