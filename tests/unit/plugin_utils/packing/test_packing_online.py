# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that online placement keeps room for usual requests and exceeds no host."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
import yaml

pytest.importorskip("numpy")

from ansible.errors import AnsibleFilterError

from ansible_collections.openfleet.gpu.plugins.filter.place_request import place_request
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.model import PackingError
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.online import Demand, Host, Online, Place


def hosts(*rooms, cpu=64_000, memory=262_144, model="A100"):
    return [Host("h%d" % n, model, cpu, memory, tuple(room)) for n, room in enumerate(rooms)]


def part(thousandths, cpu=1000, memory=1024, **more):
    return Demand(cpu, memory, 1, thousandths, **more)


def test_a_share_goes_where_whole_gpus_stay_free():
    fleet = hosts((1000, 1000), (1000, 400))
    usual = {Demand(1000, 1024, 2): 1, part(400): 1}
    assert Online(fleet, usual).place(part(400)) == Place("h1", (1,))


def test_a_share_leaves_no_rest_that_no_usual_request_can_use():
    fleet = hosts((700, 500))
    assert Online(fleet, {part(500): 1, part(700): 1}).place(part(500)) == Place("h0", (1,))


def test_a_request_with_much_cpu_goes_to_a_host_with_much_cpu():
    fleet = [Host("small", "A100", 9_000, 65_536, (1000,) * 4), Host("large", "A100", 64_000, 65_536, (1000,) * 4)]
    usual = {part(1000, cpu=1000): 3, part(1000, cpu=8000): 1}
    online = Online(fleet, usual)
    assert online.place(part(1000, cpu=8000)) == Place("large", (0,))
    assert online.place(part(1000, cpu=1000)).host == "small"


def test_a_request_for_a_model_goes_to_it_and_others_leave_it_free():
    fleet = [Host("a", "H100", 8000, 8192, (1000,)), Host("b", "T4", 8000, 8192, (1000,))]
    online = Online(fleet, {part(1000, models=("H100",)): 1, part(1000): 1})
    assert online.place(part(1000)) == Place("b", (0,))
    assert online.place(part(1000, models=("H100", "V100"))) == Place("a", (0,))


def test_without_usual_requests_the_least_free_host_is_chosen():
    assert Online(hosts((1000, 1000), (1000, 300), (200, 0)), {}).place(part(300)) == Place("h1", (1,))
    assert Online([], {}).place(part(300)) is None


def test_several_whole_gpus_come_from_one_host():
    online = Online(hosts((1000, 500, 1000), (1000, 1000, 1000)), {Demand(1000, 1024, 3): 1})
    assert online.place(Demand(1000, 1024, 2)) == Place("h0", (0, 2))
    assert online.place(Demand(1000, 1024, 4)) is None
    assert online.place(Demand(4000, 1024)).gpus == ()


def test_room_is_never_exceeded_and_returns_when_a_workload_ends():
    """Compare the recorded room with a count of the placed workloads."""
    rng = random.Random(1)
    fleet = [Host("h%d" % n, rng.choice("AB"), 16_000, 65_536, (1000,) * 4) for n in range(6)]
    kinds = [part(rng.choice((100, 300, 470, 1000)), cpu=rng.choice((1000, 4000))) for _ in range(8)]
    kinds += [Demand(2000, 2048, 2), Demand(3000, 1024), part(470, models=("A",))]
    online, running = Online(fleet, Counter(kinds)), []
    for _ in range(300):
        if running and rng.random() < 0.3:
            online.release(*running.pop(rng.randrange(len(running))))
        demand = rng.choice(kinds)
        place = online.place(demand)
        if place is None:
            assert online.why_not(demand)
            continue
        running.append((demand, place))
        for host in fleet:
            here = [(d, p) for d, p in running if p.host == host.name]
            assert sum(d.cpu_milli for d, _p in here) <= host.cpu_milli
            assert sum(d.memory_mib for d, _p in here) <= host.memory_mib
            assert all(not d.models or host.model in d.models for d, _p in here)
            for gpu in range(4):
                assert sum(d.thousandths for d, p in here if gpu in p.gpus) <= 1000
        assert len(set(place.gpus)) == demand.gpus
    while running:
        online.release(*running.pop())
    # All workloads have ended, so each host has room for four whole GPUs.
    assert [online.place(Demand(1000, 1024, 4)) is not None for _ in range(7)] == [True] * 6 + [False]


@pytest.mark.parametrize(
    ("demand", "says"),
    [
        (part(500, models=("H100",)), "no host has a GPU of the models H100"),
        (Demand(1000, 1024, 3), "needs 3 GPUs of one host, which has at most 2"),
        (Demand(1000, 1024, 2), "none of 2 hosts has room on its GPUs"),
        (part(500, cpu=65_000), "1 of 2 hosts have room on their GPUs, but at most 64 free cores"),
    ],
)
def test_why_a_request_has_no_place(demand, says):
    online = Online(hosts((1000, 0), (400, 400)), {})
    assert online.place(demand) is None
    assert says in online.why_not(demand)


@pytest.mark.parametrize(
    ("fleet", "demand"),
    [
        (hosts((1000,)) * 2, part(500)),
        (hosts((1001,)), part(500)),
        (hosts((1000,)), part(0)),
        (hosts((1000,)), part(500, cpu=-1)),
    ],
)
def test_impossible_amounts_are_refused(fleet, demand):
    with pytest.raises(PackingError):
        Online(fleet, {}).place(demand)


FREE = [
    {"name": "gpu1", "model": "H100-80GB", "cpus": 32, "memory_mib": 131072, "gpus": [100, 100]},
    {"name": "gpu2", "model": "H100-80GB", "cpus": 32, "memory_mib": 131072, "gpus": [100, 35]},
]


def test_filter_chooses_a_place():
    request = {"cpus": 0.5, "memory_mib": 1024, "gpus": 1, "gpu_percent": 35}
    usual = [{"cpus": 8, "memory_mib": 1024, "gpus": 2, "count": 3}, request]
    assert place_request(FREE, request, usual) == {"host": "gpu2", "gpus": [1], "reason": ""}
    assert place_request(FREE, {**request, "gpus": 3})["reason"].startswith("it needs 3 GPUs of one host")


@pytest.mark.parametrize(
    ("free", "request_", "says"),
    [
        (FREE, {"cpu": 1, "memory_mib": 1}, "request: the keys are wrong (cpu is unknown)"),
        (FREE, {"cpus": 1}, "request: the keys are wrong (memory_mib is missing)"),
        (FREE, {"cpus": "two", "memory_mib": 1}, "request: cpus is 'two'. Give a number"),
        ([{**FREE[0], "gpus": [120]}], {"cpus": 1, "memory_mib": 1}, "host gpu1: its free CPU, memory or GPU shares"),
        ([{"name": "gpu1"}], {"cpus": 1, "memory_mib": 1}, "host gpu1: the keys are wrong (model is missing)"),
    ],
)
def test_filter_names_what_is_wrong(free, request_, says):
    with pytest.raises(AnsibleFilterError) as caught:
        place_request(free, request_)
    assert says in str(caught.value)


def test_example_of_the_documentation():
    text = (Path(__file__).parents[4] / "docs" / "packing.md").read_text(encoding="utf-8")
    code = text.split("```yaml\n")[1].split("```")[0]
    (task,) = yaml.safe_load(code)
    given = task["vars"]
    request = {"cpus": 8, "memory_mib": 32768, "gpus": 1, "gpu_percent": 25}
    assert str(request) in code
    place = place_request(given["free_hosts"], request, given["last_weeks"])
    assert code.splitlines()[-1] == "# %s" % place
