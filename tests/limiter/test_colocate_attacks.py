# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what an offline tenant can do to other tenants by writing to its own page.

As on hosts, the agent runs, so the tenant can write only its own page.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.limiter.agent_lab import Pause, handed, make_tenant, own, own_page
from tests.limiter.colocation import MS, WATERLINE, Colocated, Colocation
from tests.limiter.sm import World
from tests.limiter.turnstile_lab import Seat

#: Simulated seconds: the length of each run, and the time of the attack.
LENGTH, ATTACK = 3, 1
LOAD = 50
TOLERANCE = 0.05
FOREVER = 2**62

HOSTILE = {
    "has-work-forever": {"active_until": FOREVER, "waiting_until": FOREVER, "due": FOREVER},
    "has-work-for-a-second": {"due": 10**9 + 900 * MS},
    "lease-forever": {"lease": 4095 << 48 | (1 << 48) - 1},
    "says-that-it-is-online": {"priority": 0, "percent": 100},
    "used-everything": {"used_ns": FOREVER},
    "used-nothing": {"used_ns": 0, "paid_until": -FOREVER},
    "counts-of-another": {"passes": FOREVER, "waits": FOREVER, "late": FOREVER, "launches": FOREVER},
}


def attacked(folder: Path, built, agent, offline: list[int], fields: dict[str, int], length: int = LENGTH) -> Colocated:
    """Run online work and offline tenants, one of which attacks.

    The first offline tenant writes `fields` into its page. `offline` has the length in ns of each tenant's kernels.
    """
    world = Colocation(folder, built)
    world.online(LOAD, length)
    for kernel_ns in offline:
        world.offline(kernel_ns, length)
    for tenant in world.tenants():
        make_tenant(tenant)
    clock = World(folder, built)
    attacker = world.tenants()[1]
    pause = Pause(clock, attacker, ATTACK)
    agent.start()
    started = world.start(parties=1)
    clock.start(parties=len(started))
    with pause, handed(own(attacker)) as found:
        for name, value in fields.items():
            size = 4 if name in ("percent", "priority") else 8
            word = (value % (1 << 8 * size)).to_bytes(size, "little")
            os.pwrite(own_page(clock, found, 1), word, getattr(Seat, name).offset)
    clock.finish()
    return world.finish(started, length)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, built):
    """Return the online work without other tenants and without the limiter."""
    world = Colocation(tmp_path_factory.mktemp("alone"), built)
    world.online(LOAD, LENGTH, preload=False)
    return world.run(LENGTH).online[0]


@pytest.mark.parametrize("write", HOSTILE)
def test_a_hostile_write_does_not_delay_online_work(tmp_path, built, agent, alone, write):
    shared = attacked(tmp_path, built, agent, [MS], HOSTILE[write])
    delays = [after[2] - before[2] for before, after in zip(alone.requests, shared.online[0].requests)]
    assert max(delays) <= MS
    assert shared.resume_ns() <= 20 * MS


@pytest.mark.parametrize("write", [name for name in HOSTILE if name != "used-everything"])
def test_a_hostile_write_gets_no_time_above_the_waterline(tmp_path, built, agent, write):
    """Check that the GPU time of all tenants together stays below the waterline.

    The other offline tenant, which is honest, must keep the sum below it.
    """
    shared = attacked(tmp_path, built, agent, [MS, MS], HOSTILE[write])
    total = (shared.online[0].busy_ns + sum(one.busy_ns for one in shared.offline)) / 1e9 / LENGTH
    assert total <= WATERLINE / 100 + TOLERANCE
    # The honest offline tenant waits for a lease, or until it ignores the attacker, but no longer.
    assert shared.offline[1].launches[-1] > 0.9 * LENGTH * 1e9


def test_a_forged_use_stops_offline_tenants_for_seconds(tmp_path, built, agent, alone):
    """Write once that all GPU time is used, which only offline tenants believe.

    They believe at most one second of use, and wait until it is made up for. Online work does not wait.
    """
    shared = attacked(tmp_path, built, agent, [MS, MS], HOSTILE["used-everything"], 2 * LENGTH)
    delays = [after[2] - before[2] for before, after in zip(alone.requests, shared.online[0].requests)]
    assert max(delays) <= MS
    launches = [ns / 1e9 for ns in shared.offline[1].launches]
    # Online work leaves 30 % of the time below the waterline, so it takes 3.3 seconds to make up for one second.
    assert not [when for when in launches if ATTACK + 0.5 < when < ATTACK + 1.5]
    assert [when for when in launches if ATTACK + 4.5 < when < 2 * LENGTH]
