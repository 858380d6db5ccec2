# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Place the tenants of a layout, and change current tenants."""

from __future__ import annotations

import dataclasses

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.change import planner
from ansible_collections.openfleet.gpu.plugins.module_utils.change.targets import targets
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import PlanError
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.model import Booking, Place, Request, Shape
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Holder, Host
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import parse_layout
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import plan as vgpu_plan
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.files import files
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.leases import tenant_of
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.model import (
    VgpuName,
    VgpuSeat,
    VgpuSeen,
    VgpuTenant,
    from_data,
    to_data,
)

GIB = 2**30
GPUS = tuple(
    dataclasses.replace(
        gpu, uuid="GPU-5c89d3fa-0000-4000-8000-00000000000%d" % gpu.index, pci_address="0000:1%d:00.0" % gpu.index
    )
    for gpu in assumed_gpus(["L40S-48GB"] * 3)
)
UUIDS = [gpu.uuid for gpu in GPUS]
GPU_0 = GPUS[0].short_label
MIB = GPUS[0].memory_total_bytes // 2**20
HOST = Host("580.105.08", "12.580", "13.0", True, GPUS)


def tenant(name, memory=8, sm=30, **more):
    return dict(more, name=name, memory="%dGiB" % memory, sm_percent=sm)


def entry(gpus, *tenants, **more):
    return {"gpus": gpus, "sharing": "vgpu", "vgpu": dict(more, tenants=list(tenants))}


def planned(layout, seen=(), dmem=(), processes=lambda name, gpu: ()):
    layout = parse_layout(layout)
    plan = planner.plan(GPUS, targets(layout, GPUS))
    wanted = vgpu_plan.wanted(layout, plan, seen, frozenset(dmem))
    rooms = vgpu_plan.rooms_of_leases(layout, plan)
    return wanted, vgpu_plan.plan(wanted, seen, plan, HOST, processes, rooms)


def there(*layout, seen=()):
    """Return the tenants as observed after the layout was applied."""
    return tuple(VgpuSeen(each.tenant) for each in planned(list(layout), seen)[0])


def lines(*layout, **more):
    return planned(list(layout), **more)[1].lines()


def refused(*layout, **more):
    with pytest.raises(PlanError) as error:
        planned(list(layout), **more)
    return str(error.value)


# ---------------------------------------------------------------------- tenants of a layout


def test_a_tenant_has_its_quota_on_each_of_its_gpus():
    wanted, plan = planned([entry([0, 2], tenant("pair", gpus=2, priority=1), policy="burst")])
    assert [each.tenant for each in wanted] == [
        VgpuTenant("pair", 8 * GIB, 30, (VgpuSeat(UUIDS[0], 0), VgpuSeat(UUIDS[2], 0)), "burst", 1, "preload")
    ]
    assert plan.lines() == [
        "vgpu pair: add (8GiB and 30 %, burst, priority 1, by preload; no dmem here) on gpu 0 and gpu 2"
    ]
    assert plan.gpus_changed() == {UUIDS[0], UUIDS[2]}


def test_plan_shows_online_and_offline_tenants_and_the_waterline():
    tenants = [tenant("serve", latency="online"), tenant("train", latency="offline")]
    wanted, plan = planned([entry([0], *tenants, policy="colocate", waterline_percent=70)])
    assert [(each.tenant.priority, each.tenant.waterline_percent) for each in wanted] == [(0, 70), (1, 70)]
    assert [line.partition(", by ")[0] for line in plan.lines()] == [
        "vgpu serve: add (8GiB and 30 %, colocate, online, waterline 70 %",
        "vgpu train: add (8GiB and 30 %, colocate, offline, waterline 70 %",
    ]
    assert [line.rpartition("; ")[2] for line in plan.lines()] == [
        "its work may wait for the rest of one offline kernel) on gpu 0",
        "online work waits for the rest of its running kernel) on gpu 0",
    ]


def test_plan_names_tenants_with_managed_oversubscription():
    wanted, plan = planned([entry([0], tenant("a", oversubscribe_managed=True))])
    assert wanted[0].tenant.oversubscribe_managed
    assert "(8GiB and 30 %, fixed, managed memory beyond the quota, by preload" in plan.lines()[0]


def test_tenants_of_one_gpu_have_separate_seats():
    wanted = planned([entry([0], tenant("a"), tenant("b"), tenant("c"))])[0]
    assert [each.tenant.seats for each in wanted] == [(VgpuSeat(UUIDS[0], n),) for n in range(3)]


@pytest.mark.parametrize("pin", [1, UUIDS[1], GPUS[1].pci_address])
def test_pin_holds_for_any_selector(pin):
    wanted = planned([entry("all", tenant("a"), tenant("b", gpu=pin))])[0]
    assert {each.tenant.name: each.tenant.gpus for each in wanted} == {"a": (UUIDS[0],), "b": (UUIDS[1],)}


def test_memory_and_share_can_be_oversubscribed():
    tenants = [tenant("t%d" % n, 30, 50) for n in range(3)]
    assert "does not fit" in refused(entry([0], *tenants, oversubscribe={"sm": 1.5}))
    assert "does not fit" in refused(entry([0, 1, 2], *tenants, tenant("more", 10, 60)))
    assert len(planned([entry([0], *tenants, oversubscribe={"sm": 1.5, "memory": 2.1})])[0]) == 3


@pytest.mark.parametrize(
    ("tenants", "oversubscribe", "size"),
    [
        ([tenant("a", 100)], {}, f"{MIB}MiB on gpu 0, {MIB}MiB on gpu 1. The largest memory that fits is {MIB}MiB."),
        ([tenant("a", 100, gpu=1)], {}, f"{MIB}MiB on gpu 1. The largest memory that fits is {MIB}MiB."),
        # The error names the memory that fits for this tenant alone, although the tenant before it leaves no room.
        ([tenant("b", 40), tenant("a", 100)], {}, f"The largest memory that fits is {MIB}MiB."),
        (
            [tenant("a", 200)],
            {"memory": 2},
            f"times 2 by oversubscribe.memory. The largest memory that fits is {2 * MIB}MiB.",
        ),
        ([tenant("a", 100, gpus=2)], {}, f"The largest memory that fits is {MIB}MiB."),
    ],
)
def test_too_large_tenant_is_refused_with_the_size_of_the_gpu(tenants, oversubscribe, size):
    text = refused(entry([0, 1], *tenants, oversubscribe=oversubscribe))
    assert text.startswith("gpu_layout[0].vgpu.tenants[%d]: the tenant a (" % (len(tenants) - 1))
    assert "needs more memory than its GPUs have, which is" in text and size in text
    assert "with the tenants before it" not in text
    fits = [
        dict(each, memory="%dMiB" % (MIB * oversubscribe.get("memory", 1))) for each in tenants if each["name"] == "a"
    ]
    assert planned([entry([0, 1], *fits, oversubscribe=oversubscribe)])


def test_misfit_is_named_with_the_free_amount():
    text = refused(entry([0, 1], tenant("a", 40, 60), tenant("b", 40, 10), tenant("pair", 8, 30, gpus=2)))
    assert text.startswith("gpu_layout[0].vgpu.tenants[2]: the tenant pair (8GiB and 30 % on each of 2 GPUs)")
    total = GPUS[0].memory_total_bytes // 2**20 - 40 * 1024
    assert "Free: %dMiB and 40 %% on gpu 0, %dMiB and 90 %% on gpu 1" % (total, total) in text


def test_a_gpu_has_64_seats():
    tenants = [dict(tenant("t%02d" % n, sm=1), memory="64MiB") for n in range(65)]
    assert "tenants[64]" in refused(entry([0], *tenants))
    assert "no seat (a GPU has 64) on gpu 0" in refused(entry([0], *tenants))
    assert len(planned([entry([0, 1], *tenants)])[0]) == 65


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (entry([1], tenant("a", gpu=UUIDS[2])), ["tenants[0].gpu", "not in its entry", "gpu 1 ("]),
        (entry([0], tenant("a-")), ["tenants[0].name", "cannot end in -"]),
        (entry({"model": "L40S*"}, tenant("a", gpus=17)), ["tenants[0].gpus", "the limit is 16"]),
        (entry({"model": "L40S*"}, tenant("a", gpus=4)), ["on each of 4 GPUs", "spans more GPUs than its entry"]),
        (entry([0], tenant("a"), provider="dmem"), ["vgpu.provider", UUIDS[0], "Linux 6.14"]),
        (entry([0, 1], tenant("a", gpus=2), provider="mps"), ["tenants[0].gpus", "one MPS daemon"]),
        (entry([0], tenant("a"), provider="mps", policy="burst"), ["vgpu.policy", "policy: fixed"]),
    ],
)
def test_impossible_tenants_are_refused(part, words):
    text = refused(part)
    assert all(word in text for word in words), text


def test_kernel_is_the_provider_if_it_limits_all_gpus_of_a_tenant():
    part = entry([0, 1], tenant("a", gpu=0), tenant("pair", gpus=2))
    wanted = planned([part], dmem=[UUIDS[0]])[0]
    assert {each.tenant.name: each.tenant.provider for each in wanted} == {"a": "dmem", "pair": "preload"}
    part["vgpu"]["provider"] = "preload"
    assert {each.tenant.provider for each in planned([part], dmem=UUIDS)[0]} == {"preload"}


def test_mps_is_used_only_if_named_with_a_note_in_the_plan():
    assert lines(entry([0], tenant("a"), provider="mps")) == [
        "vgpu a: add (8GiB and 30 %, fixed, by mps; a fault of one client ends all clients) on gpu 0"
    ]
    plan = planned([entry([0], tenant("a"), provider="mps")])[1]
    assert not plan.takes_library
    assert planned([entry([0], tenant("a"))])[1].takes_library


# ---------------------------------------------------------------------- changes of current tenants


def test_applied_layout_has_no_steps():
    part = entry([0, 1], tenant("a"), tenant("b", 30), tenant("pair", gpus=2))
    plan = planned([part], seen=there(part))[1]
    assert plan.steps == ()
    assert [seen.tenant.name for seen in plan.kept] == ["a", "b", "pair"]


def test_quotas_shrink_before_others_grow():
    before = there(entry([0], tenant("a", 20, 40), tenant("b", 20, 40)))
    plan = planned([entry([0], tenant("a", 30, 40), tenant("b", 10, 40))], seen=before)[1]
    assert [(step.name, str(step)) for step in plan.steps] == [
        ("b", "change from 20GiB and 40 %, fixed, by preload to 10GiB and 40 %, fixed, by preload"),
        ("a", "change from 20GiB and 40 %, fixed, by preload to 30GiB and 40 %, fixed, by preload"),
    ]


def test_tenants_keep_their_gpus_and_seats():
    before = there(entry([0, 1], tenant("a", gpu=0), tenant("b", gpu=1), tenant("c", gpu=1)))
    plan = planned([entry([0, 1], tenant("c"), tenant("d"))], seen=before)[1]
    assert [seen.tenant.name for seen in plan.kept] == ["c"]
    assert plan.lines() == [
        "vgpu a: remove from gpu 0",
        "vgpu b: remove from gpu 1",
        "vgpu d: add (8GiB and 30 %, fixed, by preload; no dmem here) on gpu 0",
    ]
    # Processes of the removed tenant may still use its seat, so the new tenant gets another seat.
    assert [add.tenant.seats for add in plan.adds] == [(VgpuSeat(UUIDS[0], 1),)]


def test_freed_seats_are_used():
    old = [dict(tenant("old%02d" % n, sm=1), memory="64MiB") for n in range(64)]
    new = [dict(tenant("new%02d" % n, sm=1), memory="64MiB") for n in range(63)]
    wanted = planned([entry([0], old[7], *new)], seen=there(entry([0], *old)))[0]
    seats = {each.tenant.name: each.tenant.seats[0].seat for each in wanted}
    assert seats["old07"] == 7
    assert sorted(seats.values()) == list(range(64))


def holder(gpu):
    return Holder(gpu, None, "process", "pid 7 (train.py)", 7)


def test_moving_tenant_blocks_while_it_has_processes():
    before = there(entry([0], tenant("a")))
    moves = [entry([1], tenant("a")), {"gpus": [0], "sharing": "shared"}]
    idle = planned(moves, seen=before)[1]
    assert (idle.lines(), idle.disturbs) == (["vgpu a: move on gpu 1 instead of gpu 0"], ())
    asked = []

    def processes(name, gpu):
        asked.append((name, gpu))
        return [holder(gpu)]

    (disturbance,) = planned(moves, seen=before, processes=processes)[1].disturbs
    assert str(disturbance) == "vgpu a (it would leave %s) is in use by pid 7 (train.py)" % GPU_0
    assert asked == [("a", UUIDS[0])]


def test_processes_that_another_provider_would_not_limit_block():
    """The processes have the library but are not clients of a daemon, or the reverse."""
    layouts = {provider: entry([0], tenant("a"), provider=provider) for provider in ("preload", "mps")}
    for old, new in (("preload", "mps"), ("mps", "preload")):
        before = there(layouts[old])
        assert planned([layouts[new]], seen=before)[1].disturbs == ()
        (disturbance,) = planned([layouts[new]], seen=before, processes=lambda name, gpu: [holder(gpu)])[1].disturbs
        assert str(disturbance) == "vgpu a (its provider would change on %s) is in use by pid 7 (train.py)" % GPU_0


def test_library_limits_processes_with_dmem_too():
    before = there(entry([0], tenant("a"), provider="preload"))
    plan = planned([entry([0], tenant("a"), provider="dmem")], before, UUIDS, lambda name, gpu: [holder(gpu)])[1]
    assert (len(plan.changes), plan.disturbs) == (1, ())


def test_only_processes_of_removed_tenants_block():
    before = there(entry([0], tenant("a"), tenant("b")))
    plan = planned([entry([0], tenant("a", 1, 1))], seen=before, processes=lambda name, gpu: [holder(gpu)])[1]
    assert len(plan.steps) == 2
    assert [str(each) for each in plan.disturbs] == [
        "vgpu b (it would be removed from %s) is in use by pid 7 (train.py)" % GPU_0
    ]
    assert planned([entry([0], tenant("a", 1, 1))], seen=before)[1].disturbs == ()


def test_tenant_with_an_added_gpu_keeps_the_order_of_its_gpus():
    wide = there(entry([0, 1, 2], tenant("a", gpus=2)))
    assert wide[0].tenant.gpus == (UUIDS[0], UUIDS[1])
    turned = dataclasses.replace(wide[0].tenant, seats=wide[0].tenant.seats[::-1])
    plan = planned([entry([0, 1, 2], tenant("a", gpus=2))], seen=[VgpuSeen(turned)])[1]
    assert plan.steps == ()


def test_gpus_without_an_entry_keep_their_tenants():
    before = there(entry([0], tenant("a")), entry([1], tenant("b")))
    plan = planned([{"gpus": [0], "sharing": "exclusive"}], seen=before)[1]
    assert plan.lines() == ["vgpu a: remove from gpu 0"]
    layout = parse_layout([])
    gone = vgpu_plan.plan((), before, planner.plan(GPUS, targets(layout, GPUS)), HOST, lambda *_: (), None)
    assert [step.name for step in gone.removes] == ["a", "b"]


def test_files_of_another_format_are_written_again():
    part = entry([0], tenant("a"))
    (one,) = there(part)
    assert lines(part, seen=[dataclasses.replace(one, outdated=("x",))]) == ["vgpu a: rewrite its files on gpu 0"]


def test_before_and_after_list_the_tenants_of_a_gpu():
    before = there(entry([0], tenant("a"), tenant("b")))
    plan = planned([entry([0], tenant("b", 4))], seen=before)[1]
    assert plan.before(UUIDS[0]) == "vgpu a (8GiB and 30 %, fixed, by preload), b (8GiB and 30 %, fixed, by preload)"
    assert plan.after(UUIDS[0]) == "vgpu b (4GiB and 30 %, fixed, by preload)"
    assert plan.before(UUIDS[1]) == plan.after(UUIDS[1]) == ""


# ---------------------------------------------------------------------- renamed tenants


def in_use(seen, *names):
    """Return the tenants as if process 7 used those of their names that are given."""
    found = []
    for one in seen:
        own = tuple(VgpuName(name, (7,)) for name in one.tenant.names if name in names and one.tenant.aliases)
        found.append(dataclasses.replace(one, names_in_use=own))
    return tuple(found)


def renamed(*names, **more):
    """Return the tenant `a` after it got each of these names in turn."""
    seen = there(entry([0], tenant("a")))
    for old, new in zip(("a", *names), names):
        seen = there(entry([0], tenant(new, was=old, **more)), seen=seen)
    return seen


def test_renamed_tenant_keeps_its_seat_and_key():
    before = there(entry([0], tenant("first"), tenant("a")))
    wanted, plan = planned([entry([0], tenant("b", was="a"), tenant("first"))], seen=before)
    assert plan.lines() == ["vgpu b: rename tenant a to b on gpu 0"]
    assert wanted[0].tenant == dataclasses.replace(before[0].tenant, name="b", counted_as="a", aliases=("a",))
    assert [type(step).__name__ for step in plan.steps] == ["ChangeTenant"]
    assert plan.after(UUIDS[0]).startswith("vgpu b (8GiB and 30 %, fixed, by preload, also named a), ")
    assert plan.disturbs == ()
    again = planned([entry([0], tenant("b", was="a"), tenant("first"))], seen=[VgpuSeen(w.tenant) for w in wanted])[1]
    assert (again.steps, again.lines()) == ((), [])


def test_processes_of_a_renamed_tenant_block_nothing_but_those_of_others_do():
    before = there(entry([0], tenant("a")))

    def processes(name, gpu):
        return [holder(gpu)] if name == "a" else []

    plan = planned([entry([0], tenant("b", was="a"))], seen=before, processes=processes)[1]
    assert plan.disturbs == ()
    plan = planned([entry([0], tenant("b"))], seen=before, processes=processes)[1]
    assert plan.lines() == ["vgpu a: remove from gpu 0", plan.lines()[1]]
    assert [str(found) for found in plan.disturbs] == [
        "vgpu a (it would be removed from %s) is in use by pid 7 (train.py)" % GPU_0
    ]
    # A process is a holder if it uses any of the tenant's names.
    for part in (entry([1], tenant("b", was="a")), entry([1], tenant("c", was="b"))):
        shared = {"gpus": [0], "sharing": "shared"}
        plan = planned([part, shared], seen=in_use(renamed("b"), "a"), processes=processes)[1]
        assert [str(found) for found in plan.disturbs] == [
            "vgpu b (it would leave %s) is in use by pid 7 (train.py)" % GPU_0
        ]


def test_a_tenant_is_renamed_and_changed_in_one_step():
    assert lines(entry([0], tenant("b", 4, was="a")), seen=there(entry([0], tenant("a")))) == [
        "vgpu b: rename tenant a to b, change from 8GiB and 30 %, fixed, by preload to 4GiB and 30 %, fixed, by preload"
        " on gpu 0"
    ]


def test_new_tenant_has_its_earlier_name():
    """Give a new tenant its earlier name too.

    The names of the tenant are then equal on all hosts.
    """
    assert lines(entry([0], tenant("b", was="a"))) == [
        "vgpu b: add (8GiB and 30 %, fixed, by preload, also named a; no dmem here) on gpu 0"
    ]
    assert lines(entry([0], tenant("b", was="a")), seen=there(entry([0], tenant("b")))) == [
        "vgpu b: add the name a on gpu 0"
    ]


def test_earlier_name_ends_when_no_process_uses_it():
    part = entry([0], tenant("b"))
    assert lines(part, seen=renamed("b")) == ["vgpu b: end the name a on gpu 0"]
    kept = planned([part], seen=in_use(renamed("b"), "a", "b"))[1]
    assert kept.steps == ()
    assert kept.lines() == ["vgpu b: keep the name a until its processes end (pid 7)"]
    # Use is still counted under the earlier name, so the next run writes no file.
    ended = there(part, seen=renamed("b"))
    assert (ended[0].tenant.counted_as, ended[0].tenant.aliases) == ("a", ())
    assert lines(part, seen=ended) == []


def test_older_name_ends_too():
    seen = renamed("b")
    part = entry([0], tenant("c", was="b"))
    assert lines(part, seen=seen) == ["vgpu c: rename tenant b to c, end the name a on gpu 0"]
    assert lines(part, seen=in_use(seen, "a")) == [
        "vgpu c: rename tenant b to c on gpu 0",
        "vgpu c: keep the name a until its processes end (pid 7)",
    ]
    assert renamed("b", "c")[0].tenant.counted_as == "a"


@pytest.mark.parametrize(("was", "ends"), [({"was": "b"}, ""), ({}, ", end the name b")])
def test_rename_is_rolled_back(was, ends):
    part = entry([0], tenant("a", **was))
    assert lines(part, seen=renamed("b")) == ["vgpu a: rename tenant b to a%s on gpu 0" % ends]
    back = there(part, seen=renamed("b"))
    assert back[0].tenant.counted_as is None
    assert lines(part, seen=in_use(renamed("b"), "b"))[-1].startswith(
        "vgpu a: rename tenant b to a on gpu 0" if was else "vgpu a: keep the name b until"
    )


def test_new_tenant_with_an_earlier_name_of_another_counts_separately():
    part = entry([0], tenant("a"), tenant("b"))
    wanted, plan = planned([part], seen=renamed("b"))
    assert [line.split(" (")[0] for line in plan.lines()] == ["vgpu a: add", "vgpu b: end the name a on gpu 0"]
    assert [each.tenant.key for each in wanted] == ["a.2", "a"]
    assert lines(part, seen=[VgpuSeen(each.tenant) for each in wanted]) == []
    # The name of this tenant equals the key of another tenant, so it gets a different key.
    wider = entry([0], tenant("a"), tenant("b"), tenant("a.2", sm=10))
    wanted = planned([wider], seen=[VgpuSeen(each.tenant) for each in wanted])[0]
    assert {each.tenant.name: each.tenant.key for each in wanted} == {"a": "a.2", "b": "a", "a.2": "a.2.2"}


def test_two_tenants_cannot_become_one():
    text = refused(entry([0], tenant("b", was="a")), seen=there(entry([0], tenant("a"), tenant("b"))))
    assert text.startswith("gpu_layout[0].vgpu.tenants[0].was: the host has separate tenants a (%s)" % GPUS[0].label)
    assert "Remove the key was, which removes a. Or remove b in an earlier run" in text


@pytest.mark.parametrize(
    ("part", "used", "words"),
    [
        (
            entry([0], tenant("b"), tenant("a")),
            ["a"],
            ["tenants[1].name", "a is still a name of the tenant b", "pid 7"],
        ),
        (entry([0], tenant("b"), tenant("d", was="a")), ["a"], ["tenants[1].was", "a is still a name", "End them"]),
        (entry([0], tenant("c", was="b"), tenant("d", was="a")), ["a"], ["tenants[1].was", "the tenant c", "End them"]),
    ],
)
def test_name_used_by_processes_of_another_tenant_is_refused(part, used, words):
    text = refused(part, seen=in_use(renamed("b"), *used))
    assert all(word in text for word in words), text
    assert GPUS[0].label in text


def test_existing_tenant_cannot_take_a_name_given_up_in_the_same_run():
    seen = there(entry([0], tenant("b", was="a"), tenant("d")))
    text = refused(entry([0], tenant("b"), tenant("d", was="a")), seen=seen)
    assert "tenants[1].was: a is still a name of the tenant b" in text
    assert "Apply the layout without this tenant first" in text


def test_earlier_name_invalid_for_cdi_is_refused():
    assert "tenants[0].was" in refused(entry([0], tenant("a", was="b-")))


# ---------------------------------------------------------------------- leases


LEASES = {"by": "host", "groups": ["ml"]}


def leasing(gpus, *tenants, **more):
    part = {**more, **({"tenants": list(tenants)} if tenants else {})}
    return {"gpus": gpus, "sharing": "vgpu", "vgpu": part, "leases": LEASES}


def lease(number, memory=8, sm=30, gpu=0, seat=0):
    seats = tuple(VgpuSeat(UUIDS[each], seat) for each in ([gpu] if isinstance(gpu, int) else gpu))
    return VgpuSeen(
        VgpuTenant("lease-%d" % number, memory * GIB, sm, seats, lease="lease %d of alice" % number),
    )


def blocking(plan):
    return [str(disturbance) for disturbance in plan.disturbs]


def test_leases_are_neither_drift_nor_removed():
    plan = planned([leasing([0, 1])], seen=(lease(1), lease(2, gpu=(0, 1), seat=1)))[1]
    assert (plan.steps, len(plan.left), plan.planned()) == ((), 2, [])


def test_fixed_tenants_are_packed_beside_leases():
    seen = (lease(1, 40, 90), lease(2, 8, 10, gpu=1, seat=0))
    wanted, plan = planned([leasing([0, 1], tenant("big", 30))], seen=seen)
    assert wanted[0].tenant.seats == (VgpuSeat(UUIDS[1], 1),)
    assert not plan.disturbs and len(plan.left) == 2


def test_lease_without_room_blocks_the_change():
    seen = (lease(1, 30, 60), lease(2, 8, 10, seat=1))
    plan = planned([leasing([0], tenant("big", 30, 60))], seen=seen)[1]
    assert [step.name for step in plan.removes] == ["lease-1"]
    assert blocking(plan) == ["vgpu lease-1 (%s) is in use by lease 1 of alice" % GPU_0]
    assert [one.tenant.name for one in plan.left] == ["lease-2"]


@pytest.mark.parametrize("layout", [[entry([0], tenant("a"))], [{"gpus": [0], "sharing": "shared"}]])
def test_lease_blocks_an_entry_without_leases(layout):
    plan = planned(layout, seen=(lease(1),))[1]
    assert blocking(plan) == ["vgpu lease-1 (%s) is in use by lease 1 of alice" % GPU_0]


def test_leases_on_gpus_without_an_entry_are_not_changed():
    assert planned([entry([1], tenant("a"))], seen=(lease(1),))[1].removes == ()


def test_oversubscription_counts_for_leases():
    layout = [leasing([0], tenant("a", 30, 90), oversubscribe={"sm": 1.5, "memory": 1.5})]
    assert not planned(layout, seen=(lease(1, 30, 60),))[1].disturbs
    assert planned(layout, seen=(lease(1, 30, 61),))[1].disturbs


@pytest.mark.parametrize(
    ("policy", "offered", "online", "latency"),
    [
        ("colocate", {}, False, "offline"),
        ("colocate", {"online": "all"}, False, "online"),
        ("colocate", {"online": ["inference"], "by": "kubernetes"}, False, "offline"),
        ("colocate", {"online": ["inference"], "by": "kubernetes"}, True, "online"),
        ("burst", {}, False, None),
    ],
)
def test_leases_have_the_latency_that_the_entry_gives_them(policy, offered, online, latency):
    entry = leasing([0], policy=policy)
    entry["leases"] = {**entry["leases"], **offered}
    if offered.get("by"):
        del entry["leases"]["groups"]
    (leases,) = parse_layout([entry]).entries
    request = Request(7, "alice", Shape(8 * GIB, 30), 3600.0, online=online)
    booking = Booking(request, leases.where, (Place(UUIDS[0]),), 0.0)
    granted = tenant_of(booking, leases, GPUS, (), frozenset(), None)
    assert (granted.policy, granted.latency) == (policy, latency)
    assert granted.waterline_percent == (80 if latency else None)


def test_leases_keep_their_latency_and_waterline():
    running = lease(1)
    terms = dataclasses.replace(running.tenant, policy="colocate", priority=1, waterline_percent=80)
    entry = leasing([0], policy="colocate", waterline_percent=40)
    layout = [{**entry, "leases": {**entry["leases"], "online": "all"}}]
    plan = planned(layout, seen=(dataclasses.replace(running, tenant=terms),))[1]
    assert not plan.steps and not plan.disturbs


def test_spec_of_a_lease_is_read_back():
    tenant_of_lease = lease(1).tenant
    assert from_data(to_data(tenant_of_lease)) == tenant_of_lease
    assert "lease" not in to_data(VgpuTenant("a", GIB, 10, ()))


def test_lease_has_no_drop_in_so_that_units_are_not_reloaded():
    assert not [path for path in files(lease(1).tenant) if path.endswith("systemd.conf")]
    assert [path for path in files(VgpuTenant("a", GIB, 10, lease(1).tenant.seats)) if path.endswith("systemd.conf")]
