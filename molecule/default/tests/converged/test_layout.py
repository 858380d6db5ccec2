# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""After a run: each GPU is as the inventory asks, in the words of NVIDIA's nvidia-smi."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fleet import play_and_read
from verify_layout import differences

HOSTS = ["h100", "a100", "pro6000", "l40s"]


@pytest.mark.parametrize("name", HOSTS)
def test_every_gpu_is_as_asked(gpus_of, host_vars, name):
    assert differences(host_vars(name), gpus_of(name)) == []


def test_a_pinned_instance_stands_where_it_was_pinned(gpus_of):
    pinned = [instance for instance in gpus_of("h100")[3].instances.values() if instance.profile == "1g.10gb+me"]
    assert [instance.start for instance in pinned] == [6]


def test_the_combination_that_fails_in_written_order_stands(gpus_of):
    # MIG User Guide, "Creating GPU Instances": 19,19,14,9 without placements ends in insufficient resources.
    profiles = sorted(instance.profile for instance in gpus_of("a100")[0].instances.values())
    assert profiles == ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]


def test_a_dry_run_on_the_finished_fleet_finds_nothing_to_do():
    run = play_and_read("site.yml", "check-finished.json", "--check", "--diff")
    assert sorted(run.hosts) == sorted(HOSTS)
    assert run.changes == ()


def test_the_report_tells_of_every_host():
    report = json.loads((Path(__file__).resolve().parents[4] / ".lab" / "report-test" / "report.json").read_text())
    assert all(name in json.dumps(report) for name in HOSTS)
