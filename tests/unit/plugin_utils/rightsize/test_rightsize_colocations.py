# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Propose colocation of online and offline workloads from histories."""

from __future__ import annotations

import dataclasses

import pytest

np = pytest.importorskip("numpy")

from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import parse_layout
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import (
    Finding,
    Holding,
    Subject,
    Verdict,
    Window,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.model import WHOLE, mig
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.colocations import candidates, propose
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.model import GpuToday, Occupant, Wish
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.series import Grid
from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.model import Policy

GIB = 1 << 30
DAYS = 7
GRID = Grid.of(Window(1.79e9 - DAYS * 86400, 1.79e9))
RANDOM = np.random.default_rng(5)


class Work:
    """A workload that has a GPU alone: percent of time with a kernel, and GiB."""

    def __init__(self, name, host, index, latency, busy, gib, **wish):
        self.name, self.host, self.index = name, host, index
        self.wish = Wish(latency=latency, **{"isolation": "quota", **wish})
        noise = RANDOM.normal(0, 2, len(GRID.times))
        self.read = {
            "busy": np.clip(np.broadcast_to(busy, len(GRID.times)) + noise, 0, 100),
            "compute": np.full(len(GRID.times), np.nan),
            "memory": np.full(len(GRID.times), gib * GIB, float),
        }

    def gpu(self, **more):
        (gpu,) = assumed_gpus(["H100-80GB"])
        gpu = dataclasses.replace(gpu, index=self.index)
        uuid = "GPU-%s-%d" % (self.host, self.index)
        holding = Holding(Subject("gpu", self.host, uuid, str(self.index)))
        finding = Finding("", Verdict("right", ""), holding)
        occupant = Occupant(self.name, (self.host, self.index), uuid, WHOLE, None, finding, self.wish)
        return dataclasses.replace(GpuToday(self.host, gpu, "H100-80GB", (occupant,), price_per_hour=2.0), **more)


def proposed(*works, reach="fleet"):
    found = candidates([work.gpu() for work in works])
    return propose(found, {work.name: work.read for work in works}, GRID, reach, Policy())


SERVE = Work("serve", "a", 0, "low", 20, 20)


def test_offline_work_fills_what_online_work_leaves():
    (one,) = proposed(SERVE, Work("train", "a", 1, "batch", 40, 30))
    assert (one.host, one.gpu_index, one.online, one.offline) == ("a", 0, "serve", ("train",))
    assert one.freed == ("a gpu 1",) and one.saved_per_month == pytest.approx(2 * 730.5)
    assert one.left_ratio == pytest.approx(0.6, abs=0.02) and one.need_ratio == pytest.approx(0.4, abs=0.02)
    assert one.progress_ratio == 1
    (entry,) = parse_layout([one.entry]).entries
    assert [(tenant.latency, tenant.memory_bytes >= 20 * GIB) for tenant in entry.part.tenants] == [
        ("online", True),
        ("offline", True),
    ]


@pytest.mark.parametrize(
    ("busy", "gib", "host"),
    [
        # Offline work would get 0.8 * 60 % of the time, which is less than three quarters of 70 %.
        (70, 30, "a"),
        # Together, the workloads would exceed the waterline of memory.
        (30, 50, "a"),
        # These workloads are on different hosts.
        (30, 30, "b"),
    ],
)
def test_work_that_does_not_fit_keeps_its_gpu(busy, gib, host):
    assert proposed(SERVE, Work("train", host, 1, "batch", busy, gib), reach="host") == ()


def test_slower_offline_work_is_announced():
    (one,) = proposed(SERVE, Work("train", "a", 1, "batch", 60, 30))
    assert one.progress_ratio == pytest.approx(0.8, abs=0.03)
    assert "Offline work gets %.0f %% of its present GPU time." % (100 * one.progress_ratio) in one.reason


def test_online_work_by_day_leaves_the_night():
    """Compare offline work with the mean of the time that online work leaves.

    Offline work can wait until the night.
    """
    hours = (np.array(GRID.times) % 86400) // 3600
    day = Work("day", "a", 0, "low", np.where((hours >= 8) & (hours < 20), 95.0, 2.0), 20)
    (one,) = proposed(day, Work("train", "a", 1, "batch", 30, 30))
    assert one.left_ratio == pytest.approx(0.39, abs=0.03)


def test_larger_work_is_placed_first_and_cards_are_filled():
    works = [SERVE, Work("other", "a", 1, "low", 50, 10)]
    works += [Work("train-%d" % n, "a", 2 + n, "batch", busy, 10) for n, busy in enumerate((20, 25, 40))]
    found = {one.online: set(one.offline) for one in proposed(*works)}
    assert found == {"serve": {"train-2", "train-0"}, "other": {"train-1"}}


@pytest.mark.parametrize(
    "change",
    [
        {"wish": Wish(latency="batch", isolation="hardware")},
        {"wish": Wish(latency="normal", isolation="quota")},
        {"wish": Wish(latency="batch", isolation="quota", mode="exclusive")},
        {"shape": mig("1g.10gb")},
        {"left": "it is excluded"},
    ],
)
def test_only_workloads_that_the_inventory_allows_are_considered(change):
    gpu = Work("train", "a", 1, "batch", 30, 30).gpu()
    assert list(candidates([gpu])) == ["train"]
    changed = dataclasses.replace(gpu.occupants[0], **change)
    assert candidates([dataclasses.replace(gpu, occupants=(changed,))]) == {}
    assert candidates([dataclasses.replace(gpu, left="it is for leases")]) == {}


def test_short_histories_propose_nothing():
    train = Work("train", "a", 1, "batch", 30, 30)
    for row in train.read.values():
        row[:-20] = np.nan
    assert proposed(SERVE, train) == ()
