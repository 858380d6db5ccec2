# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two runs on one host at once: the second one names the first, or waits until it is done."""

from __future__ import annotations

from gpu_hosts import HALF_WAY


def test_the_second_names_the_first_when_its_patience_ends(site, canary):
    canary.stop_at(*HALF_WAY)
    first = site("canary", layout_stage="second")
    pid = canary.until_stopped(first)
    half_done = canary.gpus()
    said = site("canary", gpu_layout_lock_timeout=1).failed("canary")
    assert "another run is changing the layout" in said and f"pid {pid} " in said, said
    assert canary.gpus() == half_done
    canary.go_on(pid)
    first.succeeded()
    assert canary.not_as("second") == []


def test_the_second_waits_and_finds_done_what_the_first_did(site, canary):
    canary.stop_at(*HALF_WAY)
    first = site("canary", layout_stage="second")
    pid = canary.until_stopped(first)
    half_done = canary.gpus()
    second = site("canary", layout_stage="second", gpu_layout_lock_timeout=300)
    canary.until_waiting_for(pid)
    assert canary.gpus() == half_done
    canary.go_on(pid)
    first.succeeded()
    second.succeeded()
    assert canary.not_as("second") == []
    # Every instance is the one that the first run made.
    (made,) = first.report["hosts"][0]["gpus"]
    there = [uuid for instance in canary.gpus()[0].instances.values() for uuid in instance.uuids]
    assert sorted(uuid for i in made["instances"] for uuid in i["mig_uuids"]) == sorted(there)
    assert second.report["totals"]["gpus_changed"] == 0
