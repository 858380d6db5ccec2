# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Interrupt a change of tenants at every file operation, or let it fail."""

from __future__ import annotations

import json
import os
import re

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils import durable
from ansible_collections.openfleet.gpu.plugins.module_utils.change import planner
from ansible_collections.openfleet.gpu.plugins.module_utils.change.targets import targets
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import ApplyError, BusyError
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Holder, Host
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import parse_layout
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import apply as vgpu_apply
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import host as vgpu_host
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import plan as vgpu_plan
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.apply import VgpuChange
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.host import VgpuHost
from tests.thorough import sample

GPUS = assumed_gpus(["L40S-48GB"] * 2)
HOST = Host("580.105.08", "12.580", "13.0", True, tuple(GPUS))


def layout(*tenants):
    quotas = [dict(tenant, name=name, memory="%dGiB" % gib, sm_percent=10) for name, gib, tenant in tenants]
    return [{"gpus": [0, 1], "sharing": "vgpu", "vgpu": {"tenants": quotas}}]


#: The change from BEFORE to AFTER removes, shrinks, grows, moves, adds, keeps and renames tenants, and ends an earlier
#: name.
BEFORE = layout(
    ("goes", 4, {}),
    ("less", 20, {}),
    ("more", 4, {}),
    ("moves", 4, {"gpu": 0}),
    ("old", 2, {}),
    ("one", 2, {"was": "earlier"}),
    ("stays", 4, {"gpus": 2}),
)
AFTER = layout(
    ("less", 4, {}),
    ("more", 20, {}),
    ("moves", 4, {"gpu": 1}),
    ("comes", 4, {}),
    ("new", 2, {"was": "old"}),
    ("one", 2, {}),
    ("stays", 4, {"gpus": 2}),
)
#: The change is tested from BEFORE to AFTER, and back. On the way back, the layout has no `was`, but the tenant gets
#: its earlier name.
WAYS = pytest.mark.parametrize("way", [(BEFORE, AFTER), (BEFORE, AFTER, BEFORE)], ids=["there", "back"])


def change(host, data, holders=lambda name, gpu: (), look=lambda: HOST, clear=None):
    parsed, seen = parse_layout(data), host.observe()
    gpus = planner.plan(GPUS, targets(parsed, GPUS))
    plan = vgpu_plan.plan(vgpu_plan.wanted(parsed, gpus, seen), seen, gpus, HOST, holders)
    return VgpuChange(host, plan, look, clear)


def carry_out(work):
    """Apply the tenants like `apply_plan` until the new layout is complete.

    This does not change the GPUs.
    """
    done = []
    work.stop(done)
    work.start(HOST, done)
    return done


def carry_out_and_settle(work):
    done = carry_out(work)
    work.forget()
    return done


def files(root):
    paths = [path for path in root.rglob("*") if not path.is_dir() and path.suffix != ".new"]
    return {str(path.relative_to(root)): path.read_text() for path in paths}


class CutOff(BaseException):
    """End a run without cleanup, as SIGKILL does."""


class Operations:
    """Count file operations, and raise `error` in the operation with the number `at`."""

    def __init__(self, monkeypatch):
        self.count, self.at, self.error = 0, None, None
        for module, name in (
            (durable, "write_text"),
            (durable, "remove"),
            (vgpu_host, "_remove_folder"),
            (vgpu_host, "_unlink"),
            (VgpuHost, "_make_shared_files"),
        ):
            monkeypatch.setattr(module, name, self.counted(getattr(module, name)))

    def counted(self, function):
        def call(*arguments, **options):
            self.count += 1
            if self.count == self.at:
                raise self.error
            return function(*arguments, **options)

        return call

    def fail(self, at, error):
        self.count, self.at, self.error = 0, at, error


@pytest.fixture(name="operations")
def counting(monkeypatch):
    return Operations(monkeypatch)


@pytest.fixture(name="make")
def maker(tmp_path, monkeypatch):
    """Return a function that makes a host with a layout.

    It returns the host and its root folder.
    """
    # The tests write thousands of files that need not survive a power loss.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    numbers = iter(range(1000))

    def make(*layouts):
        root = tmp_path / str(next(numbers))
        host = VgpuHost(GPUS, str(root), proc=str(tmp_path / "no-processes"))
        for each in layouts or [BEFORE]:
            carry_out_and_settle(change(host, each))
        return host, root

    return make


def test_full_change_is_applied(make):
    host, root = make()
    stays = {path: text for path, text in files(root).items() if "/stays" in path}
    work = change(host, AFTER)
    done = carry_out(work)
    names = ("less", "new", "one", "more", "moves", "comes")
    assert [line.split(":")[0] for line in done] == ["vgpu %s" % name for name in names]
    assert [path for path in files(root) if "/goes" in path]
    work.forget()
    assert not [path for path in files(root) if "goes" in path or "earlier" in path]
    assert {path: text for path, text in files(root).items() if "/stays" in path} == stays
    assert not change(host, AFTER).record["before"]


def test_renamed_tenant_keeps_its_files_and_gets_new_ones(make):
    host, root = make()
    old = {path: text for path, text in files(root).items() if re.search(r"/old/|-old\.json", path)}
    run = {path: path.stat() for path in root.glob("run/**/*") if "old" in str(path)}
    carry_out_and_settle(change(host, AFTER))
    now = files(root)
    del old["etc/openfleet-gpu/vgpu/old/tenant.json"]
    assert {path: now[path] for path in old} == old
    assert now["etc/openfleet-gpu/vgpu/old/alias_of"] == "new\n"
    assert "counted_as old\n" in now["etc/openfleet-gpu/vgpu/new/quota"]
    # Running processes have mapped these files, and containers have mounted them.
    assert {path: path.stat() for path in root.glob("run/**/*") if "old" in str(path)} == run
    assert not [path for path in root.glob("run/**/*") if "new" in path.name]


def every_operation(make, operations, way):
    """Count the file operations of a change that nothing interrupts.

    Returns the number of all operations, the number of operations until the layout is complete, and the resulting
    files.
    """
    host, root = make(*way[:-1])
    operations.fail(None, None)
    work = change(host, way[-1])
    carry_out(work)
    until = operations.count
    work.forget()
    return operations.count, until, files(root)


@pytest.mark.slow
def test_error_at_any_step_restores_the_files(make, operations):
    way = (BEFORE, AFTER)
    _count, until, _after = every_operation(make, operations, way)
    assert until > 15
    for at in sample(range(1, until + 1), 3):
        operations.fail(None, None)
        host, root = make(*way[:-1])
        inodes = {path: path.stat().st_ino for path in root.glob("run/**/*.1")}
        before, work = files(root), change(host, way[-1])
        operations.fail(at, ApplyError("disk", "it is full"))
        with pytest.raises(ApplyError, match="it is full"):
            carry_out(work)
        work.bring_back(HOST)
        assert files(root) == before, "operation %d" % at
        assert not any(seen.outdated for seen in host.observe())
        # Running processes have these files open, and containers have them mounted.
        assert len(inodes) == len(way[-2][0]["vgpu"]["tenants"]) + len(GPUS)
        assert {path: path.stat().st_ino for path in inodes} == inodes


def test_next_run_completes_a_failed_removal(make, operations):
    way = (BEFORE, AFTER)
    count, until, after = every_operation(make, operations, way)
    assert count > until
    for at in sample(range(until + 1, count + 1), 2):
        operations.fail(None, None)
        host, root = make(*way[:-1])
        work = change(host, way[-1])
        operations.fail(at, ApplyError("disk", "it cannot be written"))
        carry_out(work)
        with pytest.raises(ApplyError, match="it cannot be written"):
            work.forget()
        operations.fail(None, None)
        carry_out_and_settle(change(host, way[-1]))
        assert files(root) == after, "operation %d" % at


@pytest.mark.slow
@WAYS
def test_interrupted_run_is_completed_or_rolled_back(make, operations, way):
    count, until, after = every_operation(make, operations, way)
    for at in sample(range(1, count + 1), 3):
        # As soon as the new layout is complete, the journal for a rollback is gone.
        for back in (False, True) if at <= until else (False,):
            operations.fail(None, None)
            host, root = make(*way[:-1])
            before, work = files(root), change(host, way[-1])
            journal = json.loads(json.dumps(work.record))
            operations.fail(at, CutOff())
            with pytest.raises(CutOff):
                carry_out_and_settle(work)
            operations.fail(None, None)
            if back:
                vgpu_apply.bring_back(journal, host)
                assert files(root) == before, "operation %d" % at
            carry_out_and_settle(change(host, way[-1]))
            # A repeated change may choose another free seat, so the test compares only the names of files.
            assert files(root).keys() == after.keys(), "operation %d" % at
            assert change(host, way[-1]).record == {"before": [], "comes": []}, "nothing is left to do"


def test_quotas_shrink_before_others_grow(make, monkeypatch):
    host, _root = make()
    promised = []
    write = VgpuHost.write

    def spy(self, tenant):
        write(self, tenant)
        there = [seen.tenant for seen in self.observe()]
        promised.append(max(sum(t.memory_bytes for t in there if gpu.uuid in t.gpus) for gpu in GPUS))

    monkeypatch.setattr(VgpuHost, "write", spy)
    carry_out(change(host, AFTER))
    assert len(promised) == 6
    assert max(promised) <= min(gpu.memory_total_bytes for gpu in GPUS)


def test_name_that_a_process_uses_since_the_plan_is_kept(make):
    host, root = make()
    before, work = files(root), change(host, AFTER)
    process = root / "proc/7"
    process.mkdir(parents=True)
    (process / "environ").write_bytes(b"HOME=/\0OPENFLEET_VGPU=earlier\0")
    host._proc = root / "proc"
    with pytest.raises(BusyError, match="the name earlier of vgpu one is in use by pid 7"):
        carry_out(work)
    assert {path: text for path, text in files(root).items() if not path.startswith("proc/")} == before
    # The earlier name is still in use. The next plan keeps it, and does everything else.
    carry_out_and_settle(change(host, AFTER))
    assert "etc/openfleet-gpu/vgpu/earlier/quota" in files(root)
    assert change(host, AFTER).record == {"before": [], "comes": []}, "nothing is left to do"


@pytest.mark.parametrize("name, why", [("moves", "it would leave"), ("goes", "it would be removed from")])
def test_processes_are_scanned_again_right_before_a_change(make, monkeypatch, name, why):
    host, root = make()
    before = files(root)
    holder = Holder(GPUS[0].uuid, None, "process", "pid 7 (train.py)", 7)
    there = [holder]
    monkeypatch.setattr(VgpuHost, "processes", lambda self, seen, tenant, gpu: tuple(there if tenant == name else ()))
    with pytest.raises(
        BusyError, match=re.escape("vgpu %s (%s %s) is in use by pid 7" % (name, why, GPUS[0].short_label))
    ):
        carry_out(change(host, AFTER))
    assert files(root) == before
    ended = []

    def clear(disturbs):
        ended.extend(who.pid for disturbance in disturbs for who in disturbance.who)
        there.clear()
        return True

    carry_out(change(host, AFTER, clear=clear))
    assert ended == [7]
    assert files(root) != before
