# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs that lost their entry in the layout: kept over reboots, or released."""

from __future__ import annotations

import json

import pytest

H100 = [{"model": "H100-80GB", "count": 3}]
HALVES = {"sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}
BOTH = [dict(HALVES, gpus=[0]), dict(HALVES, gpus=[1])]
FIRST = BOTH[:1]
SECOND_GPU = [("3g.40gb", 0), ("3g.40gb", 4)]


@pytest.fixture(name="shared")
def of_two_partitioned_gpus(host):
    host.simulated.create(H100)
    host("apply", "--layout", host.layout(BOTH))
    return host


def apply(host, layout, *arguments, **options):
    return host("apply", "--layout", host.layout(layout), *arguments, **options)


def planned(host, layout, *arguments):
    return json.loads(host("plan", "--json", "--layout", host.layout(layout), *arguments).stdout)


def record(host):
    return json.loads((host.folder / "state.d" / "applied.json").read_text())["gpu_layout"]


@pytest.mark.host_python
def test_a_gpu_without_an_entry_keeps_its_instances_over_a_reboot(shared):
    done = apply(shared, FIRST)
    line = "gpu 1: unmanaged, no entry names it: keeps mig (3g.40gb@0, 3g.40gb@4)"
    assert line in done.stdout.splitlines() and "nothing changed" in done.stdout
    assert planned(shared, FIRST)["plan"].count(line) == 1
    shared.gpusim("reboot")
    restored = planned(shared, FIRST)
    assert "gpu 1: unmanaged, no entry names it: restores mig (3g.40gb@0, 3g.40gb@4)" in restored["plan"]
    assert restored["counts"]["create"] == 4
    assert apply(shared, FIRST, "--unnamed", "keep").stdout.count("create 3g.40gb") == 4
    assert shared.seen()[1] == SECOND_GPU
    assert "nothing changed" in apply(shared, FIRST).stdout


@pytest.mark.host_python
def test_released_gpus_lose_their_instances_at_once(shared):
    told = planned(shared, FIRST, "--unnamed", "release")
    assert told["counts"] == {"create": 0, "destroy": 2, "keep": 2, "gpus_changed": 1}
    assert any(line.startswith("gpu 1: released, no entry names it") for line in told["plan"])
    assert shared.seen()[1] == SECOND_GPU
    apply(shared, FIRST, "--unnamed", "release")
    assert shared.seen()[1] == []
    assert [entry["gpus"] for entry in record(shared)] != [] and len(record(shared)) == 1
    again = apply(shared, FIRST, "--unnamed", "release")
    assert "nothing changed" in again.stdout and "gpu 1" not in again.stdout
    shared.gpusim("reboot")
    apply(shared, FIRST)
    assert shared.seen()[1] == []
