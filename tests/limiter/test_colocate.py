# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test online and offline tenants (policy `colocate`) on the stub GPU.

Shares and delays are measured in simulated time. The benchmark group `colocate` measures all loads.
"""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.counters import read as read_counters
from tests.limiter.agent_lab import make_tenant, wait_until
from tests.limiter.colocation import MS, REQUEST_NS, WATERLINE, Colocation
from tests.limiter.limiter_lab import OUT

#: Length of each run in simulated seconds.
LENGTH = 2
GIB = 1 << 30
#: A share is exact only up to one late wake-up in each loop of the offline program.
TOLERANCE = 0.05


@pytest.fixture
def gpu(tmp_path, built):
    """Return a function that creates a GPU with colocated tenants."""
    made = []

    def make(**options) -> Colocation:
        made.append(Colocation(tmp_path / str(len(made)), built, **options))
        return made[-1]

    return make


def ends(gpu, offline_ns=None, load=50, preload=True):
    world = gpu()
    world.online(load, LENGTH, preload=preload)
    if offline_ns is not None:
        world.offline(offline_ns, LENGTH)
    return world.run(LENGTH)


@pytest.mark.parametrize("kernel_ns", [MS // 50, MS, 5 * MS, 50 * MS])
def test_an_online_request_is_delayed_by_at_most_one_offline_kernel(gpu, kernel_ns):
    alone, shared = ends(gpu, preload=False), ends(gpu, kernel_ns)
    assert shared.offline[0].launches, "the offline program never ran"
    pairs = zip(alone.online[0].requests, shared.online[0].requests)
    delays = [after[2] - before[2] for before, after in pairs]
    assert max(delays) <= max(kernel_ns, MS)


@pytest.mark.parametrize("kernel_ns", [MS // 50, MS, 50 * MS])
def test_no_offline_launch_begins_during_a_burst_of_online_work(gpu, kernel_ns):
    shared = ends(gpu, kernel_ns)
    assert len(shared.online[0].bursts()) > 5
    assert shared.resume_ns() <= 20 * MS


def test_an_online_tenant_alone_is_not_slowed_down(gpu):
    alone, limited = ends(gpu, preload=False), ends(gpu)
    assert limited.online[0].requests == alone.online[0].requests


@pytest.mark.parametrize("load", [10, 60])
def test_offline_work_fills_the_gpu_up_to_the_waterline(gpu, load):
    shared = ends(gpu, MS, load)
    total = (shared.online[0].busy_ns + shared.offline[0].busy_ns) / 1e9 / LENGTH
    assert total == pytest.approx(WATERLINE / 100, abs=TOLERANCE)


def test_several_offline_tenants_stay_below_the_waterline_together(gpu):
    # One tenant may have had one turn more than the other. The longer the run, the less a turn matters for the share.
    world, seconds = gpu(waterline=50), 3 * LENGTH
    for _ in range(3):
        world.offline(MS, seconds, sm=30)
    shares = [one.busy_ns / 1e9 / seconds for one in world.run(seconds).offline]
    assert sum(shares) == pytest.approx(0.5, abs=TOLERANCE)
    assert min(shares) == pytest.approx(max(shares), abs=TOLERANCE)


@pytest.mark.parametrize("shares", [(60, 20), (20, 60), (10, 30)])
def test_offline_tenants_get_their_shares_before_they_use_more(gpu, shares):
    world = gpu()
    for sm in shares:
        world.offline(MS, LENGTH, sm=sm)
    found = [100 * one.busy_ns / 1e9 / LENGTH for one in world.run(LENGTH).offline]
    assert sum(found) == pytest.approx(WATERLINE, abs=100 * TOLERANCE)
    for share, got in zip(shares, found):
        assert got >= share - 100 * TOLERANCE


@pytest.mark.parametrize(("before", "after"), [(80, 40), (40, 80)])
def test_a_new_waterline_reaches_running_programs(gpu, before, after):
    world = gpu(waterline=before)
    for _ in range(2):
        tenant = world.offline(MS, LENGTH * 3)
        quota, new = tenant.folder / "quota", tenant.folder / "new"
        new.write_text(quota.read_text().replace(f"waterline {before}", f"waterline {after}"))
        new.chmod(0o644)
        world.rename_at(tenant, LENGTH, new, quota)
    offline = world.run(LENGTH * 3).offline
    first = sum(one.renamed_ns for one in offline) / 1e9 / LENGTH
    # A program reads its quota once a second, so the time around the change is not checked.
    late = sum(sum(ns > 1.5 * LENGTH * 1e9 for ns in one.launches) for one in offline) * MS / 1e9 / (1.5 * LENGTH)
    assert first == pytest.approx(before / 100, abs=TOLERANCE)
    assert late == pytest.approx(after / 100, abs=TOLERANCE)


def test_an_online_tenant_that_becomes_offline_gives_way(gpu):
    """Change the latency of a running tenant.

    The tenant's program then stays below the waterline.
    """
    world = gpu(waterline=50)
    tenant = world.offline(MS, LENGTH * 3)
    quota, new = tenant.folder / "quota", tenant.folder / "new"
    new.write_text(quota.read_text())
    new.chmod(0o644)
    tenant.write(quota.read_text().replace("priority 1", "priority 0"))
    world.rename_at(tenant, LENGTH, new, quota)
    (offline,) = world.run(LENGTH * 3).offline
    assert offline.renamed_ns / 1e9 / LENGTH > 0.95
    late = sum(ns > 1.5 * LENGTH * 1e9 for ns in offline.launches) * MS / 1e9 / (1.5 * LENGTH)
    assert late == pytest.approx(0.5, abs=TOLERANCE)


def test_two_online_tenants_share_the_gpu_and_offline_work_waits_for_both(gpu):
    world = gpu()
    world.online(30, LENGTH, seed=1)
    world.online(30, LENGTH, seed=2)
    world.offline(MS, LENGTH)
    shared = world.run(LENGTH)
    assert shared.resume_ns() <= 20 * MS
    # A request takes its own time, up to the same time for the other tenant, and the rest of an offline kernel.
    for online in shared.online:
        assert online.latency_ns(50) <= 3 * REQUEST_NS


def test_the_agent_shows_waits_shares_and_turns_given_up(gpu, agent):
    """Compare the counters in the tenants' pages with the programs' own measurements."""
    world = gpu()
    online, offline = world.online(30, LENGTH), world.offline(5 * MS, LENGTH)
    for tenant in (online, offline):
        make_tenant(tenant)
    agent.root = online.root
    agent.start()
    shared = world.run(LENGTH)
    uuid, bursts, requests = world.card.uuid(), shared.online[0].bursts(), shared.online[0].requests

    def found():
        counters = read_counters(online.root)
        return counters if counters and counters[(uuid, 0)].starts >= len(bursts) else None

    wait_until(found, "the agent shows the last values")
    served, trained = found()[(uuid, 0)], found()[(uuid, 1)]
    assert served.used_ns == pytest.approx(shared.online[0].busy_ns, rel=TOLERANCE)
    assert trained.used_ns == pytest.approx(shared.offline[0].busy_ns, rel=TOLERANCE)
    assert 0 < trained.gave_way <= len(bursts)
    # If a request follows another one at once, the GPU still has work. Other requests wait for at most one kernel of 5
    # ms.
    waited = dict(served.waited_more)
    assert len(requests) >= served.starts >= waited[0.001] >= waited[0.002] > 0
    assert waited[0.01] == waited[0.02] == waited[0.05] == 0
    assert 0 < served.waits_ns <= len(requests) * 6 * MS


def test_offline_memory_is_refused_above_the_waterline(gpu, built):
    world = gpu(waterline=50)
    total = world.card.memory
    online = world.tenant("online", memory=total)
    offline = world.tenant("offline", memory=total)
    with online.client() as first, offline.client() as second:
        assert first.call("cuMemAlloc_v2", OUT, total // 2 - 2 * GIB)[0] == 0
        result, words = second.call("cuMemAlloc_v2", OUT, GIB)
        assert result == 0
        assert second.call("cuMemAlloc_v2", OUT, 2 * GIB)[0] == 2
        # The online tenant may go above the waterline, and the offline tenant keeps its memory.
        assert first.call("cuMemAlloc_v2", OUT, 2 * GIB)[0] == 0
        assert offline.used() >= GIB
        assert second.call("cuMemAlloc_v2", OUT, 1 << 20)[0] == 2
        assert second.call("cuMemFree_v2", words[0])[0] == 0


@pytest.mark.parametrize("waterline", [1, 33, 80, 100])
def test_offline_memory_is_allowed_exactly_up_to_the_waterline(gpu, waterline):
    world = gpu(waterline=waterline)
    total = world.card.memory
    offline = world.tenant("offline", memory=total)
    with offline.client() as client:
        left = total * waterline // 100 - (total - client.memory()[0])
        assert client.call("cuMemAlloc_v2", OUT, left + 1)[0] == 2
        assert client.call("cuMemAlloc_v2", OUT, left)[0] == 0
        assert client.call("cuMemAlloc_v2", OUT, 1)[0] == 2
