# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a host grants leases and takes them back."""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.leases.model import Shape
from tests.integration.lease_fleet import GIB, LeaseFleet, Refused, mig, vgpu

SMALL, MIDDLE, LARGE = Shape(profile="1g.10gb"), Shape(profile="2g.20gb"), Shape(profile="3g.40gb")


@pytest.fixture
def fleet(host, monkeypatch):
    host.create([{"model": "H100-80GB", "count": 2}])
    return LeaseFleet(host, monkeypatch)


def test_lease_gets_an_instance_and_its_uuid(fleet):
    fleet.apply([mig([0], "3g.40gb")])
    grant = fleet.take(1, SMALL)
    (uuid,) = grant["mig_uuids"]
    assert uuid.startswith("MIG-") and dict(grant["environment"])["CUDA_VISIBLE_DEVICES"] == uuid
    assert grant["cdi"] == ["nvidia.com/gpu=%s" % uuid]
    assert [profile for profile, _start in fleet.instances()[0]] == ["1g.10gb", "3g.40gb"]
    assert list(fleet.records().values()) == ["lease 1 of root"]
    assert fleet.grant(1) == grant


def test_taking_again_returns_the_same_grant(fleet):
    fleet.apply([mig([0], "3g.40gb")])
    grant = fleet.take(1, SMALL)
    assert fleet.take(1, SMALL)["mig_uuids"] == grant["mig_uuids"]


def test_instance_of_an_ended_lease_is_used_again(fleet):
    fleet.apply([mig([0], "3g.40gb")])
    first = fleet.take(1, SMALL)
    fleet.give_back(1)
    assert list(fleet.records().values()) == [None]
    assert fleet.take(2, SMALL)["mig_uuids"] == first["mig_uuids"]


def test_idle_instances_give_way_to_a_larger_lease(fleet):
    fleet.apply([mig([0])])
    for number in range(1, 8):
        fleet.take(number, SMALL)
    for number in range(1, 8):
        fleet.give_back(number)
    fleet.take(8, Shape(profile="7g.80gb"))
    assert fleet.instances()[0] == [("7g.80gb", 0)]
    assert fleet.records() == {("7g.80gb", 0): "lease 8 of root"}


def test_layout_has_no_drift_beside_leases(fleet):
    fleet.apply([mig([0], "3g.40gb")])
    fleet.take(1, SMALL)
    assert not fleet.apply([mig([0], "3g.40gb")])["changed"]


def test_quota_follows_a_lease(fleet):
    assert not fleet.apply([vgpu([0])]).get("failed")
    grant = fleet.take(1, Shape(8 * GIB, 20))
    assert grant["tenant"] == "lease-1" and dict(grant["environment"])["OPENFLEET_VGPU"] == "lease-1"
    assert (fleet.root / "etc/openfleet-gpu/vgpu/lease-1/quota").read_text().count("memory %d sm 20" % (8 * GIB)) == 1
    fleet.resize(1, Shape(16 * GIB, 30))
    assert (fleet.root / "etc/openfleet-gpu/vgpu/lease-1/quota").read_text().count("memory %d sm 30" % (16 * GIB)) == 1
    fleet.give_back(1)
    assert fleet.tenants() == []


def test_quota_beyond_the_room_is_refused_and_stays(fleet):
    fleet.apply([vgpu([0])])
    fleet.take(1, Shape(8 * GIB, 20))
    fleet.take(2, Shape(8 * GIB, 60))
    with pytest.raises(Refused, match="no room"):
        fleet.resize(1, Shape(8 * GIB, 50))
    assert "sm 20" in (fleet.root / "etc/openfleet-gpu/vgpu/lease-1/quota").read_text()
