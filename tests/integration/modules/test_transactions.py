# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that killed, failed and concurrent runs change everything or nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

from tests.integration.fault_sweep import Sweep, random_transitions
from tests.thorough import THOROUGH

MAKE = str(Path(__file__).resolve().parents[1] / "make_instance.py")
H100 = [{"model": "H100-80GB", "count": 2}]


def mig(gpu, *profiles):
    return {"gpus": [gpu], "sharing": "mig", "mig": [{"profile": p} for p in profiles]}


OLD = [mig(0, "3g.40gb", "2g.20gb", "1g.10gb")]
NEW = [mig(0, "3g.40gb", "1g.20gb", "1g.20gb"), mig(1, "4g.40gb")]


@pytest.mark.host_python
@pytest.mark.parametrize("seed", range(16 if THOROUGH else 2))
def test_fault_at_any_call_ends_in_the_old_or_new_layout(host, library, seed, monkeypatch):
    """Let a sample of the calls fail or die.

    `make bench BENCH=mig` tests every call in many transitions.
    """
    monkeypatch.setenv("GPUSIM_STATE", str(host.folder / "state"))
    (transition,) = random_transitions(seed, 1)
    most = 120 if THOROUGH else 60
    endings = list(Sweep(host.folder, library).transition(*transition, most=most))
    assert len(endings) == most
    assert [ending for ending in endings if ending.wrong] == []


@pytest.mark.host_python
@pytest.mark.parametrize("seed", range(16 if THOROUGH else 2))
def test_gpu_failing_from_any_call_does_not_block_others(host, library, seed, monkeypatch):
    """Let calls to one GPU fail from a sample of the calls on.

    `make bench BENCH=mig` tests every call and every code for some transitions.
    """
    monkeypatch.setenv("GPUSIM_STATE", str(host.folder / "state"))
    ((model, have, _busy, want),) = random_transitions(seed, 1)
    most = 120 if THOROUGH else 40
    endings = list(Sweep(host.folder, library).sick_gpu(model, have, want, most=most))
    assert len(endings) == most
    assert [ending for ending in endings if ending.wrong] == []


@pytest.mark.parametrize(
    ("want", "read", "faults"),
    [
        pytest.param(["1g.10gb", "3g.40gb"], None, 3, id="completed"),
        pytest.param(["1g.10gb", "3g.40gb"], 1, 1, id="closed early"),
        pytest.param(["7g.80gb"], None, 0, id="refused"),
    ],
)
def test_a_sweep_releases_its_processes_when_it_ends(host, library, want, read, faults, monkeypatch):
    monkeypatch.setenv("GPUSIM_STATE", str(host.folder / "state"))
    sweep, have = Sweep(host.folder, library), [("1g.10gb", 0)]
    with closing(sweep.transition("H100-80GB", have, {0}, want, most=3)) as cases:
        endings = list(islice(cases, read))
    assert [ending.wrong for ending in endings] == [""] * faults
    assert sweep.control.dump()["processes"] == []
    # The next sweep creates other GPUs. The simulator refuses this while a process holds a GPU.
    assert [ending.wrong for ending in sweep.sick_gpu("H100-80GB", have, want, most=2)] == ["", ""]


@pytest.mark.host_python
def test_next_run_after_a_kill_rolls_back_and_continues(host):
    host.create(H100)
    host.module("mig", layout=OLD)
    there = host.seen()
    host.gpusim("fail", "nvmlDeviceCreateGpuInstanceWithPlacement", "--nth", "2", "--code", "kill")
    with pytest.raises(AssertionError, match="exit -9"):
        host.module("mig", layout=NEW)
    assert host.seen() != there, "the kill came after the first change"
    # A run that requests the previous layout finds it already restored.
    cleared = host.module("mig", layout=OLD)
    assert cleared["recovered"] == "old", cleared
    assert cleared["changed"]
    assert host.seen() == there
    assert "recovered" not in host.module("mig", layout=OLD)


def test_run_killed_after_its_last_step_has_the_new_layout(host):
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


def test_dry_run_after_an_interrupted_run_recognizes_its_instances(host):
    host.create(H100)
    host.module("mig", layout=OLD)
    host.gpusim("fail", "nvmlGpuInstanceCreateComputeInstance", "--nth", "1", "--code", "kill-after")
    with pytest.raises(AssertionError, match="exit -9"):
        host.module("mig", layout=NEW)
    assert not host.module("mig", check=True, layout=OLD).get("failed")


def test_instances_of_an_interrupted_run_are_its_own(host):
    host.create(H100)
    host.module("mig", layout=OLD)
    host.gpusim("fail", "nvmlGpuInstanceCreateComputeInstance", "--nth", "3", "--code", "kill-after")
    with pytest.raises(AssertionError, match="exit -9"):
        host.module("mig", layout=NEW)
    assert host.module("mig", layout=OLD)["recovered"] == "new"
    assert not host.module("mig", layout=OLD)["changed"]


@pytest.mark.host_python
@pytest.mark.parametrize("content", ["", "{}", "[1]"])
@pytest.mark.parametrize("name", ["journal.json", "owned.json"])
def test_damaged_file_is_named_and_nothing_changes(host, name, content):
    host.create(H100)
    (host.folder / "state.d").mkdir()
    (host.folder / "state.d" / name).write_text(content)
    result = host.module("mig", layout=NEW)
    assert result["failed"]
    assert name in result["msg"]
    assert "is damaged" in result["msg"]
    assert host.seen() == {0: [], 1: []}


@pytest.mark.host_python
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


def test_dry_run_after_a_kill_changes_nothing(host):
    host.create(H100)
    host.module("mig", layout=OLD)
    host.gpusim("fail", "nvmlGpuInstanceDestroy", "--nth", "2", "--code", "kill")
    with pytest.raises(AssertionError, match="exit -9"):
        host.module("mig", layout=NEW)
    there = host.seen()
    assert host.module("mig", check=True, layout=OLD)["changed"]
    assert host.seen() == there


def test_second_of_two_runs_waits_or_names_the_first(host):
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
    # A kill ends the process, which does not release the lock itself. The kernel releases it.
    holder.kill()
    holder.wait()
    assert host.module("mig", layout=NEW, lock_timeout=0)["changed"]


HOLD = """
import sys
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.transaction import locked
with locked(sys.argv[1], 0):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_journal_of_a_later_release_is_refused(host):
    host.create(H100)
    directory = host.folder / "state.d"
    directory.mkdir()
    (directory / "journal.json").write_text(json.dumps({"schema": 99}))
    result = host.module("mig", layout=NEW)
    assert result["failed"]
    assert "schema 99" in result["msg"]
    assert host.seen() == {0: [], 1: []}
    assert (directory / "journal.json").exists()


def busy_in(host, gpu, start):
    """Start a process in the instance at this placement."""
    instances = host.module("gpu_info")["gpus"][gpu]["mig"]["instances"]
    (found,) = [i["id"] for i in instances if i["placement"]["start"] == start]
    command = [str(host.bin / "gpusim"), "run", "--gpu", str(gpu), "--gi", str(found), "--memory", "1MiB"]
    job = host.popen([*command, "--", "sleep", "300"])
    while job.pid not in {p["pid"] for p in json.loads(host.gpusim("show", "--json"))["processes"]}:
        assert job.poll() is None
    return job


def test_change_is_completed_if_a_rollback_would_end_a_job(host):
    """Complete the change instead of rolling it back.

    A job started in a new instance after the kill, so only the new layout has room for the job.
    """
    host.create(H100)
    host.module("mig", layout=OLD)
    host.gpusim("fail", "nvmlDeviceCreateGpuInstanceWithPlacement", "--nth", "2", "--code", "kill")
    with pytest.raises(AssertionError, match="exit -9"):
        host.module("mig", layout=[*NEW[:1]])
    (made,) = [start for name, start in host.seen()[0] if name == "1g.20gb"]
    job = busy_in(host, 0, made)
    try:
        done = host.module("mig", layout=NEW[:1])
        assert done["recovered"] == "new", done
        assert sorted(name for name, _ in host.seen()[0]) == ["1g.20gb", "1g.20gb", "3g.40gb"]
        assert job.poll() is None
        # The instances that the interrupted run created belong to the collection, so a later run may remove them.
        job.kill()
        job.wait()
        assert host.module("mig", layout=OLD)["changed"]
    finally:
        job.kill()
        job.wait()


def test_run_fails_if_rollback_and_completion_would_end_a_job(host):
    host.create(H100)
    host.module("mig", layout=OLD)
    before = host.seen()[0]
    host.gpusim("fail", "nvmlGpuInstanceDestroy", "--nth", "1", "--code", "kill-after")
    with pytest.raises(AssertionError, match="exit -9"):
        host.module("mig", layout=[mig(0, "7g.80gb")])
    # Meanwhile an administrator creates another instance at the placement of the removed one, and starts a job in it.
    (gone,) = set(before) - set(host.seen()[0])
    other = "1g.10gb" if gone[0] != "1g.10gb" else "1g.10gb+me"
    host.run([sys.executable, MAKE, "0", other, str(gone[1])])
    job = busy_in(host, 0, gone[1])
    there = host.seen()
    try:
        stopped = host.module("mig", layout=OLD)
        assert "a run was interrupted (pid" in stopped["msg"]
        assert "pid %d" % job.pid in stopped["msg"]
        assert stopped["busy"]
        assert host.seen() == there
        assert (host.folder / "state.d" / "journal.json").exists()
        forced = host.module("mig", layout=OLD, on_busy="force")
        assert forced["recovered"] == "old", forced
        assert host.seen()[0] == before
    finally:
        job.kill()
        job.wait()


# --- a journal with another schema version --------------------------------------------------------------------------


def test_unreadable_journal_is_refused(host):
    host.create(H100)
    journal = host.folder / "state.d" / "journal.json"
    journal.parent.mkdir()
    journal.write_text('{"schema": 1, "before": [], "after": []}')
    refused = host.module("mig", layout=NEW)
    assert "has schema 1, and this release reads 5" in refused["msg"]
    assert journal.exists() and host.seen()[0] == []
