# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the filter slurm_mapping. Compare it with the table in the role's README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.filter.slurm_mapping import slurm_mapping
from tests.audit.rightsize_hosts import gpu, state

pytestmark = pytest.mark.core

README = Path(__file__).parents[3] / "roles" / "gpu_slurm" / "README.md"
MIG = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}]
SLICED = [{"gpus": [1], "sharing": "time_slicing", "time_slicing": {"slice": "long", "replicas": 4}}]
EMPTY = {"resources": {}, "config": {}, "gres": "", "gres_conf": [], "devices": [], "change": {}, "plan": []}


def node(gres="gpu:h100:8", jobs=(), **more):
    """Return a result of slurm_info."""
    return {
        "node": "h100-01", "version": "24.11.5", "node_version": "24.11.5", "gres": gres, "gres_types": "gpu",
        "jobs": [{"id": name, "user": "alice", "gres": given} for name, given in jobs], "minors": [], "capabilities": [], **more,
    }  # fmt: skip


def held(*numbers, name="gpu"):
    return [{"name": name, "count": len(numbers), "numbers": list(numbers)}]


def host(count=8, instances=()):
    return state(gpu("a", 0, "H100-80GB", instances=instances), *(gpu("a", n, "H100-80GB") for n in range(1, count)))


def test_plan_line_of_the_readme():
    shown = re.search(r"^   (node h100-01: .*)$", README.read_text(encoding="utf-8"), re.MULTILINE).group(1)
    jobs = [("4711", held(3)), ("4720", held(7))]
    found = slurm_mapping(MIG, slurm=node(jobs=jobs), state=host(), node="h100-01")
    assert (found["problems"], found["plan"][0]) == ([], shown)
    assert found["change"] == {"way": "all jobs", "jobs": ["4711", "4720"], "restart": False}
    assert found["gres_conf"] == found["devices"] == []


def test_the_answer_is_plain_data():
    found = slurm_mapping(MIG, slurm=node(), state=host())
    assert yaml.safe_load(yaml.safe_dump(found)) == found


def test_applied_layout_has_lines_and_devices():
    made = [(1, "3g.40gb", 4, None), (2, "3g.40gb", 0, None)]
    minors = [{"uuid": "GPU-a-%d" % number, "minor": number} for number in range(2)]
    capabilities = [
        {"name": "gpu0/gi%d/%saccess" % (gi, part), "number": number}
        for gi, part, number in [(1, "", 12), (1, "ci0/", 13), (2, "", 21), (2, "ci0/", 22)]
    ]
    slurm = node("gpu:3g.40gb:2,gpu:h100:1,nic:2", minors=minors, capabilities=capabilities)
    found = slurm_mapping(MIG, slurm=slurm, state=host(2, made))
    assert found["problems"] == []
    assert found["devices"] == ["MIG-GPU-a-0-2", "MIG-GPU-a-0-1", "GPU-a-1"]
    assert [line.partition(" Type=")[2] for line in found["gres_conf"]] == [
        "3g.40gb MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21,/dev/nvidia-caps/nvidia-cap22",
        "3g.40gb MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap12,/dev/nvidia-caps/nvidia-cap13",
        "h100 File=/dev/nvidia1",
    ]
    assert found["gres"] == "gpu:3g.40gb:2,gpu:h100:1,nic:2"
    assert found["change"]["way"] == "nothing"
    assert found["plan"][0] == "node h100-01: gres gpu:3g.40gb:2,gpu:h100:1 (no change)"
    without = slurm_mapping(MIG, slurm={**slurm, "capabilities": []}, state=host(2, made))
    assert (without["problems"], without["gres_conf"], without["devices"]) == ([], [], [])
    assert "no capability gpu0/gi2/access" in without["plan"][1]


def busy_node(**more):
    """Return a host with two 3g.40gb on GPU 0. Jobs use one of them, and GPU 1."""
    minors = [{"uuid": "GPU-a-%d" % number, "minor": number} for number in range(2)]
    names = [("config", 1), ("monitor", 2)]
    names += [("gpu0/gi%d/%saccess" % (gi, part), 10 * gi + len(part)) for gi in (1, 2, 3) for part in ("", "ci0/")]
    files = ["nvidia0,/dev/nvidia-caps/nvidia-cap%d0,/dev/nvidia-caps/nvidia-cap%d4" % (gi, gi) for gi in (2, 1)]
    return node(
        "gpu:3g.40gb:2,gpu:h100:1",
        jobs=[("7", held(0)), ("8", held(2))],
        minors=minors,
        capabilities=[{"name": name, "number": number} for name, number in names],
        gres_conf=[
            *("NodeName=h100-01 Name=gpu Type=3g.40gb MultipleFiles=/dev/%s" % each for each in files),
            "NodeName=h100-01 Name=gpu Type=h100 File=/dev/nvidia1",
        ],
        **more,
    )


ONE = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}]}]
MADE = [(1, "3g.40gb", 4, None), (2, "3g.40gb", 0, None)]
NO_RULE = "no job_submit plugin refuses requests for GPUs without a type"


def test_pads_and_kept_instances_let_jobs_continue():
    slurm = busy_node(pad_problem="")
    found = slurm_mapping(ONE, slurm=slurm, state=host(2, MADE), kept=["MIG-GPU-a-0-2"])
    assert found["change"] == {"way": "in place", "jobs": [], "restart": False}
    assert found["gres"] == "gpu:3g.40gb:1,gpu:pad:1,gpu:h100:1"
    assert slurm_mapping(ONE, slurm=slurm, state=host(2, MADE))["change"]["jobs"] == ["7"]
    # The layout is applied now, so the second instance does not exist any more.
    found = slurm_mapping(ONE, slurm=slurm, state=host(2, MADE[1:]))
    assert found["change"] == {"way": "in place", "jobs": [], "restart": False}
    assert found["devices"] == ["MIG-GPU-a-0-2", "", "GPU-a-1"]
    pad = "Name=gpu Type=pad MultipleFiles=/dev/nvidia-caps/nvidia-cap1,/dev/nvidia-caps/nvidia-cap2"
    assert found["gres_conf"][1] == "NodeName=h100-01 AutoDetect=off %s" % pad


@pytest.mark.parametrize("problem", [NO_RULE, None])
def test_without_the_rule_all_jobs_wait_and_the_plan_says_why(problem):
    slurm = busy_node(**({} if problem is None else {"pad_problem": problem}))
    found = slurm_mapping(ONE, slurm=slurm, state=host(2, MADE), kept=["MIG-GPU-a-0-2"])
    assert found["change"] == {"way": "all jobs", "jobs": ["7", "8"], "restart": False}
    reason = problem or "the host did not report whether jobs can get one"
    assert found["plan"][1] == "Pads could keep the total of gres/gpu, but %s." % reason


def test_without_slurm_only_the_gres_are_returned():
    found = slurm_mapping(MIG, expected_gpus=["H100-80GB"] * 8, node="h100-01")
    assert (found["gres"], found["change"], found["gres_conf"]) == ("gpu:3g.40gb:2,gpu:h100:7", {}, [])
    assert found["plan"] == [
        "node h100-01: gres gpu:3g.40gb:2,gpu:h100:7",
        "No entry lists gpus 1, 2, 3, 4, 5, 6, 7, so Slurm gets the current state.",
    ]


def test_a_job_with_an_ambiguous_record_must_end():
    slurm = node("gpu:h100:2", jobs=[("7", None), ("8", held(1))])
    layout = [{"gpus": "all", "sharing": "shared"}]
    assert slurm_mapping(layout, slurm=slurm, state=host(2))["change"]["way"] == "nothing"
    slurm = node("gpu:a:1,gpu:b:1", jobs=[("7", None), ("8", held(1))])
    assert slurm_mapping(layout, slurm=slurm, state=host(2))["change"]["jobs"] == ["7", "8"]


@pytest.mark.parametrize(
    ("version", "node_version", "is_refused"),
    [
        ("24.11.5", "24.11.5", False),
        ("24.11.5", "22.05.8", True),
        ("22.05.8", "22.05.8", True),
        ("23.02.7", "23.02.7", False),
        ("24.11.0-rc1", None, False),
        ("unknown", "24.11.5", True),
    ],
)
def test_the_older_version_counts(version, node_version, is_refused):
    slurm = node("gpu:h100:2", version=version, node_version=node_version)
    found = slurm_mapping(MIG + SLICED, slurm=slurm, state=host(2))
    assert bool(found["refusals"]) == is_refused
    assert ("Slurm before 23.02.7" in " ".join(found["problems"])) == is_refused


@pytest.mark.parametrize(
    ("types", "is_refused"), [("gpu,shard", False), ("gpu,shard,mps", True), ("mps,gpu,shard", True)]
)
def test_shards_are_refused_in_a_cluster_with_mps(types, is_refused):
    found = slurm_mapping(SLICED, slurm=node(gres_types=types), state=host(2))
    assert bool(found["problems"]) == is_refused
    if is_refused:
        assert found["problems"][0].startswith("node h100-01: the layout needs gres/shard")
        assert found["problems"][0].endswith("Remove mps from GresTypes in slurm.conf.")
        assert {key: found[key] for key in ("gres", "gres_conf", "devices", "change", "plan")} == {
            key: EMPTY[key] for key in ("gres", "gres_conf", "devices", "change", "plan")
        }


@pytest.mark.parametrize(
    ("layout", "options", "problem"),
    [
        ([{"gpus": [0], "sharing": "nope"}], {}, "gpu_layout[0].sharing"),
        ([{"gpus": [70], "sharing": "shared"}], {}, "this host has no GPU 70"),
        (MIG, {"lost": "found"}, "lost: "),
        (MIG, {"slurm": node("gpu:h100:2K")}, "node h100-01: its GRES"),
        (MIG, {"slurm": node(node="-x; reboot")}, "the host sent"),
        (MIG, {"slurm": node(jobs=[("7 NodeName=x", None)])}, "the host sent"),
        (MIG, {"slurm": {"node": "h100-01"}}, "the host sent"),
        (MIG, {"kept": ["; reboot"]}, "the host sent"),
    ],
)
def test_only_problems_are_returned(layout, options, problem):
    found = slurm_mapping(layout, **{"slurm": node(), "state": host(), "node": "h100-01", **options})
    assert problem in found["problems"][0]
    assert {key: found[key] for key in EMPTY} == EMPTY


def test_unknown_gpus_leave_the_layout_unchecked():
    found = slurm_mapping(MIG, slurm=node())
    assert (found["checked"], found["problems"]) == (False, [])
    assert {key: found[key] for key in EMPTY} == EMPTY


def test_lines_have_cores_and_links_of_the_host():
    cores = [{"package": cpu // 4, "cpus": "%d,%d" % (cpu, cpu + 8)} for cpu in range(8)]
    near = ["0-3,8-11", "4-7,12-15"]
    minors = [{"uuid": "GPU-a-%d" % number, "minor": number, "local_cpus": near[number]} for number in range(2)]
    slurm = node(
        "gpu:h100:2,shard:4", minors=minors, cores=cores, sockets=2, cores_per_socket=4, gres_types="gpu,shard"
    )
    found = slurm_mapping(SLICED, slurm=slurm, state=host(2))
    assert [line.partition(" Name=")[2] for line in found["gres_conf"]] == [
        "gpu Type=h100 File=/dev/nvidia0 Cores=0-3",
        "gpu Type=h100 File=/dev/nvidia1 Cores=4-7",
        # slurmd uses the cores of the GPU for its shards too.
        "shard File=/dev/nvidia1 Count=4",
    ]
    counted = slurm_mapping(SLICED, slurm={**slurm, "sockets": 16, "cores_per_socket": 1}, state=host(2))
    assert not any("Cores=" in line for line in counted["gres_conf"])
    assert counted["plan"][1].startswith("node h100-01: gres.conf has no Cores=: Slurm counts 16 sockets")


def test_instances_have_the_cores_of_their_gpu():
    made = [(1, "3g.40gb", 4, None), (2, "3g.40gb", 0, None)]
    cores = [{"package": cpu, "cpus": str(cpu)} for cpu in range(2)]
    minors = [{"uuid": "GPU-a-%d" % number, "minor": number, "local_cpus": str(number)} for number in range(2)]
    capabilities = [{"name": "gpu0/gi%d/%saccess" % (gi, part), "number": gi} for gi in (1, 2) for part in ("", "ci0/")]
    slurm = node(minors=minors, capabilities=capabilities, cores=cores, sockets=2, cores_per_socket=1)
    found = slurm_mapping(MIG, slurm=slurm, state=host(2, made))["gres_conf"]
    assert [line.split()[-1] for line in found] == ["Cores=0", "Cores=0", "Cores=1"]
    old = slurm_mapping(MIG, slurm={**slurm, "node_version": "22.05.8"}, state=host(2, made))
    assert not any("Cores=" in line for line in old["gres_conf"])
    assert any("before Slurm 24.11" in line for line in old["plan"])


def test_a_list_of_cpus_from_a_host_is_checked():
    for row in ({"package": 0, "cpus": "0-8191"}, {"package": 0, "cpus": "x"}):
        found = slurm_mapping(SLICED, slurm=node(cores=[row]), state=host(2))
        assert "is not a list of CPUs" in found["problems"][0] and found["gres_conf"] == []
