# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/reset.yml takes away what site.yml brought, and leaves the GPUs unless asked."""

from __future__ import annotations

import re

import pytest
from simulated_fleet import Fleet

METRICS = ("-e", "gpu_layout_metrics_dir=/srv/metrics")
LAYOUT = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}]


@pytest.fixture
def fleet(host, library, tmp_path):
    fleet = Fleet(tmp_path, library, ["one"])
    run = fleet.play({"one": LAYOUT}, *METRICS)
    assert run.returncode == 0, run.stdout + run.stderr
    assert (fleet.hosts["one"].folder / "root/srv/metrics").is_dir()
    return fleet


def reset(fleet, tmp_path, *arguments):
    # pynvml's folder is this machine's: another one stands for it.
    brought = tmp_path / "openfleet-gpu" / "python"
    brought.mkdir(parents=True, exist_ok=True)
    return fleet.play(
        {"one": LAYOUT},
        "-e",
        f"gpu_layout_nvml_directory={brought}",
        *METRICS,
        *arguments,
        playbook="playbooks/reset.yml",
    )


def traces(fleet, tmp_path):
    root = fleet.hosts["one"].folder / "root"
    state = fleet.hosts["one"].folder / "state.d"
    files = [str(path) for path in root.rglob("*") if path.is_file()]
    return files + [str(path) for path in (state, tmp_path / "openfleet-gpu") if path.exists()]


def test_nothing_is_left_but_the_gpus_as_they_were(fleet, tmp_path):
    assert traces(fleet, tmp_path)
    dry = reset(fleet, tmp_path, "--check")
    assert dry.returncode == 0, dry.stdout + dry.stderr
    assert traces(fleet, tmp_path)
    run = reset(fleet, tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert traces(fleet, tmp_path) == []
    assert not (fleet.hosts["one"].folder / "root/srv").exists()
    assert fleet.seen()["one"] == [("3g.40gb", 0), ("3g.40gb", 4)]


def test_a_second_time_there_is_nothing_to_take_away(fleet, tmp_path):
    reset(fleet, tmp_path)
    # What stands for pynvml's folder is made for each run.
    again = reset(fleet, tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert traces(fleet, tmp_path) == []
    changed = re.findall(r"^TASK \[(.*?)\][^\n]*\n(?:(?!TASK).*\n)*?changed:", again.stdout, flags=re.MULTILINE)
    assert changed == ["openfleet.gpu.gpu_layout : Remove pynvml"]


def test_instances_go_where_that_is_asked(fleet, tmp_path):
    run = reset(fleet, tmp_path, "-e", '{"gpu_layout_reset_instances": true}')
    assert run.returncode == 0, run.stdout + run.stderr
    assert fleet.seen()["one"] == []
