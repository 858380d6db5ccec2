# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that reset.yml removes what site.yml installed, and keeps the GPUs.

reset.yml removes instances only on request.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.integration.simulated_fleet import Fleet

METRICS = ("-e", "gpu_layout_metrics_dir=/srv/metrics")
LAYOUT = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}]


def brought(tmp_path, library, *names):
    """Return a fleet of hosts after site.yml has run."""
    fleet = Fleet(tmp_path, library, names)
    run = fleet.play(dict.fromkeys(fleet.hosts, LAYOUT), *METRICS, waves=["100%"])
    assert run.returncode == 0, run.stdout + run.stderr
    assert (fleet.hosts["one"].folder / "root/srv/metrics").is_dir()
    return fleet


@pytest.fixture
def fleet(host, library, tmp_path):
    return brought(tmp_path, library, "one", "two")


@pytest.fixture
def lone(host, library, tmp_path):
    return brought(tmp_path, library, "one")


def reset(fleet, tmp_path, *arguments, hosts=("one",)):
    # pynvml's default folder belongs to this machine, so the test uses another folder. All hosts of the test use the
    # same folder, so --forks=1 lets only one host at a time remove it.
    brought = tmp_path / "openfleet-gpu" / "python"
    brought.mkdir(parents=True, exist_ok=True)
    return fleet.play(
        dict.fromkeys(hosts, LAYOUT),
        "--forks=1",
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


@pytest.mark.thorough
def test_reset_removes_everything_and_keeps_gpus_by_default(fleet, tmp_path):
    assert traces(fleet, tmp_path)
    dry = reset(fleet, tmp_path, "--check")
    assert dry.returncode == 0, dry.stdout + dry.stderr
    assert traces(fleet, tmp_path)
    # Only the second host's variables request the removal of instances. Neither layout is valid, because a reset needs
    # no layout.
    asked = {"gpu_layout_reset_instances": "{{ inventory_hostname == 'two' }}"}
    fleet.more["one"] = {"gpu_layout": [dict(LAYOUT[0], sharing="shraed")]}
    fleet.more["two"] = {"gpu_layout": [dict(LAYOUT[0], sharing="{{ no_such_variable }}")]}
    run = reset(fleet, tmp_path, "-e", json.dumps(asked), hosts=fleet.hosts)
    assert run.returncode == 0, run.stdout + run.stderr
    assert traces(fleet, tmp_path) == []
    assert not (fleet.hosts["one"].folder / "root/srv").exists()
    assert fleet.seen() == {"one": [("3g.40gb", 0), ("3g.40gb", 4)], "two": []}
    said = " ".join(run.stdout.split())
    assert "one: MIG mode stays on, with its instances, on GPUs 0." in said and "two: MIG mode" not in said

    # The second run has nothing to remove, except the test's folder for pynvml, which each run creates again.
    again = reset(fleet, tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert traces(fleet, tmp_path) == []
    changed = re.findall(r"^TASK \[(.*?)\][^\n]*\n(?:(?!TASK).*\n)*?changed:", again.stdout, flags=re.MULTILINE)
    assert changed == ["openfleet.gpu.gpu_layout : Remove pynvml"]


@pytest.mark.parametrize(
    ("group", "variable"),
    [
        ("gpu_monitoring", "gpu_monitoring_state"),
        pytest.param("gpu_audit", "gpu_audit_state", marks=pytest.mark.thorough),
    ],
)
def test_wrong_variable_of_a_later_play_stops_the_reset_before_any_change(lone, tmp_path, group, variable):
    before = traces(lone, tmp_path)
    lone.groups[group] = {"hosts": {"watcher": {variable: "gone"}}}
    run = reset(lone, tmp_path)
    said = " ".join((run.stdout + run.stderr).split())
    assert run.returncode != 0
    assert 'watcher: %s: unknown value "gone"' % variable in said and "Nothing was changed." in said
    assert "Remove everything the collection installed" not in said
    # The test created this folder for pynvml itself.
    assert [path for path in traces(lone, tmp_path) if path != str(tmp_path / "openfleet-gpu")] == before
