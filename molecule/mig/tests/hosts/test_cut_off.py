# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs that do not get to their end, and runs that meet: the host has the old layout or the new one, and never a third."""

from __future__ import annotations

import pytest
from gpu_hosts import HALF_WAY


def test_a_run_whose_driver_refuses_a_step_brings_the_old_layout_back_at_once(site, canary):
    canary.fail_at(*HALF_WAY)
    said = site("canary", layout_stage="second").failed("canary")
    assert "Insufficient Resources" in said and "the layout of before is back" in said, said
    assert canary.not_as("first") == []
    assert not canary.cut_off


@pytest.mark.parametrize("name", ["TERM", "KILL"])
def test_the_run_after_one_that_was_killed_brings_the_old_layout_back(site, canary, name):
    canary.stop_at(*HALF_WAY)
    run = site("canary", layout_stage="second")
    pid = canary.until_stopped(run)
    canary.end(name, pid)
    run.failed("canary")
    assert canary.is_neither or (name == "TERM" and canary.not_as("first") == [])
    # It asks for what was there before: nothing but the clearing up brings it back.
    site("canary").succeeded()
    assert canary.not_as("first") == []
    assert not canary.cut_off


def test_a_run_that_loses_its_controller_leaves_no_third_layout(site, canary):
    canary.stop_at(*HALF_WAY)
    run = site("canary", layout_stage="second")
    pid = canary.until_stopped(run)
    run.kill()
    canary.end("CONT", pid)
    canary.until_unlocked()
    # It ends by itself, unless the hang-up of the connection ends it too: then the next run clears up.
    assert canary.cut_off or canary.not_as("second") == []
    site("canary").succeeded()
    assert canary.not_as("first") == []
    assert not canary.cut_off
