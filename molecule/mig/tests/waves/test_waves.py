# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that a failed host ends the run before hosts of later waves change.

The three waves are: canary, then hopper, then ampere and ada.
"""

from __future__ import annotations

import pytest
from gpu_hosts import HALF_WAY

from tests.lab.lab_fixtures import boot_time, wait_until_up
from tests.thorough import THOROUGH


@pytest.fixture
def later(fleet):
    """Return a function that checks that the hosts of the last wave are unchanged.

    Even the UUIDs of their instances must be the same.
    """
    before = [host.gpus() for host in fleet[2:]]
    return lambda: "as before" if [host.gpus() for host in fleet[2:]] == before else "changed"


def test_failed_host_is_rolled_back_and_ends_the_waves(site, fleet, later):
    canary, hopper, *_ = fleet
    hopper.fail_at(*HALF_WAY)
    said = site(layout_stage="second").failed("hopper")
    assert "the previous layout was restored" in said
    assert canary.not_as("second") == []
    assert hopper.not_as("first") == [] and not hopper.cut_off
    assert later() == "as before"
    if THOROUGH:
        # As a control, the same run completes all waves without the fault.
        site(layout_stage="second").succeeded()
        assert [host.not_as("second") for host in fleet] == [[], [], [], []]
        assert later() == "changed"


def test_host_that_loses_power_ends_the_waves_and_recovers(site, fleet, later):
    canary, hopper, *_ = fleet
    hopper.stop_at(*HALF_WAY)
    run = site(layout_stage="second")
    hopper.until_stopped(run)
    assert hopper.is_neither
    started = boot_time(hopper.host)
    hopper.podman("kill")
    try:
        run.failed("hopper")
        assert canary.not_as("second") == []
        assert later() == "as before"
    finally:
        hopper.podman("start")
    # The boot unit restores the old layout, so no run is needed.
    wait_until_up(hopper.host, started)
    assert hopper.not_as("first") == [] and not hopper.cut_off


# The host has lost power, and is still unreachable when the next wave would begin.
@pytest.mark.thorough
def test_unreachable_host_in_a_wave_ends_the_waves(site, fleet, later):
    canary, hopper, ampere, _ = fleet
    # Before the canary changes, all plans are complete.
    canary.stop_at(*HALF_WAY)
    run = site(layout_stage="second")
    pid = canary.until_stopped(run)
    hopper.podman("pause")
    try:
        canary.go_on(pid)
        said = run.failed(hopper.name, ampere.name)
    finally:
        hopper.podman("unpause")
    assert (
        "UNREACHABLE" in said
        and f"Wave not started (ampere, ada): {hopper.name} failed or was unreachable in an earlier wave." in said
    )
    assert canary.not_as("second") == []
    assert hopper.not_as("first") == []
    assert later() == "as before"


def test_unreachable_host_at_the_start_prevents_all_waves(site, fleet):
    *reached, ada = fleet
    before = [host.gpus() for host in reached]
    ada.podman("pause")
    try:
        said = site(layout_stage="second").failed(ada.name)
        assert "UNREACHABLE" in said and f"No plan for {ada.name} (could not be reached). Fix this host" in said
    finally:
        ada.podman("unpause")
    assert [host.gpus() for host in reached] == before
