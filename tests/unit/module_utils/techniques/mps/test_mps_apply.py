# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stop MPS daemons before a change of GPUs, and start them after it.

If the change fails, restore the daemons.
"""

from __future__ import annotations

import dataclasses
import json

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import ApplyError, BusyError
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Host
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps import apply as mps_apply
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps.apply import MpsChange
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps.model import (
    MpsClient,
    MpsDaemon,
    MpsPlace,
    MpsSeen,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps.steps import (
    AdjustMps,
    MpsPlan,
    StartMps,
    StopMps,
)

GPUS = assumed_gpus(["L40S-48GB"] * 3)
HOST = Host("580.105.08", "12.580", "13.0", True, GPUS)
OLD, KEPT, NEW = (MpsDaemon(name, (MpsPlace(gpu.uuid),), 4, 25) for name, gpu in zip(("old", "kept", "new"), GPUS))
CLIENT = MpsClient(77, 42, "python3 serve.py", "alice")


class Daemons:
    """Act like MpsHost on a host with these daemons and their devices.

    Operations on the daemons in `broken` fail.
    """

    def __init__(self, *daemons):
        self.running = {daemon.name: (daemon, (daemon.places[0].gpu_uuid,)) for daemon in daemons}
        self.files = dict(self.running)
        self.clients = {}
        self.broken = set()
        self.restarted = []

    def observe(self):
        return tuple(
            MpsSeen(
                d,
                devices,
                name in self.running,
                41,
                (42,),
                tuple(self.clients.get(name, ())),
                float(d.active_thread_percentage),
                (d.pinned_memory_limit_bytes,),
            )
            for name, (d, devices) in sorted(self.files.items())
        )

    def stop(self, name):
        self.running.pop(name, None)

    def start(self, daemon, devices):
        self.files[daemon.name] = (daemon, tuple(devices))
        if daemon.name in self.broken:
            raise ApplyError(daemon.name, "it does not start")
        self.restarted.append(daemon.name)
        self.running[daemon.name] = self.files[daemon.name]

    def adjust(self, daemon, devices):
        assert daemon.name in self.running
        self.files[daemon.name] = self.running[daemon.name] = (daemon, tuple(devices))

    def forget(self, name):
        assert name not in self.running
        self.files.pop(name)


def seen(daemons, name):
    return next(one for one in daemons.observe() if one.daemon.name == name)


def change(daemons, clear=None):
    """Return a change that removes `old`, changes the limits of `kept` and adds `new`."""
    more = dataclasses.replace(KEPT, active_thread_percentage=50)
    plan = MpsPlan(
        stops=(StopMps(seen(daemons, "old"), forget=True),),
        adjusts=(AdjustMps(seen(daemons, "kept"), more),),
        starts=(StartMps(NEW, "gpu_layout[0].mps"),),
    )
    return MpsChange(daemons, plan, clear)


def test_full_change_is_applied():
    daemons = Daemons(OLD, KEPT)
    work, done = change(daemons), []
    work.stop(done)
    assert set(daemons.running) == {"kept"}
    assert set(daemons.files) == {"old", "kept"}, "what is stopped can still be started again"
    work.start(HOST, done)
    work.forget()
    assert {name: d.active_thread_percentage for name, (d, _) in daemons.running.items()} == {"kept": 50, "new": 25}
    assert daemons.files == daemons.running
    assert done == ["mps old: stop", "mps kept: change to 4 clients of 50 %", "mps new: start"]


def test_rollback_restores_daemons():
    daemons = Daemons(OLD, KEPT)
    before = dict(daemons.running)
    daemons.broken.add("new")
    work = change(daemons)
    work.stop([])
    with pytest.raises(ApplyError, match="does not start"):
        work.start(HOST, [])
    work.clear_away()
    assert "new" not in daemons.files, "nothing is left of one that never was there"
    work.bring_back(HOST)
    assert daemons.running == daemons.files == before


def test_changed_daemon_is_restored_unchanged():
    daemons = Daemons(OLD)
    other = dataclasses.replace(OLD, places=(MpsPlace(GPUS[2].uuid),))
    plan = MpsPlan((StopMps(seen(daemons, "old"), False),), (), (StartMps(other, "gpu_layout[0].mps"),))
    work = MpsChange(daemons, plan)
    work.stop([])
    work.start(HOST, [])
    assert daemons.running["old"] == (other, (GPUS[2].uuid,))
    work.clear_away()
    work.bring_back(HOST)
    assert daemons.running["old"] == (OLD, (GPUS[0].uuid,))


def test_new_clients_stop_the_change_early():
    daemons = Daemons(OLD, KEPT)
    work = change(daemons)
    daemons.clients["old"] = [CLIENT]
    with pytest.raises(BusyError, match="came into use") as error:
        work.stop([])
    assert error.value.disturbs[0].who[0].pid == 77
    assert set(daemons.running) == {"old", "kept"}


def test_with_permission_clients_are_ended_first():
    daemons = Daemons(OLD, KEPT)
    daemons.clients["old"] = [CLIENT]
    ended = []

    def clear(disturbs):
        assert "old" in daemons.running
        ended.extend(holder.pid for d in disturbs for holder in d.who)
        del daemons.clients["old"]
        return True

    change(daemons, clear).stop([])
    assert ended == [77]
    assert "old" not in daemons.running


def test_returning_clients_are_reported():
    daemons = Daemons(OLD, KEPT)
    daemons.clients["old"] = [CLIENT]
    with pytest.raises(BusyError, match="started again"):
        change(daemons, lambda disturbs: True).stop([])
    assert "old" in daemons.running


def test_irreversible_limit_needs_a_restart():
    daemons = Daemons(OLD, KEPT)
    limited = dataclasses.replace(KEPT, pinned_memory_limit_bytes=1 << 30)
    plan = MpsPlan((StopMps(seen(daemons, "old"), True),), (AdjustMps(seen(daemons, "kept"), limited),))
    work = MpsChange(daemons, plan)
    work.stop([])
    work.start(HOST, [])
    work.clear_away()
    work.bring_back(HOST)
    assert daemons.running["kept"] == (KEPT, (GPUS[1].uuid,))
    assert daemons.restarted == ["old", "kept"]


def test_restart_that_would_end_clients_is_reported_and_others_are_restored():
    daemons = Daemons(OLD, KEPT)
    limited = dataclasses.replace(KEPT, pinned_memory_limit_bytes=1 << 30)
    plan = MpsPlan((StopMps(seen(daemons, "old"), True),), (AdjustMps(seen(daemons, "kept"), limited),))
    work = MpsChange(daemons, plan)
    work.stop([])
    work.start(HOST, [])
    daemons.clients["kept"] = [CLIENT]
    with pytest.raises(ApplyError, match=r"mps kept: it has clients, and needs a restart for its previous limits .*"):
        work.bring_back(HOST)
    assert daemons.running["old"] == (OLD, (GPUS[0].uuid,))
    assert daemons.running["kept"][0] == limited


def test_recovery_starts_stopped_daemons_of_the_journal():
    daemons = Daemons(OLD, KEPT)
    work = change(daemons)
    entry = json.loads(json.dumps(work.record))
    work.stop([])
    mps_apply.bring_back(entry, daemons, HOST)
    assert daemons.running["old"] == (OLD, (GPUS[0].uuid,))
    # A second recovery changes nothing. Neither does a recovery after a later change.
    before = list(daemons.restarted)
    mps_apply.bring_back(entry, daemons, HOST)
    daemons.stop("old")
    daemons.start(NEW, [GPUS[2].uuid])
    mps_apply.bring_back(entry, daemons, HOST)
    assert daemons.restarted == [*before, "new"]


def test_missing_instance_is_reported():
    daemons = Daemons()
    inside = dataclasses.replace(NEW, places=(MpsPlace(GPUS[0].uuid, "1g.10gb", 0),))
    plan = MpsPlan(starts=(StartMps(inside, "gpu_layout[0].mig[0].mps"),), indices=((GPUS[0].uuid, 0),))
    with pytest.raises(ApplyError, match=r"gpu_layout\[0\]\.mig\[0\]\.mps.*1g\.10gb@0 of gpu 0"):
        MpsChange(daemons, plan).start(HOST, [])
    assert daemons.files == {}
