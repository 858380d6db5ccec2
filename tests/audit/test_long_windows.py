# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that audits read windows of several days from 15-minute roll-ups.

Audits use these only if they reach as far back as the five-minute roll-ups.
"""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.prometheus import Access, Prometheus
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.signals import read
from tests.audit.fleet_history import GIB, Device, prometheus, since, steady

HOURS = 96
BEGAN = HOURS - 30


def burst(hour):
    """Return 1 for five minutes in each hour."""
    return 1.0 if round(hour * 12) % 12 == 4 else 0.0


def quarters(course):
    return lambda hour: course(hour) if round(hour * 12) % 3 == 0 else None


def peak(low, high):
    """Return a course that is high for one quarter in each hour.

    This quarter ends at half past and contains the burst.
    """
    return quarters(lambda hour: high if round(hour * 12) % 12 == 6 else low)


FIVE = {
    "gpu:compute_active_ratio:avg5m": burst,
    "gpu:memory_used_bytes:max5m": lambda hour: (10 + 30 * burst(hour)) * GIB,
}
FIFTEEN = {
    "gpu:compute_active_ratio:avg15m": peak(0.0, 1 / 3),
    "gpu:compute_active_ratio:max15m": peak(0.0, 1.0),
    "gpu:memory_used_bytes:max15m": peak(10 * GIB, 40 * GIB),
    "gpu:memory_bandwidth_active_ratio:avg15m": quarters(steady(0.4)),
    "gpu:tensor_active_ratio:avg15m": quarters(steady(0.3)),
    "gpu:processes:max15m": quarters(steady(1)),
}


def stats(url, hours):
    """Return the statistics of the only GPU over a number of hours."""
    (record,) = read(Prometheus(Access(url)), hours * 3600.0).records.values()
    return record.stats


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Serve a history with both roll-ups for the whole time."""
    with prometheus([Device("a", 0, series={**FIVE, **FIFTEEN})], HOURS, tmp_path_factory.mktemp("both")) as url:
        yield url


@pytest.fixture(scope="module")
def late(tmp_path_factory):
    """Serve a history whose longer roll-ups exist only for the last day."""
    began = {name: since(BEGAN, course) for name, course in FIFTEEN.items()}
    with prometheus([Device("a", 0, series={**FIVE, **began})], HOURS, tmp_path_factory.mktemp("late")) as url:
        yield url


def test_days_are_read_from_the_longer_ones(both):
    compute = stats(both, HOURS - 1)["compute"]
    # The average is 1/3 in one of four quarters. The roll-up keeps the peak for statistics that ask for the maximum.
    assert (compute.p50, compute.p95) == (0.0, pytest.approx(1 / 3))
    assert (compute.p99, compute.max) == (1.0, 1.0)
    assert compute.mean == pytest.approx(1 / 12, rel=0.05)
    memory = stats(both, HOURS - 1)["memory"]
    assert (memory.p50, memory.p95, memory.max) == (10 * GIB, 40 * GIB, 40 * GIB)


def test_a_sample_of_them_stands_for_a_quarter_of_an_hour(both):
    for name, stat in stats(both, HOURS - 1).items():
        assert stat.coverage_ratio == pytest.approx(1.0, abs=0.02), name


def test_a_day_is_read_from_the_shorter_ones(both):
    compute = stats(both, 24)["compute"]
    # One of twelve values is 1, which is more than 5 %.
    assert (compute.p50, compute.p95, compute.max) == (0.0, 1.0, 1.0)


def test_longer_ones_that_came_later_are_left_alone(late):
    found = stats(late, HOURS - 1)
    assert found["compute"].p95 == 1.0
    assert all(stat.coverage_ratio > 0.97 for stat in found.values())
