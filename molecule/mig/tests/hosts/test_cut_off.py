# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that hosts have the old or the new layout after interrupted changes."""

from __future__ import annotations

import pytest
from gpu_hosts import HALF_WAY


@pytest.fixture
def has_its_old_layout(apply, canary):
    """Return a function that checks that the next run restores the old layout.

    The next run requests the old layout, so only the recovery can restore it.
    """

    def check() -> None:
        apply(canary, "first").succeeded()
        assert canary.not_as("first") == []
        assert not canary.cut_off

    return check


def test_refused_step_rolls_back_at_once(apply, canary):
    canary.fail_at(*HALF_WAY)
    said = apply(canary, "second").failed()
    assert "Insufficient Resources" in said and "the previous layout was restored" in said, said
    assert canary.not_as("first") == []
    assert not canary.cut_off


@pytest.mark.parametrize("name", ["KILL", pytest.param("TERM", marks=pytest.mark.thorough)])
def test_run_after_a_kill_restores_the_old_layout(site, canary, has_its_old_layout, name):
    canary.stop_at(*HALF_WAY)
    run = site("canary", layout_stage="second")
    pid = canary.until_stopped(run)
    canary.end(name, pid)
    run.failed("canary")
    assert canary.is_neither or (name == "TERM" and canary.not_as("first") == [])
    has_its_old_layout()


def test_run_after_sigterm_restores_the_old_layout(apply, canary, has_its_old_layout):
    canary.stop_at(*HALF_WAY)
    run = apply(canary, "second")
    pid = canary.until_stopped(run)
    canary.end("TERM", pid)
    assert run.end().process.returncode != 0, run.told
    assert canary.is_neither or canary.not_as("first") == []
    has_its_old_layout()


def test_lost_controller_leaves_the_old_or_the_new_layout(site, canary, has_its_old_layout):
    canary.stop_at(*HALF_WAY)
    run = site("canary", layout_stage="second")
    pid = canary.until_stopped(run)
    run.kill()
    canary.end("CONT", pid)
    canary.until_unlocked()
    # The run either continues to its end, or ends because its connection hangs up. In the second case, the next run
    # recovers.
    assert canary.cut_off or canary.not_as("second") == []
    has_its_old_layout()
