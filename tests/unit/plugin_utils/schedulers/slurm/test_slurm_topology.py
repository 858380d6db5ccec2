# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute Cores= and Links= of gres.conf, and the lines of topology.conf.

Slurm 24.11 drained a node whose Cores= was only a part of a socket. Slurm 22.05 and 24.11 accepted the values that
these tests expect.
"""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.openfleet.gpu.plugins.filter.slurm_topology import slurm_topology
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.module_utils.model import NvLink
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.slurm.mig_devices import Device
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.slurm.topology import (
    Core,
    Cpus,
    parse_cpus,
    placement,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.slurm.topology_conf import topology_lines

NEW, OLD = (24, 11, 5), (22, 5, 8)


def cpus_of(packages, cores, threads=1, interleaved=False, **more):
    """Return the CPUs of a host. Second threads have the upper half of the numbers.

    If `interleaved` is true, neighboring CPU numbers are in different packages.
    """
    count = packages * cores
    found = []
    for number in range(count):
        package = number % packages if interleaved else number // cores
        found.append(Core(package, frozenset(number + count * thread for thread in range(threads))))
    return Cpus(**{"sockets": packages, "cores_per_socket": cores, "cores": found, **more})


def cores(cpus, **local):
    """Return the GPUs' Cores= for these closest CPUs, and the notes."""
    near = {uuid: parse_cpus(text, "n") for uuid, text in local.items()}
    found = placement([], dataclasses.replace(cpus, local=near), NEW)
    return dict(found.cores), found.notes


@pytest.mark.parametrize(
    ("cpus", "near", "expected"),
    [
        (cpus_of(2, 4), {"a": "0-3", "b": "4-7"}, {"a": "0-3", "b": "4-7"}),
        # Slurm numbers cores, not CPUs, so second threads do not count.
        (cpus_of(2, 4, 2), {"a": "0-3,8-11", "b": "4-7,12-15"}, {"a": "0-3", "b": "4-7"}),
        # The first socket has cores 0 to 3, whatever the numbers of its CPUs are.
        (cpus_of(2, 4, 2, interleaved=True), {"a": "0,2,4,6,8,10,12,14", "b": "1,3,5,7,9,11,13,15"}, {"a": "0-3", "b": "4-7"}),
        # Each package has two NUMA nodes. If Cores= is only a part of a socket, slurmctld drains the node.
        (cpus_of(2, 4), {"a": "0-1", "b": "6-7"}, {"a": "0-3", "b": "4-7"}),
        # Slurm can count each NUMA node as a socket.
        (cpus_of(2, 4, sockets=4, cores_per_socket=2), {"a": "0-1", "b": "6-7"}, {"a": "0-1", "b": "6-7"}),
        (cpus_of(4, 1), {"a": "0,2", "b": "3"}, {"a": "0,2", "b": "3"}),
        (cpus_of(2, 4), {"a": "0-7"}, {}),
        (cpus_of(1, 8), {"a": "0-3"}, {}),
        (cpus_of(2, 4), {"a": ""}, {}),
        (Cpus(), {"a": "0-3"}, {}),
        # A CPU that is offline belongs to no core.
        (cpus_of(2, 4), {"a": "0-3,64-67", "b": "64-67"}, {"a": "0-3"}),
    ],
    ids=str,
)  # fmt: skip
def test_cores_are_whole_sockets(cpus, near, expected):
    assert cores(cpus, **near) == (expected, ())


@pytest.mark.parametrize(
    ("cpus", "near"),
    [
        (cpus_of(2, 4, sockets=2, cores_per_socket=1), "0-3"),
        (cpus_of(2, 4, 2, sockets=16, cores_per_socket=1), "0-3"),
        (cpus_of(2, 4, sockets=0, cores_per_socket=0), "0-3"),
        (cpus_of(3, 2, sockets=2, cores_per_socket=3), "0-1"),
        # The CPU numbers of a package's NUMA nodes alternate, so it is unknown in which order Slurm numbers the cores.
        (cpus_of(2, 4, sockets=4, cores_per_socket=2), "0,2"),
    ],
)
def test_cores_that_slurm_counts_otherwise_are_left_out(cpus, near):
    found, (note,) = cores(cpus, a=near)
    assert found == {} and note.startswith("gres.conf has no Cores=: Slurm counts") and "`slurmd -C`" in note


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 2), st.booleans(), st.data())
def test_cores_cover_the_closest_cpus(packages, size, threads, interleaved, data):
    cpus = cpus_of(packages, size, threads, interleaved)
    every = sorted(frozenset().union(*(core.cpus for core in cpus.cores)))
    near = frozenset(data.draw(st.lists(st.sampled_from(every), min_size=1)))
    found = placement([], dataclasses.replace(cpus, local={"a": near}), NEW)
    touched = {core.package for core in cpus.cores if core.cpus & near}
    numbers = parse_cpus(found.cores.get("a", ""), "n")
    assert found.notes == ()
    assert numbers == ({p * size + n for p in touched for n in range(size)} if len(touched) < packages else set())


@pytest.mark.parametrize("text", ["a", "3-1", "0-8192", "-1", "0-3;4", "1--2"])
def test_invalid_lists_of_cpus_are_refused(text):
    with pytest.raises(FleetError, match=r"h100-01: .* is not a list of CPUs"):
        parse_cpus(text, "h100-01")


def test_a_core_has_few_threads():
    assert parse_cpus("0,64\n", "n", 2) == {0, 64}
    with pytest.raises(FleetError):
        parse_cpus("0-2", "n", 2)


def linked(counts):
    """Return GPUs with the given number of links between each pair."""
    host = [
        dataclasses.replace(gpu, pci_address="0000:0%d:00.0" % gpu.index)
        for gpu in assumed_gpus(["A100-40GB"] * len(counts))
    ]
    found = []
    for gpu, row in zip(host, counts):
        remotes = [host[other].pci_address for other, count in enumerate(row) for _link in range(count)]
        links = tuple(NvLink(number, remote) for number, remote in enumerate(remotes))
        found.append(dataclasses.replace(gpu, nvlinks=links))
    return found


PAIRS = linked([[0, 4, 0], [4, 0, 0], [0, 0, 0]])


def test_links_count_the_connections_by_position():
    devices = [Device("a100", gpu, gpu.uuid) for gpu in PAIRS]
    assert placement(devices, Cpus(), OLD).links == {0: "-1,4,0", 1: "4,-1,0", 2: "0,0,-1"}


def test_instances_have_positions_without_links():
    instances = [Device("3g.20gb", PAIRS[2], "MIG-1", 1, 0), Device("3g.20gb", PAIRS[2], "MIG-2", 2, 0)]
    devices = [*instances, Device("a100", PAIRS[0], "GPU-a"), Device("a100", PAIRS[1], "GPU-b")]
    # Two GPUs are always a pair, whatever connects them.
    assert placement(devices, Cpus(), NEW).links == {}
    third = Device("a100", PAIRS[2], "GPU-c")
    assert placement([*devices, third], Cpus(), NEW).links == {2: "0,0,-1,4,0", 3: "0,0,4,-1,0", 4: "0,0,0,0,-1"}
    found = placement([*devices, third], Cpus(), OLD)
    assert found.links == {} and "before Slurm 24.11" in found.notes[0]


def test_gpus_that_are_connected_equally_have_no_links():
    equal = linked([[0, 2, 2], [2, 0, 2], [2, 2, 0]])
    switched = [dataclasses.replace(gpu, nvlinks=(NvLink(0, "0000:c5:00.0"),)) for gpu in equal]
    for host in (equal, switched, linked([[0], [0]][:1])):
        assert placement([Device("a100", gpu, gpu.uuid) for gpu in host], Cpus(), NEW).links == {}


def test_a_link_with_an_unknown_end_is_noted():
    host = [dataclasses.replace(PAIRS[0], nvlinks=(NvLink(0),)), *PAIRS[1:]]
    found = placement([Device("a100", gpu, gpu.uuid) for gpu in host], Cpus(), NEW)
    assert found.links == {} and "the other end of an NVLink of gpu 0" in found.notes[0]


# -- topology.conf --

SWITCHES = {"h100-01": "tor-a", "h100-02": "tor-a", "a100-01": "tor-b"}


def test_a_tree_connects_all_switches():
    assert topology_lines(SWITCHES, "topology/tree") == [
        "SwitchName=tor-a Nodes=h100-01,h100-02",
        "SwitchName=tor-b Nodes=a100-01",
        "SwitchName=gpu_fleet Switches=tor-a,tor-b",
    ]
    assert topology_lines({"n1": "tor-a"}, "topology/tree") == ["SwitchName=tor-a Nodes=n1"]


def test_each_switch_is_a_block():
    assert topology_lines(SWITCHES, "topology/block") == [
        "BlockName=tor-a Nodes=h100-01,h100-02",
        "BlockName=tor-b Nodes=a100-01",
    ]


@pytest.mark.parametrize(
    ("switches", "plugin", "problem"),
    [
        (SWITCHES, "topology/default", "TopologyPlugin: .* uses no topology.conf. Set it to topology/tree or"),
        ({"n1": "tor a"}, "topology/tree", "gpu_slurm_switch of n1: 'tor a' is not the name of a switch"),
        ({"n1": "a\nNodes=x"}, "topology/tree", "gpu_slurm_switch of n1"),
        ({"n 1": "tor-a"}, "topology/tree", "is not the name of a Slurm node"),
        ({"n1": 7}, "topology/block", "gpu_slurm_switch of n1"),
        ({"n1": "gpu_fleet"}, "topology/tree", "gpu_slurm_switch of n1: .* connects all others"),
    ],
)
def test_invalid_names_are_refused(switches, plugin, problem):
    with pytest.raises(FleetError, match=problem):
        topology_lines(switches, plugin)
    assert slurm_topology(switches, plugin)["problems"]


def test_the_filter_returns_lines_or_problems():
    assert slurm_topology({"n1": "tor-a"}, "topology/tree") == {
        "problems": [],
        "topology_conf": ["SwitchName=tor-a Nodes=n1"],
    }
    assert slurm_topology(["n1"], "topology/tree")["topology_conf"] == []
