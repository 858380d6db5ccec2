# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""On the finished fleet: a dry run finds nothing to do, and the report tells of all hosts."""

from __future__ import annotations

import json
import os

from fleet import LAB, play_and_read

HOSTS = ["a100", "h100", "l40s", "pro6000"]


def test_a_dry_run_on_the_finished_fleet_finds_nothing_to_do():
    # The settings of molecule.yml: the unit that restores the layout at boot carries them.
    settings = "--extra-vars=gpu_layout_unlisted=remove"
    run = play_and_read("site.yml", "check-finished.json", "--check", "--diff", settings)
    assert sorted(run.hosts) == sorted([*HOSTS, "monitor"])
    assert run.changes == ()


def test_the_report_tells_of_every_host():
    report = json.loads((LAB / f"report-{os.environ['OPENFLEET_LAB']}" / "report.json").read_text())
    assert sorted(host["name"] for host in report["hosts"]) == HOSTS
    # 8 + 4 + 2 + 2 GPUs, as inventories/simulated has them.
    assert report["totals"]["gpus"] == 16
    assert report["totals"]["gpus_changed"] == 0, "the last run before this was the one that changed nothing"
