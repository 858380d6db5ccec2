# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test layout changes on GPUs that have leases' instances.

These instances are not drift. A run removes them only if a fixed instance needs their place.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.plan.leased import Leased, LeasedRecord

MAKE = str(Path(__file__).resolve().parents[1] / "make_instance.py")
LEASES = {"by": "host", "groups": ["ml"], "profiles": ["1g.10gb", "2g.20gb", "3g.40gb"]}


def layout(*profiles, leases=True):
    entry = {"gpus": [0], "sharing": "mig", "mig": [{"profile": profile} for profile in profiles]}
    return [{**entry, "leases": LEASES} if leases else entry]


class Leasing:
    """A host whose GPU 0 has a fixed 1g.10gb and leases' instances."""

    def __init__(self, host):
        self.host = host
        host.create([{"model": "H100-80GB", "count": 1}])
        assert host.module("mig", layout=layout("1g.10gb"))["changed"]
        self.record = LeasedRecord(str(host.folder / "state.d"))

    def lease(self, profile, start, lease):
        """Create an instance by hand and record it, as the service for leases does."""
        self.host.run([sys.executable, MAKE, "0", profile, str(start)])
        info = self.host.module("gpu_info")["gpus"][0]
        made = next(i for i in info["mig"]["instances"] if i["placement"]["start"] == start)
        uuids = tuple(compute["mig_uuid"] for compute in made["compute_instances"])
        self.record.write({*self.record.read(), Leased(info["uuid"], profile, start, uuids, lease)})

    def apply(self, *profiles, leases=True, **options):
        return self.host.module("mig", layout=layout(*profiles, leases=leases), **options)

    def instances(self):
        return sorted(self.host.seen()[0])


@pytest.fixture
def leasing(host):
    return Leasing(host)


@pytest.mark.parametrize("unlisted", ["fail", "remove", "keep"])
@pytest.mark.parametrize("lease", ["lease 1 of alice", None])
def test_leased_instance_is_no_drift_under_any_policy(leasing, unlisted, lease):
    leasing.lease("3g.40gb", 0, lease)
    before = leasing.instances()
    result = leasing.apply("1g.10gb", unlisted=unlisted)
    assert not result["changed"] and "leave 3g.40gb@0" in result["plan"][0], result
    assert leasing.instances() == before


def test_fixed_instances_are_created_around_leases(leasing):
    leasing.lease("3g.40gb", 0, "lease 1 of alice")
    assert leasing.apply("1g.10gb", "2g.20gb")["counts"] == {"create": 1, "destroy": 0, "keep": 1, "gpus_changed": 1}
    assert ("3g.40gb", 0) in leasing.instances()
    # The instance still belongs to leases, even if a later layout contains an equal fixed instance.
    assert not leasing.apply("1g.10gb", "2g.20gb")["changed"]


def test_free_leased_instance_gives_way_to_a_fixed_one(leasing):
    leasing.lease("3g.40gb", 0, None)
    result = leasing.apply("1g.10gb", "4g.40gb", unlisted="fail")
    assert result["counts"]["destroy"] >= 1, result
    assert [profile for profile, _start in leasing.instances()] == ["1g.10gb", "4g.40gb"]


def test_as_few_free_instances_as_possible_give_way(leasing):
    leasing.lease("1g.10gb", 4, "lease 1 of alice")
    leasing.lease("1g.10gb", 5, None)
    leasing.lease("3g.40gb", 0, None)
    assert leasing.apply("1g.10gb", "3g.40gb")["counts"] == {"create": 1, "destroy": 1, "keep": 1, "gpus_changed": 1}
    assert leasing.instances() == [("1g.10gb", 4), ("1g.10gb", 5), ("1g.10gb", 6), ("3g.40gb", 0)]


def test_lease_blocks_a_fixed_instance_like_a_holder(leasing):
    leasing.lease("3g.40gb", 0, "lease 1 of alice")
    before = leasing.instances()
    refused = leasing.apply("1g.10gb", "4g.40gb")
    assert refused["failed"] and "3g.40gb@0 is in use by lease 1 of alice" in refused["msg"], refused
    assert leasing.instances() == before


def test_lease_blocks_the_removal_of_the_key(leasing):
    leasing.lease("3g.40gb", 0, "lease 1 of alice")
    refused = leasing.apply("1g.10gb", leases=False)
    assert refused["failed"] and "lease 1 of alice" in refused["msg"], refused


def test_lease_blocks_the_end_of_mig(leasing):
    leasing.lease("3g.40gb", 0, "lease 1 of alice")
    refused = leasing.host.module("layout", layout=[{"gpus": [0], "sharing": "shared"}])
    assert refused["failed"] and "lease 1 of alice" in refused["msg"], refused


def test_free_instances_go_with_the_key(leasing):
    leasing.lease("3g.40gb", 0, None)
    assert leasing.apply("1g.10gb", leases=False, unlisted="fail")["counts"]["destroy"] == 1
    assert [profile for profile, _start in leasing.instances()] == ["1g.10gb"]


def test_replacement_by_hand_is_no_leased_instance(leasing):
    leasing.lease("3g.40gb", 0, None)
    (record,) = leasing.record.read()
    leasing.record.write({Leased(record.gpu_uuid, "3g.40gb", 0, ("MIG-of-another",), None)})
    refused = leasing.apply("1g.10gb")
    assert refused["failed"] and "did not create: 3g.40gb@0" in refused["msg"]


def test_error_of_the_layout_itself_names_no_lease(leasing):
    leasing.lease("3g.40gb", 0, "lease 1 of alice")
    refused = leasing.apply("4g.40gb", "4g.40gb")
    assert refused["failed"] and "do not fit together" in refused["msg"] and "lease" not in refused["msg"]


@pytest.mark.parametrize(
    ("call", "nth", "when"),
    [
        ("nvmlGpuInstanceDestroy", "1", "kill"),
        ("nvmlGpuInstanceDestroy", "1", "kill-after"),
        ("nvmlGpuInstanceCreateComputeInstance", "1", "kill-after"),
        ("nvmlGpuInstanceCreateComputeInstance", "2", "kill-after"),
    ],
)
def test_killed_change_keeps_the_lease_and_loses_no_instance(leasing, call, nth, when):
    """Kill a change that removes a free instance and creates fixed ones."""
    leasing.lease("1g.10gb", 4, "lease 1 of alice")
    leasing.lease("3g.40gb", 0, None)
    leasing.host.gpusim("fail", call, "--nth", nth, "--code", when)
    with pytest.raises(AssertionError, match="exit -9"):
        leasing.apply("1g.10gb", "2g.20gb", "1g.10gb", "1g.10gb")
    assert ("1g.10gb", 4) in leasing.instances()
    done = leasing.apply("1g.10gb", "2g.20gb", "1g.10gb", "1g.10gb")
    assert not done.get("failed"), done
    assert ("1g.10gb", 4) in leasing.instances()
    assert sorted(profile for profile, _start in leasing.instances()) == ["1g.10gb"] * 4 + ["2g.20gb"]
    assert not leasing.apply("1g.10gb", "2g.20gb", "1g.10gb", "1g.10gb")["changed"]
