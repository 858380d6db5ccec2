# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find GPUs that differ from their layout, on hosts with and without failing GPUs."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.change import planner
from ansible_collections.openfleet.gpu.plugins.module_utils.change.targets import targets
from ansible_collections.openfleet.gpu.plugins.module_utils.metrics.drift import compare
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Host, Setting
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.ownership import Ownership
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import parse_layout
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps import plan as mps_plan
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps.model import MpsSeen
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps.service import MpsService
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import plan as vgpu_plan
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.model import VgpuSeen
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.service import VgpuService
from tests.unit.mig_rules import Card, with_instances


@dataclasses.dataclass(frozen=True)
class Beside:
    """The daemons and tenants observed on a host.

    `daemons` is None if they could not be observed, and so is `tenants`.
    """

    daemons: tuple | None = None
    tenants: tuple | None = None
    library: bool = True

    def services(self):
        found = []
        if self.daemons is not None:
            found.append(MpsService(private=True))
            found[-1].seen = self.daemons
        if self.tenants is not None:
            problem = None if self.library else "there is no library"
            found.append(VgpuService(private=True))
            found[-1].seen = self.tenants
            found[-1]._host = SimpleNamespace(dmem=frozenset(), available=lambda: problem)
        return found


DRIVER = "580.105.08"
GPUS = assumed_gpus(["H100-80GB"] * 3)
SLICED = tuple(dataclasses.replace(gpu, settings={"time_slice": Setting("long")}) for gpu in GPUS[:2]) + GPUS[2:]
HALVES = {"gpus": [0, 1], "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}
MPS = {"name": "a", "clients": 4, "active_thread_percentage": 25}
SERVED = {"gpus": [0, 1], "sharing": "mps", "mps": MPS}
TENANTS = {
    "gpus": [0, 1],
    "sharing": "vgpu",
    "vgpu": {"tenants": [{"name": name, "memory": "60GiB", "sm_percent": 60} for name in ("one", "two")]},
}
SHARED = {"gpus": [2], "sharing": "shared"}


def made(*entries, gpus=GPUS):
    """Return the layout, and the host, daemons and tenants after it was applied."""
    layout = parse_layout(list(entries))
    plan = planner.plan(gpus, targets(layout, gpus))
    cards = {each.gpu.uuid: Card(each.gpu).run(each.steps).observed() for each in plan.gpus}
    host = Host(DRIVER, "12.580", "13.0", True, tuple(cards.get(gpu.uuid, gpu) for gpu in gpus))
    daemons = tuple(
        MpsSeen(each.daemon, mps_plan.devices(each.daemon, host.gpus), True, 41, (42,), (), 25.0, (None,))
        for each in mps_plan.wanted(layout, plan, DRIVER)
    )
    tenants = tuple(VgpuSeen(each.tenant) for each in vgpu_plan.wanted(layout, plan))
    return layout, host, Beside(daemons, tenants)


def differences(layout, host, beside, ownership=planner.ALL_OURS, lost=False):
    """Return (differences by GPU index, texts of the problems)."""
    standing, problems = compare(layout, host, ownership, beside.services(), lost)
    index = {gpu.uuid: gpu.index for gpu in host.gpus}
    return {index[each.gpu_uuid]: each.differences for each in standing}, [str(problem) for problem in problems]


def without(host, *indices):
    return dataclasses.replace(host, gpus=tuple(gpu for gpu in host.gpus if gpu.index not in indices))


def changed(host, index, change):
    gpus = tuple(change(gpu) if gpu.index == index else gpu for gpu in host.gpus)
    return dataclasses.replace(host, gpus=gpus)


def holding(host, *instances):
    """Return the host with exactly these instances on GPU 0.

    An instance is (profile, start).
    """
    sizes = {(each.name, place.start): place for each in GPUS[0].mig.profiles for place in each.placements}
    gpu = with_instances(GPUS[0], [(profile, sizes[profile, start]) for profile, start in instances])
    return changed(host, 0, lambda _gpu: gpu)


@pytest.mark.parametrize("entry", [HALVES, SERVED, TENANTS], ids=["mig", "mps", "vgpu"])
def test_applied_layout_has_no_drift(entry):
    assert differences(*made(entry, SHARED)) == ({0: (), 1: (), 2: ()}, [])


def test_gpu_without_an_entry_cannot_drift():
    assert differences(*made(SHARED)) == ({2: ()}, [])


def test_each_difference_counts_once():
    layout, host, beside = made(HALVES, SHARED)
    host = holding(host, ("3g.40gb", 0))
    host = changed(host, 2, lambda gpu: dataclasses.replace(gpu, compute_mode="prohibited"))
    assert differences(layout, host, beside) == (
        {0: ("create 3g.40gb@4",), 1: (), 2: ("set compute mode default",)},
        [],
    )


def test_foreign_instances_differ_unless_kept():
    layout, host, beside = made({"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}]})
    others = holding(host, ("3g.40gb", 4), ("1g.10gb", 0))
    assert differences(layout, others, beside) == ({0: ("destroy 1g.10gb@0",)}, [])
    assert differences(layout, others, beside, Ownership("keep")) == ({0: ()}, [])
    # With `keep`, an additional instance is no drift, unless it blocks the place of a wanted instance.
    full = holding(host, ("7g.80gb", 0))
    found, problems = differences(layout, full, beside, Ownership("keep"))
    assert found == {0: ("destroy 7g.80gb@0", "create 3g.40gb@4")} and problems == []


def test_stopped_daemon_is_no_drift_but_other_limits_are():
    layout, host, beside = made(SERVED, SHARED)
    first, second = beside.daemons
    down = dataclasses.replace(first, running=False, active_thread_percentage=None, problem="it is not running")
    silent = dataclasses.replace(first, active_thread_percentage=None, problem="it does not answer")
    for one in (down, silent):
        found, problems = differences(layout, host, dataclasses.replace(beside, daemons=(one, second)))
        assert found == {0: (), 1: (), 2: ()} and problems == []
    other = dataclasses.replace(second, active_thread_percentage=50.0)
    found, _problems = differences(layout, host, dataclasses.replace(beside, daemons=(first, other)))
    assert [len(found[index]) for index in (0, 1, 2)] == [0, 1, 0]
    # A stopped daemon whose limits differ from the layout is drift too.
    wrong = dataclasses.replace(down, daemon=dataclasses.replace(down.daemon, clients=2))
    found, _problems = differences(layout, host, dataclasses.replace(beside, daemons=(wrong, second)))
    assert [len(found[index]) for index in (0, 1, 2)] == [1, 0, 0]


def test_missing_or_unrequested_daemon_differs():
    layout, host, beside = made(SERVED, SHARED)
    first, second = beside.daemons
    found, _problems = differences(layout, host, dataclasses.replace(beside, daemons=(second,)))
    assert [len(found[index]) for index in (0, 1, 2)] == [1, 0, 0]
    more = dataclasses.replace(first, daemon=dataclasses.replace(first.daemon, name="more"))
    found, _problems = differences(layout, host, dataclasses.replace(beside, daemons=(first, second, more)))
    assert found == {0: ("mps more: stop",), 1: (), 2: ()}


def test_daemon_with_a_replaced_program_differs():
    layout, host, beside = made(SERVED)
    old = dataclasses.replace(beside.daemons[0], problem="its program was replaced")
    found, _problems = differences(layout, host, dataclasses.replace(beside, daemons=(old, beside.daemons[1])))
    assert [len(found[index]) for index in (0, 1)] == [1, 0]


def test_a_tenant_with_another_quota_differs_on_its_gpu_only():
    layout, host, beside = made(TENANTS)
    one, two = beside.tenants
    assert one.tenant.gpus != two.tenant.gpus
    less = dataclasses.replace(two, tenant=dataclasses.replace(two.tenant, sm_percent=10))
    found, problems = differences(layout, host, dataclasses.replace(beside, tenants=(one, less)))
    index = {gpu.uuid: gpu.index for gpu in host.gpus}
    assert {number for number, texts in found.items() if texts} == {index[two.tenant.gpus[0]]} and problems == []


def test_unenforced_tenants_differ():
    layout, host, beside = made(TENANTS, SHARED)
    found, problems = differences(layout, host, dataclasses.replace(beside, library=False))
    assert [len(found[index]) for index in (0, 1, 2)] == [1, 1, 0] and problems == []


@pytest.mark.parametrize("entry", [HALVES, SERVED, TENANTS, dict(SERVED, mps=dict(MPS, daemon_per="entry"))])
def test_other_gpus_are_compared_despite_a_lost_one(entry):
    layout, host, beside = made(entry, SHARED)
    assert differences(layout, without(host, 0), beside, lost=True) == ({1: (), 2: ()}, [])
    other = changed(host, 1, lambda gpu: dataclasses.replace(gpu, mig=dataclasses.replace(gpu.mig, pending=True)))
    if entry is not HALVES:
        found, problems = differences(layout, without(other, 0), beside, lost=True)
        assert found == {1: ("disable MIG mode",), 2: ()} and problems == []


def test_unreadable_time_slice_is_left_out_with_a_lost_gpu():
    layout, host, beside = made(
        SHARED, {"gpus": [0, 1], "sharing": "time_slicing", "time_slicing": {"slice": "long"}}, gpus=SLICED
    )
    untold = dataclasses.replace(
        host.gpus[1], settings={"time_slice": Setting(None, "Unable to determine the device handle")}
    )
    host = without(changed(host, 1, lambda _gpu: untold), 0)
    assert differences(layout, host, beside, lost=True) == ({1: (), 2: ()}, [])
    found, problems = differences(layout, without(host, 0), beside)
    assert found == {2: ()} and any("its time slice cannot be set" in problem for problem in problems)
    told = dataclasses.replace(untold, settings={"time_slice": Setting("short")})
    found, _problems = differences(layout, changed(host, 1, lambda _gpu: told), beside, lost=True)
    assert found == {1: ("set time slice long",), 2: ()}


def test_selector_of_all_gpus_takes_responding_ones():
    layout, host, beside = made({"gpus": "all", "sharing": "exclusive"})
    assert differences(layout, without(host, 1), beside, lost=True) == ({0: (), 2: ()}, [])


def test_missing_gpu_is_a_problem_and_others_are_compared():
    layout, host, beside = made(HALVES, SHARED)
    found, problems = differences(layout, without(host, 1), beside)
    assert found == {0: (), 2: ()}
    assert len(problems) == 1 and problems[0].startswith("gpu_layout[0].gpus[1]: this host has no GPU 1")


def test_impossible_layout_of_a_gpu_is_a_problem_and_others_are_compared():
    layout, host, beside = made(HALVES, SHARED)
    l40s = dataclasses.replace(assumed_gpus(["L40S-48GB"])[0], uuid=host.gpus[0].uuid)
    found, problems = differences(layout, changed(host, 0, lambda _gpu: l40s), beside)
    assert found == {1: (), 2: ()}
    assert len(problems) == 1 and "this GPU has no MIG" in problems[0]


def test_unreadable_state_is_no_difference():
    layout, host, _beside = made(SERVED, SHARED)
    assert differences(layout, host, Beside()) == ({0: (), 1: (), 2: ()}, [])


def test_unpinned_placements_do_not_matter():
    layout, host, beside = made({"gpus": [0], "sharing": "mig", "mig": [{"profile": "1g.10gb"}]})
    for start in range(7):
        assert differences(layout, holding(host, ("1g.10gb", start)), beside) == ({0: ()}, [])
