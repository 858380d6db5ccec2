# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test instances without an entry.

A run removes the collection's own instances. Foreign instances stay by default.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

MAKE = str(Path(__file__).resolve().parents[1] / "make_instance.py")
SMALL = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "1g.10gb"}]}]
NONE = [{"gpus": [0], "sharing": "mig", "mig": []}]


@pytest.fixture
def shared(host):
    """Return a host with a foreign 3g.40gb at placement 4 on GPU 0."""
    host.create([{"model": "H100-80GB", "count": 1}])
    make(host, "3g.40gb", 4)
    return host


def make(host, profile, start):
    host.run([sys.executable, MAKE, "0", profile, str(start)])


def test_foreign_instance_stops_the_run_with_its_name(shared):
    there = shared.seen()
    for check in (True, False):
        refused = shared.module("mig", check=check, layout=SMALL)
        assert refused["failed"]
        assert "did not create: 3g.40gb@4 (MIG-" in refused["msg"]
        assert "gpu_layout_unlisted" in refused["cure"]
    assert shared.seen() == there


def test_remove_removes_foreign_instances(shared):
    assert shared.module("mig", layout=SMALL, unlisted="remove")["counts"]["destroy"] == 1
    assert [name for name, _ in shared.seen()[0]] == ["1g.10gb"]


def test_keep_places_the_layout_around_foreign_instances(shared):
    result = shared.module("mig", layout=SMALL, unlisted="keep")
    assert result["changed"], result
    assert "leave 3g.40gb@4" in result["plan"][0]
    assert ("3g.40gb", 4) in shared.seen()[0]
    assert len(shared.seen()[0]) == 2
    assert not shared.module("mig", layout=SMALL, unlisted="keep")["changed"]
    # An instance that the run left in place is still foreign. Without permission it stops the next run too.
    assert shared.module("mig", layout=SMALL)["failed"]


def test_keep_fails_without_room_around_foreign_instances(shared):
    refused = shared.module(
        "mig", layout=[{"gpus": [0], "sharing": "mig", "mig": [{"profile": "7g.80gb"}]}], unlisted="keep"
    )
    assert refused["failed"]
    assert "do not fit beside instances that are not in the layout: 3g.40gb@4" in refused["msg"]


def test_foreign_instances_in_the_layout_are_adopted(shared):
    both = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "1g.10gb"}]}]
    adopted = shared.module("mig", layout=both)
    assert adopted["counts"] == {"create": 1, "destroy": 0, "keep": 1, "gpus_changed": 1}
    assert shared.module("mig", layout=NONE)["counts"]["destroy"] == 2


def test_own_instances_are_removed_with_their_entry(host):
    host.create([{"model": "H100-80GB", "count": 1}])
    host.module("mig", layout=SMALL)
    assert host.module("mig", layout=NONE)["counts"]["destroy"] == 1


def test_manual_replacement_of_an_own_instance_is_foreign(host):
    host.create([{"model": "H100-80GB", "count": 1}])
    host.module("mig", layout=[{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "placement": 4}]}])
    host.gpusim("reboot")
    make(host, "3g.40gb", 4)
    assert host.module("mig", layout=NONE)["failed"]


def test_gpu_that_leaves_mig_mode_is_checked_too(shared):
    whole = [{"gpus": [0], "sharing": "shared"}]
    refused = shared.module("mig", layout=whole, unlisted="keep")
    assert refused["failed"]
    assert "cannot stay on a GPU without MIG mode" in refused["cure"]
    assert shared.module("mig", layout=whole)["failed"]
    assert shared.module("mig", layout=whole, unlisted="remove")["changed"]


def test_own_instances_stay_own_after_a_failed_run(host):
    host.create([{"model": "H100-80GB", "count": 1}])
    host.module("mig", layout=SMALL)
    # The run destroys the old instance. It cannot create the new one, so it creates the old one again with another
    # UUID.
    host.gpusim("fail", "nvmlDeviceCreateGpuInstanceWithPlacement", "--code", "INSUFFICIENT_RESOURCES")
    assert (
        host.module("mig", layout=[{"gpus": [0], "sharing": "mig", "mig": [{"profile": "7g.80gb"}]}])["outcome"]
        == "old"
    )
    assert host.module("mig", layout=NONE)["counts"]["destroy"] == 1
