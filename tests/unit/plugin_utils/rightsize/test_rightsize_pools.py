# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Propose from histories how many GPUs leases need."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy")

from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.pools import Course, propose, to_change
from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.model import Policy

STEPS, STEP = 1000, 300


def proposed(leased=0.0, waiting=0.0, offered=2.0, gpus=2, policy=None):
    rows = [np.broadcast_to(np.asarray(value, float), STEPS).copy() for value in (offered, leased, waiting)]
    return propose("a", "gpu_layout[0]", Course(STEP, gpus, *rows), policy or Policy())


def at_times(value, count, other=0.0):
    """Return a series with `value` at `count` of the times, and `other` at the rest."""
    return [value] * count + [other] * (STEPS - count)


def test_unused_pool_needs_no_gpu():
    pool = proposed()
    assert pool.proposed_gpus == 0 and to_change(pool) == "shrink from 2 to 0 GPUs"
    assert pool.reason.startswith("There was no lease and no waiting request in 83.3 hours")


@pytest.mark.parametrize("count,gpus", [(9, 1), (11, 3)])
def test_rare_need_is_left_to_the_queue(count, gpus):
    """Propose the GPUs that cover the need in 99 % of the time."""
    assert proposed(leased=at_times(2.0, count, 1.0), waiting=at_times(1.0, count)).proposed_gpus == gpus


def test_more_confidence_covers_rare_needs():
    assert proposed(leased=at_times(2.0, 9, 1.0), policy=Policy(confidence=0.999)).proposed_gpus == 2


def test_gpus_with_fixed_instances_offer_less():
    # Leases have half of each GPU, so a need of one GPU takes two GPUs.
    assert proposed(leased=1.0, offered=1.0, gpus=2).proposed_gpus == 2
    assert proposed(leased=1.1, offered=1.0, gpus=2).proposed_gpus == 3


def test_rounded_metrics_need_no_further_gpu():
    assert proposed(leased=7 * (1 / 7) + 1e-9, gpus=2).proposed_gpus == 1


def test_full_pool_may_have_refused_requests():
    assert "may have been refused" in proposed(leased=1.9).reason
    assert "may have been refused" not in proposed(leased=1.0).reason


def test_short_or_incomplete_history_proposes_nothing():
    missing = [np.nan] * 990 + [2.0] * 10
    assert proposed(offered=missing).proposed_gpus is None
    gaps = [2.0] + [np.nan] * 600 + [2.0] * 399
    pool = proposed(offered=gaps)
    assert pool.proposed_gpus is None and pool.reason == "Too little data: 33.3 hours of samples."
    assert to_change(pool) == "no change"


def test_times_before_the_pool_do_not_count():
    late = [np.nan] * 500 + [2.0] * 500
    pool = proposed(offered=late, leased=at_times(2.0, 500, 0.5))
    assert (pool.proposed_gpus, pool.leased_max_gpus, pool.hours) == (1, 0.5, 41.7)


def test_entry_without_room_is_named():
    assert (
        proposed(offered=0.0).reason == "Fixed instances and tenants use all GPUs of the entry, so leases get nothing."
    )
