# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""All or nothing: runs that are killed, that fail, or that meet each other."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from fault_sweep import Sweep, random_transitions

H100 = [{"model": "H100-80GB", "count": 2}]


def mig(gpu, *profiles):
    return {"gpus": [gpu], "sharing": "mig", "mig": [{"profile": p} for p in profiles]}


OLD = [mig(0, "3g.40gb", "2g.20gb", "1g.10gb")]
NEW = [mig(0, "3g.40gb", "1g.20gb", "1g.20gb"), mig(1, "4g.40gb")]


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(4))
def test_a_fault_anywhere_ends_in_the_old_layout_or_the_new_one(host, library, seed, monkeypatch):
    """A sample; `make bench BENCH=mig` sweeps every call of many transitions."""
    monkeypatch.setenv("GPUSIM_STATE", str(host.folder / "state"))
    (transition,) = random_transitions(seed, 1)
    endings = list(Sweep(host.folder, library).transition(*transition, most=120))
    assert len(endings) == 120
    assert [ending for ending in endings if ending.wrong] == []


def test_the_run_after_a_kill_brings_the_old_layout_back_and_goes_on(host):
    host.create(H100)
    host.module("mig", layout=OLD)
    there = host.seen()
    host.gpusim("fail", "nvmlDeviceCreateGpuInstanceWithPlacement", "--nth", "2", "--code", "kill")
    with pytest.raises(AssertionError, match="exit -9"):
        host.module("mig", layout=NEW)
    assert host.seen() != there, "the kill came after the first change"
    # A run that asks for what was there before finds it there again.
    cleared = host.module("mig", layout=OLD)
    assert cleared["recovered"] == "old", cleared
    assert cleared["changed"]
    assert host.seen() == there
    assert "recovered" not in host.module("mig", layout=OLD)


def test_a_run_killed_after_its_last_step_has_reached_the_new_layout(host):
    host.create(H100)
    host.module("mig", layout=OLD)
    host.gpusim("fail", "nvmlGpuInstanceCreateComputeInstance", "--nth", "3", "--code", "kill-after")
    with pytest.raises(AssertionError, match="exit -9"):
        host.module("mig", layout=NEW)
    there = host.seen()
    result = host.module("mig", layout=NEW)
    assert result["recovered"] == "new"
    assert not result["changed"]
    assert host.seen() == there


def test_a_dry_run_after_a_cut_off_run_sees_its_instances_as_own_ones(host):
    host.create(H100)
    host.module("mig", layout=OLD)
    host.gpusim("fail", "nvmlGpuInstanceCreateComputeInstance", "--nth", "1", "--code", "kill-after")
    with pytest.raises(AssertionError, match="exit -9"):
        host.module("mig", layout=NEW)
    assert not host.module("mig", check=True, layout=OLD).get("failed")


def test_what_a_cut_off_run_made_is_its_own(host):
    host.create(H100)
    host.module("mig", layout=OLD)
    host.gpusim("fail", "nvmlGpuInstanceCreateComputeInstance", "--nth", "3", "--code", "kill-after")
    with pytest.raises(AssertionError, match="exit -9"):
        host.module("mig", layout=NEW)
    assert host.module("mig", layout=OLD)["recovered"] == "new"
    assert not host.module("mig", layout=OLD)["changed"]


@pytest.mark.parametrize("content", ["", "{}", "[1]"])
@pytest.mark.parametrize("name", ["journal.json", "owned.json"])
def test_a_damaged_file_is_named_and_nothing_changes(host, name, content):
    host.create(H100)
    (host.folder / "state.d").mkdir()
    (host.folder / "state.d" / name).write_text(content)
    result = host.module("mig", layout=NEW)
    assert result["failed"]
    assert name in result["msg"]
    assert "is damaged" in result["msg"]
    assert host.seen() == {0: [], 1: []}


def test_power_loss_is_like_a_kill_and_a_reboot(host):
    host.create(H100)
    host.module("mig", layout=OLD)
    there = host.seen()
    host.gpusim("fail", "nvmlGpuInstanceDestroy", "--nth", "2", "--code", "kill")
    with pytest.raises(AssertionError, match="exit -9"):
        host.module("mig", layout=NEW)
    host.gpusim("reboot")
    assert host.seen() == {0: [], 1: []}
    result = host.module("mig", layout=OLD)
    assert result["recovered"] == "old", result
    assert host.seen() == there


def test_a_dry_run_after_a_kill_changes_nothing(host):
    host.create(H100)
    host.module("mig", layout=OLD)
    host.gpusim("fail", "nvmlGpuInstanceDestroy", "--nth", "2", "--code", "kill")
    with pytest.raises(AssertionError, match="exit -9"):
        host.module("mig", layout=NEW)
    there = host.seen()
    assert host.module("mig", check=True, layout=OLD)["changed"]
    assert host.seen() == there


def test_the_second_of_two_runs_waits_or_names_the_first(host):
    host.create(H100)
    directory = host.folder / "state.d"
    directory.mkdir()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory)],
        env=host.environment,
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
    )
    assert holder.stdout.readline()
    refused = host.module("mig", layout=NEW, lock_timeout=0)
    assert refused["failed"]
    assert f"pid {holder.pid} " in refused["msg"]
    assert refused["outcome"] == "old"
    assert host.seen() == {0: [], 1: []}
    # Killed, not released: the lock goes with its process.
    holder.kill()
    holder.wait()
    assert host.module("mig", layout=NEW, lock_timeout=0)["changed"]


HOLD = """
import sys
from ansible_collections.openfleet.gpu.plugins.module_utils.transaction import locked
with locked(sys.argv[1], 0):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_journal_of_a_later_release_is_not_guessed_at(host):
    host.create(H100)
    directory = host.folder / "state.d"
    directory.mkdir()
    (directory / "journal.json").write_text(json.dumps({"schema": 99}))
    result = host.module("mig", layout=NEW)
    assert result["failed"]
    assert "schema 99" in result["msg"]
    assert host.seen() == {0: [], 1: []}
    assert (directory / "journal.json").exists()
