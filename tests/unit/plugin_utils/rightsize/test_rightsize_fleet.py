# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Right-size fleets: included workloads, reclaimable holders and written files."""

from __future__ import annotations

import dataclasses
import os
import stat
from unittest import mock

import pytest
import yaml

from tests.audit.rightsize_hosts import GIB, gpu, holder, state

pytest.importorskip("numpy")

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.ledger_model import Ledger, Row
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.make import Order
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import Window
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.workload_model import Workload
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing import exact
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.model import mig, share
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize import make, overlay, write
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.model import (
    HostChange,
    Proposal,
    RightsizeError,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.observed import host_of, hosts_today
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.rearrange import Limits
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.reclaim import Bounds, reclaimable
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.today import fleet_today
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.wishes import wishes
from tests.audit.rightsize_fleets import H100, audit_of, today

NOW = audit_of({}).made_at_seconds


def one_of(states, **more):
    (found,) = today({"a": states} if "gpus" in states else states, **more)
    return found


# --- Included workloads ---


def test_workloads_are_named_by_unit_or_place():
    found = today(
        {
            "a": state(
                gpu("a", 0, H100, "chat@1.service"),
                gpu("a", 1, H100, "user@1000.service"),
                gpu("a", 2, H100, "podman container notebook"),
                gpu("a", 3, H100, holders=[holder("slurmstepd.scope", "GPU-a-3", job="17")]),
                gpu("a", 4, H100),
            ),
        }
    )
    names = [one.name for each in found for one in each.occupants]
    assert names == ["chat-1", "a-gpu1", "notebook", "a-gpu3"] and not found[4].used


@pytest.mark.parametrize(
    "rows",
    [
        [gpu("a", 0, H100, "train.service"), gpu("a", 1, H100, "train.service")],
        [gpu("a", n, H100, holders=[holder(None, "GPU-a-%d" % n, pid=77)]) for n in range(2)],
        [gpu("a", n, H100, holders=[holder(None, "GPU-a-%d" % n, pid=77 + n)]) for n in range(2)],
        [gpu("a", n, H100, holders=[holder("step%d" % n, "GPU-a-%d" % n, job="17")]) for n in range(2)],
        [gpu("a", 0, H100, instances=[(1, "3g.40gb", 4, "train.service"), (2, "3g.40gb", 0, "train.service")])],
    ],
)
def test_holder_of_several_gpus_is_one_workload_and_stays(rows):
    found = today({"a": state(*rows)})
    assert all("holds several GPUs or instances" in one.left for each in found for one in each.occupants)
    assert [each.left for each in found if not each.left] == []


def test_the_same_unit_on_two_hosts_is_two_workloads():
    found = today({host: state(gpu(host, 0, H100, "chat.service")) for host in ("a", "b")})
    names = [one.name for each in found for one in each.occupants]
    assert names == ["chat-a-gpu0", "chat-b-gpu0"]


def test_instances_keep_their_place_and_empty_ones_are_vacant():
    found = one_of(state(gpu("a", 0, H100, instances=[(1, "3g.40gb", 4, "embed.service"), (2, "1g.10gb", 0, None)])))
    assert [(one.name, one.shape, one.start) for one in found.occupants] == [("embed", mig("3g.40gb"), 4)]
    assert [(each.shape, each.start, each.workload) for each in found.vacant] == [(mig("1g.10gb"), 0, None)]
    assert not found.left


def test_unused_new_instance_is_vacant_on_a_monitored_host():
    row = gpu("a", 0, H100, instances=[(1, "3g.40gb", 4, None)])
    (found,) = today({"a": state(row)}, words={("a", 0, "1"): "no_data"})
    assert [each.shape for each in found.vacant] == [mig("3g.40gb")] and not found.left
    # Between two jobs, no process holds the GPU at the moment, but the GPU is not free.
    (found,) = today({"a": state(row)}, words={("a", 0, "1"): "right"})
    assert [one.name for one in found.occupants] == ["a-gpu0-3g.40gb-4"]


def tenant(name, memory_gib=8, percent=30, gpus=("GPU-a-0",), **more):
    places = [{"uuid": uuid, "seat": 0, "used_bytes": 0} for uuid in gpus]
    return {
        "name": name, "memory_bytes": memory_gib * GIB, "sm_percent": percent, "policy": "fixed", "priority": 0,
        "provider": "preload", "gpus": places, "processes": 1, **more,
    }  # fmt: skip


def test_tenants_are_workloads():
    found = one_of(state(gpu("a", 0, H100), tenants=[tenant("x"), tenant("y", 16, 50)]))
    assert [(one.name, one.shape) for one in found.occupants] == [
        ("x", share("vgpu", 8192, 30)),
        ("y", share("vgpu", 16384, 50)),
    ]
    assert not found.left


ODD = {
    "of no known model": (state(gpu("a", 0, H100, "x.service", name="NVIDIA Unheard Of")), {}, "does not have NVIDIA Unheard"),
    "waiting for a reset": (
        state(gpu("a", 0, H100, "x.service", mig={"capable": True, "enabled": False, "pending": True, "instances": []})),
        {},
        "needs a reset",
    ),
    "held by nobody knows whom": (state({**gpu("a", 0, H100), "holders": None}), {}, "its holders are unknown"),
    "perhaps held": (
        state(gpu("a", 0, H100, holders=[holder(None, "GPU-a-0", kind="unknown", who="pid 7 cannot be seen")])),
        {},
        "pid 7 cannot be seen",
    ),
    "held by two": (
        state(gpu("a", 0, H100, holders=[holder("x.service", "GPU-a-0"), holder("y.service", "GPU-a-0", pid=9)])),
        {},
        "it has several holders",
    ),
    "shared by mps": (
        state(gpu("a", 0, H100, "x.service")),
        {"layouts": {"a": [{"gpus": [0], "sharing": "mps", "mps": {"name": "m", "clients": 2, "active_thread_percentage": 50}}]}},
        "shared by mps",
    ),
    "served by a daemon": (
        state(gpu("a", 0, H100, "x.service"), daemons=[{"name": "m", "places": [{"gpu_uuid": "GPU-a-0"}]}]),
        {},
        "an MPS daemon serves it",
    ),
    "left by the inventory": (
        state(gpu("a", 0, H100, "x.service")),
        {"said": {"a": [{"match": "x", "leave": True}]}},
        "excluded in the inventory (gpu_rightsize_workloads of a[0])",
    ),
    "unhealthy": (state(gpu("a", 0, H100, "x.service")), {"words": {("a", 0, ""): "unhealthy"}}, "unhealthy: repair it"),
    "without data": (state(gpu("a", 0, H100, "x.service")), {"words": {("a", 0, ""): "no_data"}}, "too little data"),
    "of a layout that does not hold": (
        state(gpu("a", 0, H100, "x.service")),
        {"layouts": {"a": [{"gpus": [7], "sharing": "exclusive"}]}},
        "the host's layout is invalid",
    ),
    "not what its layout says": (
        state(gpu("a", 0, H100, "x.service")),
        {"layouts": {"a": [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}]}]}},
        "the host differs from its layout, apply the layout first (gpu 0: enable MIG mode, create 3g.40gb",
    ),
    "with a tenant on two GPUs": (
        state(gpu("a", 0, H100), tenants=[tenant("x", gpus=("GPU-a-0", "GPU-a-1"))]),
        {},
        "the tenant x spans several GPUs",
    ),
    "with a tenant that bursts": (
        state(gpu("a", 0, H100), tenants=[tenant("x", policy="burst")]),
        {},
        "its own policy or priority",
    ),
    "with a tenant that oversubscribes managed memory": (
        state(gpu("a", 0, H100), tenants=[tenant("x", oversubscribe_managed=True)]),
        {},
        "the tenant x may have managed memory beyond its quota",
    ),
    "with a tenant that has an earlier name": (
        state(gpu("a", 0, H100), tenants=[tenant("x", aliases=["w"])]),
        {},
        "the tenant x is being renamed (was: w)",
    ),
    "with an instance without data": (
        state(gpu("a", 0, H100, instances=[(1, "3g.40gb", 4, "x.service"), (2, "1g.10gb", 0, "y.service")])),
        {"words": {("a", 0, "2"): "no_data"}},
        "too little data",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ODD))
def test_gpu_is_excluded_with_a_reason(name):
    found_state, more, words = ODD[name]
    found = one_of(found_state, **more)
    assert words in found.left
    assert all(one.left for one in found.occupants)


LEASES = {"by": "host", "groups": ["ml"]}


@pytest.mark.parametrize(
    "entry,row",
    [
        (
            {"sharing": "mig", "mig": [], "leases": {**LEASES, "profiles": ["3g.40gb"]}},
            gpu("a", 0, H100, instances=[(1, "3g.40gb", 4, "chat.service")]),
        ),
        ({"sharing": "vgpu", "vgpu": {"policy": "fixed"}, "leases": LEASES}, gpu("a", 0, H100, "chat.service")),
    ],
)
def test_gpu_with_leases_is_excluded_and_other_gpus_are_not(entry, row):
    layout = [{"gpus": [0], **entry}, {"gpus": [1], "sharing": "exclusive"}]
    first, second = today({"a": state(row, gpu("a", 1, H100, "train.service"))}, layouts={"a": layout})
    assert first.left == "it is for leases (gpu_layout[0])" and second.left == ""
    # A plan for the host must not contain the instance of the lease.
    plan, _beside = overlay.planned(layout, [first.gpu, second.gpu], None)
    assert plan.lines() == [] or not plan.changes_devices


def test_daemon_serves_only_its_devices():
    daemon = {"name": "m", "places": [{"gpu_uuid": "GPU-a-01"}], "problem": "GPU-a-0 cannot be read"}
    assert one_of(state(gpu("a", 0, H100, "x.service"), daemons=[daemon])).left == ""


def began(*hours, **more):
    """Return a GPU whose processes started these numbers of hours ago."""
    rows = [
        holder("x.service", "GPU-a-0", pid=n + 1, started_seconds=NOW - 3600 * age, **more)
        for n, age in enumerate(hours)
    ]
    return state(gpu("a", 0, H100, holders=rows))


def left(states, held_hours=None, **more):
    """Return the reason why the only workload of host a is left out, or "".

    The policy requires one day of history of the workload itself.
    """
    audit = audit_of({"a": states})
    if held_hours is not None:
        (found,) = audit.findings
        holding = dataclasses.replace(found.holding, held_seconds=held_hours * 3600.0)
        audit = dataclasses.replace(audit, findings=(dataclasses.replace(found, holding=holding),))
    said = {host: wishes(rows, host) for host, rows in more.items()}
    (found,) = fleet_today(audit, hosts_today({"a": states}, {}), said, least_seconds=24 * 3600.0)
    return found.left


def test_new_holder_has_no_history():
    words = "it runs for less than 24 h, and earlier history belongs to others"
    assert left(began(23)) == left(began(25), held_hours=12) == left(began(25), held_hours=0) == words
    # The age of the oldest process counts, because workers are restarted.
    assert left(began(1, 25)) == left(began(25), held_hours=24) == left(state(gpu("a", 0, H100, "x.service"))) == ""


def test_figures_of_the_inventory_need_no_history():
    assert left(began(1), a=[{"match": "x", "memory": "8GiB", "sm_percent": 10}]) == ""
    assert left(began(1), a=[{"match": "x", "profile": "1g.10gb"}]) == ""


def test_tenants_of_an_unhealthy_gpu_stay():
    there = state(gpu("a", 0, H100), tenants=[tenant("x")])
    assert "unhealthy: repair it first" in one_of(there, words={("a", 0, ""): "unhealthy"}).left


def test_unnamed_container_stays_if_some_must():
    there = state(gpu("a", 0, H100, "docker container 0123456789ab"))
    assert "name of its container is unknown" in one_of(there, said={"a": [{"match": "b*", "leave": True}]}).left
    assert not one_of(there, said={"a": [{"match": "b*", "latency": "low"}]}).left
    named = state(gpu("a", 0, H100, "docker container billing"))
    assert "excluded in the inventory" in one_of(named, said={"a": [{"match": "b*", "leave": True}]}).left


def test_figures_of_the_inventory_replace_missing_history():
    said = {"a": [{"match": "x", "memory": "8GiB", "sm_percent": 10}]}
    assert not one_of(state(gpu("a", 0, H100, "x.service")), said=said, words={("a", 0, ""): "no_data"}).left


def test_invalid_result_of_gpu_info_is_an_error():
    with pytest.raises(RightsizeError, match="a: its state is not a result of"):
        host_of("a", {"gpus": [{"index": 0}]})


# --- Reasons for an unchanged size ---


@pytest.mark.parametrize(
    ("missing", "limits", "words"),
    [
        ("", Limits(), "It could be 1g.10gb, but that frees no GPU."),
        ("", Limits(most_moved=1), "It could be 1g.10gb, but that frees no GPU within the limits of changes."),
        ("", Limits(most_destroyed=0), "It could be 1g.10gb, but that frees no GPU within the limits of changes."),
        ("No module named 'ortools'", Limits(), "OR-Tools is missing: run `pip install ortools` to get the optimum."),
    ],
)
def test_unchanged_oversized_workload_has_a_reason(missing, limits, words):
    """State why an oversized workload stays unchanged.

    The workload is alone on its GPU. Without OR-Tools, the search does not try every plan, so the reason must not claim
    that no plan frees a GPU.
    """
    states = {"a": state(gpu("a", 0, H100, "x.service"))}
    said = {"a": wishes([{"match": "x", "memory": "4GiB", "sm_percent": 10}], "a")}
    audited = mock.patch.object(make, "make_audit", lambda order, now_seconds, say: audit_of(states))
    with audited, mock.patch.object(exact, "MISSING", missing):
        (found,) = make.make(make.Request(Order(345600.0), states, wishes=said, limits=limits), NOW).workloads
    assert found.change == "stays"
    assert words in found.reason
    assert ("frees no GPU" in found.reason) == (not missing)


# --- Reclaimable holders ---


def reclaim(
    states, words=None, grace_hours=48.0, exempt=(), quiet_hours=96.0, standby=(), idle_after_hours=48.0, jobs="spare"
):
    audit = audit_of(states, words or {}, quiet_hours, idle_after_hours)
    bounds = Bounds(grace_hours and grace_hours * 3600, exempt, standby, jobs)
    return {one.name: one for one in reclaimable(audit, states, bounds)}


IDLE = {("a", 0, ""): "idle"}


def with_jobs(*held):
    """Return a host whose GPUs are held by jobs. `held` has the job ID of each GPU."""
    slurm = {"kind": "slurm", "user": "alice", "pid": None}
    return state(
        *(
            gpu("a", n, H100, holders=[{**holder(None, "GPU-a-%d" % n, job=job), **slurm, "who": "Slurm job %s" % job}])
            for n, job in enumerate(held)
        )
    )


@pytest.mark.parametrize(("jobs", "stop"), [("notify", False), ("cancel", True)])
def test_idle_jobs_are_listed_one_by_one_if_the_inventory_allows_it(jobs, stop):
    words = {("a", 0, ""): "idle", ("a", 1, ""): "held_without_process", ("a", 2, ""): "right"}
    found = reclaim({"a": with_jobs("17", "18", "19")}, words, jobs=jobs)
    assert {name: (one.kind, one.gpus, one.stop, one.spared) for name, one in found.items()} == {
        "17": ("job", ("GPU-a-0",), stop, ""),
        "18": ("job", ("GPU-a-1",), stop, ""),
    }


@pytest.mark.parametrize(
    ("held", "more", "why"),
    [
        (["17", "17"], {}, "it also holds another GPU, which is in use or unknown"),
        (["17"], {"exempt": ["alice"]}, "exempt (alice)"),
        (["17"], {"exempt": ["17"]}, "exempt (17)"),
        (["17"], {"quiet_hours": 20}, "idle for 20 h"),
        # These holders are pods of Kubernetes.
        (["3f0c8b9a-0b1d-4c58-9f0e-0d9f1c8a7b11"], {}, "an operator has to stop it"),
    ],
)
def test_idle_job_is_spared(held, more, why):
    (one,) = reclaim({"a": with_jobs(*held)}, {**IDLE, ("a", 1, ""): "right"}, jobs="cancel", **more).values()
    assert why in one.spared


def test_idle_jobs_are_spared_by_default():
    (one,) = reclaim({"a": with_jobs("17")}, IDLE).values()
    assert one.spared == "not a unit or container: an operator has to stop it"


@pytest.mark.parametrize("name", ["x.service", "openfleet-gpu-lease-7.scope"])
def test_idle_service_or_lease_can_be_stopped(name):
    (one,) = reclaim({"a": state(gpu("a", 0, H100, name))}, IDLE).values()
    assert (one.kind, one.name, one.gpus, one.spared) == ("unit", name, ("GPU-a-0",), "")
    assert one.quiet_seconds == 96 * 3600 and one.waste_per_month == 10.0


def owner_of(*workloads, name="x.service"):
    """Return the owner of an idle unit, on a GPU that has these workloads."""
    states = {"a": state(gpu("a", 0, H100, name))}
    audit = audit_of(states, IDLE)
    rows = [Row("a", "GPU-a-0", "0", "", "", audit.findings[0].id, "idle", 1.0, 1.0, None, one) for one in workloads]
    (one,) = reclaimable(dataclasses.replace(audit, ledger=Ledger(tuple(rows))), states, Bounds())
    return one.user, one.team, one.contact


def test_owner_of_an_idle_workload_is_that_of_the_ledger():
    mine = Workload("unit", "x.service", "a", user="alice", team="vision", contact="#vision")
    pod = Workload("pod", "web", namespace="shop", team="shop")
    assert owner_of(mine) == owner_of(mine, pod) == ("alice", "vision", "#vision")
    assert owner_of(pod) == ("namespace shop", "shop", "")
    assert owner_of() == ("", "", "")


def test_workloads_that_share_a_gpu_have_only_their_common_owner():
    first = Workload("process", "processes of bob", "a", user="bob", team="vision")
    second = Workload("process", "processes of carol", "a", user="carol", team="vision")
    assert owner_of(first, second) == ("", "vision", "")


@pytest.mark.parametrize(
    ("found", "more", "why"),
    [
        (gpu("a", 0, H100, "x.service"), {"quiet_hours": 47}, "idle for 47 h; protected for 48 h"),
        (gpu("a", 0, H100, "x.service"), {"exempt": ["x.*"]}, "exempt (x.*)"),
        (gpu("a", 0, H100, "x.service"), {"exempt": ["alice"]}, "exempt (alice)"),
        (gpu("a", 0, H100, "x.service"), {"exempt": ["a"]}, "exempt (a)"),
        (gpu("a", 0, H100, "user@1000.service"), {}, "is an interactive session"),
        # A user may have passed an open GPU device node to this service.
        (gpu("a", 0, H100, "polkit.service"), {}, "it holds GPUs for other processes"),
        (gpu("a", 0, H100, "slurmd.service"), {}, "holds GPUs for other processes"),
        (gpu("a", 0, H100, "x.scope"), {}, "not a service"),
        (gpu("a", 0, H100, "openfleet-gpu-lease-x.scope"), {}, "holds GPUs for other processes"),
        (gpu("a", 0, H100, "containerd container 0123456789ab"), {}, "stopped where they were started"),
        (gpu("a", 0, H100, "podman@1000 container x"), {}, "stopped where they were started"),
        (gpu("a", 0, H100, "podman container dcgm-exporter"), {}, "it monitors GPUs, or provides them to others"),
        (
            gpu("a", 0, H100, "docker container 0123456789ab"),
            {"exempt": ["x"]},
            "its name is unknown, and may be exempt",
        ),
        (gpu("a", 0, H100, "x.service"), {"exempt": ["x"]}, "exempt (x)"),
        (
            gpu(
                "a",
                0,
                H100,
                holders=[
                    holder("x.service", "GPU-a-0", pid=1, started_seconds=NOW - 90 * 3600),
                    holder("x.service", "GPU-a-0", pid=2, started_seconds=NOW - 47 * 3600),
                ],
            ),
            {},
            "started 47 h ago; protected for 48 h",
        ),
        (gpu("a", 0, H100, holders=[holder(None, "GPU-a-0")]), {}, "an operator has to stop it"),
        (gpu("a", 0, H100, holders=[holder("x.service", "GPU-a-0", job="17")]), {}, "a job of a scheduler"),
        (gpu("a", 0, H100, holders=[holder("x.service", "GPU-a-0", kind="unknown")]), {}, "is unknown"),
    ],
)
def test_spared_holders_have_a_reason(found, more, why):
    (one,) = reclaim({"a": state(found)}, IDLE, **more).values()
    assert why in one.spared


def test_holder_in_its_first_pause_is_announced_and_not_stopped_soon():
    row = gpu("a", 0, H100, holders=[holder("x.service", "GPU-a-0", started_seconds=NOW - 900 * 3600)])
    (one,) = reclaim({"a": state(row)}, IDLE, grace_hours=None).values()
    assert (one.spared, one.stop_quiet_seconds) == ("", 184 * 3600)
    # A limit that the operator sets takes precedence.
    (one,) = reclaim({"a": state(row)}, IDLE, grace_hours=24).values()
    assert (one.spared, one.stop_quiet_seconds) == ("", 0)


@pytest.mark.parametrize(("grace_hours", "least"), [(24, 80), (None, 80), (85, 85)])
def test_holder_younger_than_its_idle_time_is_spared(grace_hours, least):
    """Spare a holder that is younger than its idle time.

    Even with a short grace time, the time before the holder started must not count as idle.
    """
    for age, spared in (
        (least - 1, "started %d h ago; protected for %d h" % (least - 1, least)),
        (least + 1, ""),
    ):
        row = gpu("a", 0, H100, holders=[holder("x.service", "GPU-a-0", started_seconds=NOW - age * 3600)])
        (one,) = reclaim({"a": state(row)}, IDLE, grace_hours=grace_hours, idle_after_hours=80).values()
        assert one.spared == spared and one.idle_after_seconds == 80 * 3600


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "less than an hour"), (3599, "less than an hour"), (3600, "1 h"), (47.99 * 3600, "47 h")],
)
def test_age_of_a_young_holder_is_in_hours(seconds, text):
    row = gpu("a", 0, H100, holders=[holder("x.service", "GPU-a-0", started_seconds=NOW - seconds)])
    (one,) = reclaim({"a": state(row)}, IDLE).values()
    assert one.spared == "started %s ago; protected for 48 h" % text


def test_holder_that_also_has_a_working_gpu_is_spared():
    (one,) = reclaim({"a": state(gpu("a", 0, H100, "x.service"), gpu("a", 1, H100, "x.service"))}, IDLE).values()
    assert "also holds another GPU" in one.spared and one.gpus == ("GPU-a-0", "GPU-a-1")


def bare(name, uuid, **more):
    """Return a process that has a GPU's node open, but no CUDA context."""
    return holder(name, uuid, kind="device_handle", pid=99, **more)


def test_bare_handle_does_not_spare_a_unit():
    """A bare handle is an open device node without a CUDA context.

    Here another user's process in the service opened the node a minute ago.
    """
    young = NOW - 60
    first = gpu("a", 0, H100, "hub.service")
    first["holders"] += [bare("hub.service", "GPU-a-0", started_seconds=young), bare(None, "GPU-a-0")]
    second = gpu("a", 1, H100, "train.service")
    second["holders"].append(bare("hub.service", "GPU-a-1", started_seconds=young))
    found = reclaim({"a": state(first, second)}, IDLE)
    assert (found["hub.service"].gpus, found["hub.service"].spared) == (("GPU-a-0",), "")
    # The list of holders still has the process with the bare handle.
    assert any(str(bare("hub.service", "GPU-a-0")["who"]) == who for who in found["hub.service"].holders)


def test_holder_with_only_bare_handles_counts():
    rows = [gpu("a", n, H100, holders=[bare("agent.service", "GPU-a-%d" % n)]) for n in range(2)]
    (one,) = reclaim({"a": state(*rows)}, IDLE).values()
    assert "also holds another GPU" in one.spared and one.gpus == ("GPU-a-0", "GPU-a-1")
    (one,) = reclaim({"a": state(rows[0])}, IDLE).values()
    assert not one.spared


def test_bare_handle_is_no_second_workload():
    row = gpu("a", 0, H100, "x.service")
    row["holders"].append(bare("y.service", "GPU-a-0"))
    (found,) = today({"a": state(row)})
    assert [one.name for one in found.occupants] == ["x"] and not found.left


def test_unknown_name_is_spared():
    for name, why in (
        ("x;y.service", "not a valid name of a unit"),
        ("podman container $(id)", "not a valid name of a container"),
    ):
        (one,) = reclaim({"a": state(gpu("a", 0, H100, name))}, IDLE).values()
        assert one.spared == why


def test_containers_and_instances_are_listed():
    states = {
        "a": state(
            gpu("a", 0, H100, "podman container notebook"),
            gpu("a", 1, H100, instances=[(1, "3g.40gb", 4, "x.service"), (2, "1g.10gb", 0, "y.service")]),
        )
    }
    found = reclaim(states, {("a", 0, ""): "idle", ("a", 1, "1"): "held_without_process"})
    assert set(found) == {"notebook", "x.service"}
    assert (found["notebook"].kind, found["notebook"].runtime) == ("container", "podman")
    assert found["x.service"].gpus == ("GPU-a-1 1",) and not found["x.service"].spared
    # With the power of the whole GPU at rest, its instances can be judged.
    assert (found["notebook"].rest_watts, found["x.service"].rest_watts) == ({}, {"GPU-a-1": 75.0})


def test_working_or_unknown_holders_are_not_listed():
    states = {"a": state(gpu("a", 0, H100, "x.service"), gpu("a", 1, H100, "y.service"))}
    assert reclaim(states, {("a", 0, ""): "right", ("a", 1, ""): "no_data"}) == {}


# --- Written files ---


def proposal(*hosts):
    changes = tuple(
        HostChange(host, ({"gpus": [0], "sharing": "exclusive"},), True, (), (), ("gpu 0: x",), 0, 0, 0, (), (), None)
        for host in hosts
    )
    return Proposal(0.0, Window(0.0, 0.0), "", changes, (), (), 0, 0, 0, None, "", 0, 0)


def test_new_proposal_removes_old_hosts_but_no_other_files(tmp_path):
    write.all_of(proposal("a", "b"), tmp_path)
    own = tmp_path / "proposal" / "host_vars" / "c" / "gpu_layout.yml"
    own.parent.mkdir()
    own.write_text("gpu_layout: []\n")
    write.all_of(proposal("b"), tmp_path)
    assert sorted(path.parent.name for path in tmp_path.glob("proposal/host_vars/*/gpu_layout.yml")) == ["b", "c"]
    assert yaml.safe_load((tmp_path / "proposal" / "hosts.yml").read_text()) == {"all": {"hosts": {"b": {}}}}


@pytest.fixture
def no_umask():
    """Set the umask to 0, so that it does not restrict file modes."""
    former = os.umask(0)
    yield
    os.umask(former)


def test_proposal_is_readable_for_owner_and_group_only(tmp_path, no_umask):
    for _time in range(2):
        write.all_of(proposal("a"), tmp_path / "new" / "place")
        found = {path for path in tmp_path.rglob("*") if path.is_file()}
        assert len(found) == 5 and {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o640}
        folders = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_dir()}
        assert folders == {0o750}
        # Files of an earlier release exist.
        for path in found:
            path.chmod(0o644)


@pytest.mark.parametrize("host", ["..", "a/b"])
def test_host_name_cannot_change_the_path(host, tmp_path):
    with pytest.raises(RightsizeError, match="cannot be a directory"):
        write.all_of(proposal(host), tmp_path)
    assert not list(tmp_path.glob("**/gpu_layout.yml"))


@pytest.mark.parametrize(
    "word", ["x\ngpu_layout: []", "x\rgpu_layout: []", "x\x85gpu_layout: []", "x\u2028y: []", "{{ x }}"]
)
def test_files_for_ansible_have_no_text_of_hosts_or_users(word):
    found = {"what": "gpu 0", "who": (word,)}
    change = dataclasses.replace(proposal("a").hosts[0], plan=(word,), disturbs=(found,))
    text = write.layout_text(change)
    assert yaml.safe_load(text) == {"gpu_layout": [{"gpus": [0], "sharing": "exclusive"}]}
    assert word not in text and "rightsize.yml" in text


@pytest.mark.parametrize("word", ["{{ lookup('pipe', 'id') }}", "{% x %}", "a\rb", "a\u2028b"])
def test_layout_with_templates_is_not_written(word):
    layout = ({"gpus": [0], "sharing": "mig", "mig": [{"profile": word}]},)
    with pytest.raises(RightsizeError, match="not plain text"):
        write.layout_text(dataclasses.replace(proposal("a").hosts[0], layout=layout))
