# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let pods take a host's leases, also while the lease service fails or dies.

The tests send the same requests as the kubelet's plugin. The kubelet repeats each request until it succeeds. The test
states the plugin's identity, which a host reads from the kernel. All other parts are real, with a simulated driver.
"""

from __future__ import annotations

import json
import os
import random
import stat

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.lease_service.service import (
    Caller,
    Kernel,
    LeaseService,
    Units,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.record import BookingRecord
from tests.integration.lease_fleet import GIB, Killed, LeaseFleet, Refused
from tests.integration.modules.test_lease_faults import FileFault
from tests.thorough import THOROUGH

FIXED = {"name": "fixed", "gpu": 1, "memory": "8GiB", "sm_percent": 10}
LEASED = {
    "gpus": [0, 1],
    "sharing": "vgpu",
    "vgpu": {"policy": "fixed", "provider": "preload", "tenants": [FIXED]},
    "leases": {"by": "kubernetes", "most": {"memory": "40GiB", "sm_percent": 50}},
}


class PluginKernel(Kernel):
    """A kernel that takes each caller for the kubelet's plugin."""

    @staticmethod
    def is_plugin(_pid, _uid):
        return True


class PodHost:
    """A host whose pods have leases.

    Each call is a new process, like the service's child.
    """

    def __init__(self, fleet) -> None:
        self.fleet = fleet

    def ask(self, fault=None, recover=False, **request):
        """Return the answer to the plugin's request.

        Return None if the service died.
        """

        def forked():
            record = BookingRecord(self.fleet.directory)
            service = LeaseService(self.fleet.lease_host(), record, Units, kernel=PluginKernel)
            if fault is not None:
                fault.install()
            answer = service.work({}, json.dumps(request).encode(), Caller(os.getpid(), 0), recover)["answer"]
            return [answer, 0 if fault is None else fault.count]

        try:
            return self.fleet.fork(forked)
        except Killed:
            return None
        except Refused as error:
            # The server answers the plugin with this error.
            assert error.kind == "ApplyError", error
            return None

    def prepare(self, claim, uuids, memory=8, percent=20, fault=None, priority_class=""):
        shape = {"memory_bytes": memory * GIB, "sm_percent": percent}
        answer = self.ask(
            fault,
            op="prepare",
            claim=claim,
            name="ml/%s" % claim,
            shape=shape,
            uuids=uuids,
            priority_class=priority_class,
        )
        return answer and answer[0]

    def unprepare(self, claim, fault=None):
        answer = self.ask(fault, op="unprepare", claim=claim)
        return answer and answer[0]

    def quota(self, number):
        """Return the GPUs' lines in a lease's quota file."""
        text = (self.fleet.root / ("etc/openfleet-gpu/vgpu/lease-%d/quota" % number)).read_text()
        return [line for line in text.splitlines() if line.startswith("gpu ")]


@pytest.fixture
def pods(host, monkeypatch):
    host.create([{"model": "H100-80GB", "count": 2}])
    fleet = LeaseFleet(host, monkeypatch)
    assert not fleet.apply([LEASED]).get("failed")
    return PodHost(fleet)


@pytest.fixture
def uuids(pods):
    [pool, _count] = pods.ask(op="pool")
    return [gpu["uuid"] for gpu in pool["gpus"]]


def test_pool_is_what_the_fixed_tenants_leave(pods):
    [pool, _count] = pods.ask(op="pool")
    first, second = pool["gpus"]
    assert (first["sm_percent"], second["sm_percent"]) == (100, 90)
    assert first["memory_bytes"] - second["memory_bytes"] == 8 * GIB
    assert (first["seats"], second["seats"]) == (64, 63)
    assert [(tenant["name"], tenant["uuids"]) for tenant in pool["tenants"]] == [("fixed", [second["uuid"]])]


def test_pod_has_its_quota_on_its_gpus(pods, uuids):
    answer = pods.prepare("a", uuids)
    assert answer["cdi"] == ["openfleet.io/vgpu=lease-1", *("nvidia.com/gpu=%s" % uuid for uuid in uuids)]
    assert [line.split()[1:6] for line in pods.quota(1)] == [
        [uuid, "memory", str(8 * GIB), "sm", "20"] for uuid in uuids
    ]
    # A pod's programs can have any user.
    region = pods.fleet.root / "run/openfleet-gpu/vgpu/tenants/lease-1/region.1"
    assert stat.S_IMODE(region.stat().st_mode) == 0o666
    assert pods.unprepare("a") == {"ended": 1} and pods.fleet.tenants() == ["fixed"]


def test_layout_has_no_drift_beside_leases_of_pods(pods, uuids):
    pods.prepare("a", uuids[:1])
    after = pods.fleet.apply([LEASED])
    assert not after.get("failed") and not after["changed"], after
    assert pods.ask(op="claims")[0] == {"claims": ["a"]}


def test_quota_without_room_is_refused_and_leaves_nothing(pods, uuids):
    pods.prepare("a", uuids[:1], percent=90)
    refused = pods.prepare("b", uuids[:1])
    assert "is not free. Free is: " in refused["error"]["problem"]
    assert pods.fleet.tenants() == ["fixed", "lease-1"]
    assert pods.ask(op="claims")[0] == {"claims": ["a"]}


def test_host_grants_no_lease_on_the_gpus_of_pods(pods):
    request = {"op": "take", "gpus": 1, "seconds": 3600, "wait": False, "number": None}
    [answer, _count] = pods.ask(shape={"memory_bytes": GIB, "sm_percent": 1}, **request)
    assert "no entry offers leases to root" in answer["error"]["problem"]


def test_random_pods_with_kills_leak_and_disturb_nothing(pods, uuids):
    """Kill the service, or fill its disk, at random steps of random pods.

    `disturbed` counts pods whose quota changed, and `leaked` quotas without a pod.
    """
    draw = random.Random(45)
    number = 200 if THOROUGH else 8
    running: dict[str, tuple[int, list[str]]] = {}
    disturbed = leaked = faults = 0

    def repeated(call, most):
        """Repeat a request with faults until it succeeds, as the kubelet does."""
        nonlocal faults
        while True:
            answer = call(FileFault(draw.randint(1, most), draw.choice(("kill", "kill-after", "full", ""))))
            if answer is not None and "error" not in answer:
                return answer
            faults += 1

    for count in range(number):
        claim = "pod-%d" % count
        place = uuids if draw.random() < 0.2 else [draw.choice(uuids)]
        size = {"memory": draw.randint(1, 8), "percent": draw.randint(1, 10)}
        taken = repeated(lambda fault, new=(claim, place), size=size: pods.prepare(*new, fault=fault, **size), 40)[
            "number"
        ]
        running[claim] = (taken, pods.quota(taken))
        if len(running) > 5:
            ended = draw.choice(sorted(running))
            del running[ended]
            repeated(lambda fault, claim=ended: pods.unprepare(claim, fault), 20)
        disturbed += sum(pods.quota(number) != lines for number, lines in running.values())
        leaked += len(set(pods.fleet.tenants()) - {"fixed"}) - len(running)
    assert (disturbed, leaked) == (0, 0) and faults > 0
    pods.ask(recover=True, op="claims")
    for claim in list(running):
        assert "ended" in pods.unprepare(claim)
    assert pods.fleet.tenants() == ["fixed"] and pods.ask(op="claims")[0] == {"claims": []}
    print("lease_disturbed %d, lease_leaked %d, faults %d, pods %d" % (disturbed, leaked, faults, number))
