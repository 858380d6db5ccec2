# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""site.yml by the real ansible-playbook, on hosts that are folders of this machine, with a state file each."""

from __future__ import annotations

import json
import os
import stat

import pytest
from simulated_fleet import Fleet

LAYOUT = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}]


@pytest.fixture
def fleet(host, library, tmp_path):
    return Fleet(tmp_path, library, ["one", "two", "three"])


def modes(folder):
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


def waves_of(run):
    return run.stdout.count("PLAY [Apply (in waves, a canary first)]")


@pytest.mark.core
def test_it_applies_reports_and_is_idempotent(fleet, tmp_path):
    report = tmp_path / "reports" / "site"
    former = os.umask(0)
    try:
        first = fleet.play(dict.fromkeys(fleet.hosts, LAYOUT), "-e", f"gpu_report_dir={report}", waves=[3])
    finally:
        os.umask(former)
    assert first.returncode == 0, first.stdout + first.stderr
    assert waves_of(first) == 1
    assert all(seen == [("3g.40gb", 0), ("3g.40gb", 4)] for seen in fleet.seen().values())
    for host in fleet.hosts.values():
        assert json.loads((host.folder / "root/etc/openfleet-gpu/layout.json").read_text()) == LAYOUT
        assert (host.folder / "root/etc/systemd/system/gpu-layout.service").exists()
    written = json.loads((report / "report.json").read_text())
    assert written["totals"]["create"] == 6
    assert written["totals"]["hosts_changed"] == 3
    assert "asked    mig: 2x 3g.40gb" in (report / "report.txt").read_text()
    assert (report / "report.html").read_text().count("grid-column: ") == 6
    # It tells of users and their command lines.
    private = {"site": 0o750, "report.txt": 0o640, "report.json": 0o640, "report.html": 0o640}
    assert modes(report.parent) == private
    for file in report.iterdir():
        file.chmod(0o644)
    second = fleet.play(dict.fromkeys(fleet.hosts, LAYOUT), "-e", f"gpu_report_dir={report}", waves=[1])
    assert second.returncode == 0, second.stdout + second.stderr
    assert waves_of(second) == 3
    assert second.stdout.count("changed=0") == 3
    assert modes(report.parent) == private
    assert "0 created, 0 destroyed, 6 kept; 0 of 3 hosts changed" in " ".join(second.stdout.split())
    # An inventory without monitoring lacks nothing.
    assert "PLAY [Watch the fleet]" in second.stdout
    assert "WARNING" not in second.stdout + second.stderr


@pytest.mark.core
def test_the_typo_of_the_last_host_stops_the_run_before_the_first_is_touched(fleet):
    typo = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.45gb"}]}]
    run = fleet.play({"one": LAYOUT, "two": LAYOUT, "three": typo})
    assert run.returncode != 0
    assert "there is no profile 3g.45gb" in run.stdout + run.stderr
    assert "fatal: [three]" in run.stdout + run.stderr
    assert fleet.seen() == {"one": [], "two": [], "three": []}


@pytest.mark.core
def test_a_dry_run_shows_the_steps_and_changes_nothing(fleet):
    run = fleet.play(dict.fromkeys(fleet.hosts, LAYOUT), "--check", "--diff")
    assert run.returncode == 0, run.stdout + run.stderr
    # Where the inventory says nothing of waves: one host, a quarter, the rest.
    assert waves_of(run) == 3
    assert run.stdout.count("gpu 0: enable MIG mode, create 3g.40gb@0, create 3g.40gb@4") >= 3
    assert "+gpu 0: MIG on: 3g.40gb@0, 3g.40gb@4" in run.stdout
    assert fleet.seen() == {"one": [], "two": [], "three": []}


def test_a_host_without_a_layout_is_named(fleet):
    run = fleet.play({"one": LAYOUT, "two": None, "three": LAYOUT})
    assert run.returncode != 0
    assert "fatal: [two]" in run.stdout + run.stderr
    assert "gpu_layout" in run.stdout + run.stderr
    assert fleet.seen() == {"one": [], "two": [], "three": []}
