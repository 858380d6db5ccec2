# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the steps before a stop: notice, waiting time, keeps and observation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.module_utils.keep import notices
from ansible_collections.openfleet.gpu.plugins.module_utils.keep.keeps import Keep
from ansible_collections.openfleet.gpu.plugins.module_utils.reclaim import stop, tell, wording
from ansible_collections.openfleet.gpu.plugins.module_utils.reclaim.checks import (
    ENGINES,
    LONG_KERNELS,
    SHORT_KERNELS,
    TRANSFERS,
    cannot_tell,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.reclaim.stop import Policy, Tools, reclaim
from ansible_collections.openfleet.gpu.plugins.module_utils.reclaim.watch import Watched, watch
from tests.unit.module_utils.reclaim.test_idle_stop import CONTAINER, IN_MIG, UNIT, Stops, at_rest, held, host, work_of

DAY = 86400.0
OTHER = {**UNIT, "name": "y.service", "gpus": ["GPU-1"]}
HOLDERS = [held(), held("y.service", gpu="GPU-1"), held("podman container notebook", kind="container")]


class Machine:
    """A host with a clock, holders and keep requests that the test sets.

    The host's records are real files.
    """

    def __init__(self, folder, monkeypatch) -> None:
        self.folder, self.now, self.kept, self.told = str(folder), 1.8e9, [], []
        self.stops, self.seen, self.holders, self.measure = Stops(), host(), list(HOLDERS), at_rest()
        monkeypatch.setattr(stop.time, "time", lambda: self.now)
        monkeypatch.setattr(tell, "owner_of", lambda item: None)
        monkeypatch.setattr(tell, "tell", lambda way, row, uid, text: self.told.append((way, text)))

    def run(self, *items, **policy):
        tools = Tools(
            lambda: (self.seen, self.holders), self.measure, lambda: self.kept, self.stops.stop, self.stops.closure
        )
        with notices.opened(self.folder, DAY, policy.get("dry", False)) as record:
            return reclaim(items, tools, Policy(record=record, host="ada", ways=["wall"], **policy))

    @property
    def recorded(self) -> dict:
        with notices.opened(self.folder, DAY, dry=True) as record:
            return dict(record._announced)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def names(rows):
    return [row["name"] for row in rows]


def test_finding_is_announced_awaited_and_stopped_with_one_notice_each(machine):
    done = machine.run(UNIT)
    assert names(done["noticed"]) == ["x.service"] and done["stopped"] == done["spared"] == []
    assert done["noticed"][0]["stop_after"] == machine.now + DAY
    machine.now += DAY - 1
    for _again in range(2):
        done = machine.run(UNIT)
        assert done["noticed"] == done["stopped"] == []
        assert done["spared"][0]["why"].startswith(
            "notice sent 2027-01-15 08:00 UTC, to be stopped after 2027-01-16 08:00"
        )
    assert machine.stops.names == [] and len(machine.told) == 1
    machine.now += 1
    assert names(machine.run(UNIT)["stopped"]) == ["x.service"]
    assert machine.stops.names == ["x.service"] and machine.recorded == {}
    assert [text.splitlines()[0] for _way, text in machine.told] == [
        "Service x.service on ada holds gpu 0 (GPU-0) and uses nothing of it.",
        "Service x.service on ada was stopped. It held gpu 0 (GPU-0) without any sign of work.",
    ]


@pytest.mark.parametrize("changed", [{"name": "z.service"}, {"gpus": ["GPU-0", "GPU-1"]}, {"kind": "container"}])
def test_other_finding_gets_its_own_notice(machine, changed):
    machine.run(UNIT)
    machine.now += 2 * DAY
    machine.holders += [held("z.service"), held(gpu="GPU-1"), held("container x.service")]
    done = machine.run({**UNIT, **changed})
    assert len(done["noticed"]) == 1 and done["stopped"] == []
    assert len(machine.recorded) == 1


def test_gone_finding_is_forgotten(machine):
    machine.run(UNIT, OTHER)
    machine.now += DAY
    machine.run(OTHER)
    machine.now += DAY
    done = machine.run(UNIT)
    assert names(done["noticed"]) == ["x.service"] and machine.stops.names == ["y.service"]


def test_finding_that_worked_meanwhile_gets_a_new_notice(machine):
    machine.run(UNIT)
    machine.seen, machine.now = host(5), machine.now + DAY / 2
    assert "is in use now" in machine.run(UNIT)["spared"][0]["why"]
    machine.seen, machine.now = host(), machine.now + DAY
    assert names(machine.run(UNIT)["noticed"]) == ["x.service"] and machine.stops.names == []


def test_notice_before_the_idle_time_does_not_count(machine):
    """Ignore a notice that no later run could have withdrawn before the idle time."""
    machine.run({**UNIT, "quiet_seconds": 3 * DAY})
    machine.now += 10 * DAY
    assert names(machine.run({**UNIT, "quiet_seconds": 3 * DAY})["noticed"]) == ["x.service"]
    machine.now += 2 * DAY
    assert names(machine.run({**UNIT, "quiet_seconds": 5 * DAY})["stopped"]) == ["x.service"]


def test_clock_set_back_restarts_the_waiting_time(machine):
    machine.run(UNIT)
    machine.now -= 30 * DAY
    assert names(machine.run(UNIT)["noticed"]) == ["x.service"]


def test_each_finding_has_its_own_idle_time(machine):
    """Use the idle time of each finding, because one time for all would be too short."""
    machine.holders = [replace(one, pid=7, started_seconds=machine.now - 5 * DAY) for one in machine.holders]
    done = machine.run(
        {**UNIT, "idle_after_seconds": 6 * DAY}, {**OTHER, "idle_after_seconds": 4 * DAY}, grace_seconds=2 * DAY
    )
    assert names(done["noticed"]) == ["y.service"]
    assert "started 120.0 h ago; protected for 144 h" in done["spared"][0]["why"]


def test_owner_is_asked_before_a_first_pause_ends(machine):
    """Send the notice at once, but stop the unit only after a full pause."""
    paused = {**UNIT, "stop_quiet_seconds": 8 * DAY}
    (row,) = machine.run({**paused, "quiet_seconds": 3 * DAY})["noticed"]
    assert row["stop_after"] == machine.now + 5 * DAY
    machine.now += 4 * DAY
    assert "to be stopped after" in machine.run({**paused, "quiet_seconds": 7 * DAY})["spared"][0]["why"]
    machine.now += DAY
    assert names(machine.run({**paused, "quiet_seconds": 8 * DAY})["stopped"]) == ["x.service"]


def test_spared_findings_get_no_notice(machine):
    machine.holders = []
    done = machine.run(UNIT)
    assert done["noticed"] == [] and "no longer holds a GPU" in done["spared"][0]["why"] and machine.told == []


def test_external_notice_counts_when_confirmed(machine):
    for _run in range(2):
        (row,) = machine.run(UNIT, records=False)["noticed"]
        machine.now += 2 * DAY
    assert machine.recorded == {}
    with notices.opened(machine.folder, DAY) as record:
        record.add([row], machine.now)
    machine.now += DAY
    assert names(machine.run(UNIT, records=False)["stopped"]) == ["x.service"]


def test_check_mode_announces_and_stops_nothing(machine, tmp_path):
    assert names(machine.run(UNIT, dry=True)["noticed"]) == ["x.service"]
    assert machine.told == [] and list(tmp_path.iterdir()) == []
    machine.run(UNIT)
    machine.now += DAY
    assert names(machine.run(UNIT, dry=True)["stopped"]) == ["x.service"]
    assert machine.stops.names == [] and len(machine.told) == 1 and len(machine.recorded) == 1


def test_failed_notification_is_noted_and_stops_nothing(machine, monkeypatch):
    def fails(*_given):
        raise FleetError("wall", "it cannot be run")

    monkeypatch.setattr(tell, "tell", fails)
    (row,) = machine.run(UNIT)["noticed"]
    assert (row["told"], row["untold"]) == ([], ["wall: it cannot be run."])
    machine.now += DAY
    assert names(machine.run(UNIT)["stopped"]) == ["x.service"]


def keep_of(machine, until):
    return Keep("unit", "x.service", "x.service", 61001, "alice", machine.now, until)


def test_kept_findings_are_neither_announced_nor_stopped(machine):
    machine.kept = [keep_of(machine, machine.now + 3 * DAY)]
    done = machine.run(UNIT, OTHER)
    assert done["spared"] == [{"kind": "unit", "name": "x.service", "why": "kept until 2027-01-18 08:00 UTC by alice"}]
    machine.kept = []
    machine.run(UNIT, OTHER)
    machine.now += DAY
    machine.kept = [keep_of(machine, machine.now + 60)]
    assert names(machine.run(UNIT, OTHER)["spared"]) == ["x.service"]
    assert machine.stops.names == ["y.service"]


def test_keep_during_the_observation_counts(machine):
    machine.run(UNIT)
    machine.now += DAY

    def measure(places, seconds):
        machine.kept = [keep_of(machine, machine.now + 60)]
        return at_rest()(places, seconds)

    machine.measure = measure
    done = machine.run(UNIT)
    assert machine.stops.names == [] and "kept until" in done["spared"][0]["why"]


def test_unreadable_keeps_prevent_stops(machine):
    machine.run(UNIT)
    machine.now += DAY

    class Unreadable:
        def __call__(self):
            raise FleetError("keeps.json", "it is damaged")

    tools = Tools(lambda: (host(), HOLDERS), at_rest(), Unreadable(), machine.stops.stop, machine.stops.closure)
    done = reclaim([UNIT], tools, Policy())
    assert machine.stops.names == [] and "it is damaged" in done["spared"][0]["why"]


# -- The record --------------------------------------------------------------------------------------------------------


def test_record_is_private_and_links_are_not_followed(machine, tmp_path):
    folder = tmp_path / "reclaim"
    folder.mkdir()
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (folder / "notices.json.new").symlink_to(victim)
    machine.run(UNIT)
    assert victim.read_text() == "mine"
    assert (folder / "notices.json").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in folder.iterdir()) == ["lock", "notices.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2}', '{"schema": 1, "notices": [{"kind": "unit"}]}'])
def test_damaged_record_stops_the_run_first(machine, tmp_path, text):
    machine.run(UNIT)
    (tmp_path / "reclaim/notices.json").write_text(text)
    machine.now += DAY
    with pytest.raises(notices.NoticeError, match=r"notices\.json.*Remove it: every idle holder then gets a notice"):
        machine.run(UNIT)
    assert machine.stops.names == []


def test_concurrent_runs_do_not_share_a_record(machine):
    with notices.opened(machine.folder, DAY), pytest.raises(notices.NoticeError, match="another run"):
        machine.run(UNIT)


# -- Observation -------------------------------------------------------------------------------------------------------


class Clock:
    """A clock that advances only while something is measured."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds


def watched(items, values, seconds=60.0):
    """Return (result for each unit, duration in seconds, number of measurements).

    `values` gets a place and the second at which a measurement starts. It returns the measured values, or None if the
    GPU fails.
    """
    clock, taken = Clock(), []

    def measure(places, length):
        began, clock.seconds = clock.seconds, clock.seconds + length
        made = {where: values(where, began) for where in places}
        taken.append(length)
        if any(isinstance(one, Exception) for one in made.values()):
            raise next(one for one in made.values() if isinstance(one, Exception))
        return {where: work_of(where, length, **one) for where, one in made.items() if one is not None}

    found = watch(items, measure, seconds, clock.now)
    return found, clock.seconds, len(taken)


def reasons(*given, **options):
    return [one.why for one in watched(*given, **options)[0]]


GPU_0, GPU_1, INSTANCE = ("GPU-0", None), ("GPU-1", None), ("GPU-0", 1)
PARTS = {**UNIT, "gpus": ["GPU-0 1", "GPU-1"]}


def test_all_gpus_are_observed_together():
    assert watched([UNIT, OTHER, UNIT, IN_MIG], lambda _where, _now: {}) == ([Watched()] * 4, 60.0, 6)


@pytest.mark.parametrize("second", [0, 10, 50])
def test_activity_spares_a_gpu_and_others_are_observed_further(second):
    found, took, _count = watched(
        [UNIT, OTHER], lambda where, now: {"used": 3} if (where, now) == (GPU_0, second) else {}
    )
    assert found == [Watched("gpu 0 is in use now (3 %)"), Watched()] and took == 60.0


def test_observation_ends_if_no_gpu_is_left():
    found, took, count = watched([UNIT, OTHER], lambda where, now: {"used": int(now == (10 if where == GPU_0 else 20))})
    assert all(one.why for one in found) and (took, count) == (30.0, 3)


@pytest.mark.parametrize(("item", "where"), [(UNIT, GPU_0), (IN_MIG, INSTANCE)])
@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"engines_ratio": 0.01}, "an engine for video, JPEG or optical flow of gpu 0 is in use"),
        ({"bandwidth_ratio": 0.012}, "the memory of gpu 0 is in use"),
        ({"pcie_bytes_per_second": 1.2e7}, "gpu 0 transfers 12 MB/s over PCIe"),
        ({"nvlink_bytes_per_second": 2e6}, "gpu 0 transfers 2 MB/s over NVLink"),
        ({"engines_ratio": 0.009, "bandwidth_ratio": 0.009, "pcie_bytes_per_second": 9e6, "nvlink_bytes_per_second": 9e5}, ""),
    ],
)  # fmt: skip
def test_each_sign_of_work_spares_gpus_and_instances(item, where, values, why):
    assert reasons([item], lambda at, now: values if (at, now) == (where, 30.0) else {}) == [why]


@pytest.mark.parametrize("item", [UNIT, IN_MIG])
@pytest.mark.parametrize(("kernels_each_minute", "works"), [(0.075, True), (0.24, True), (0.05, False), (0.0, False)])
def test_kernels_are_added_up_over_minutes(item, kernels_each_minute, works):
    """Spare a consumer of a queue whose kernels run for only 75 ms a minute."""

    def values(_where, now):
        return {"kernels_ratio": kernels_each_minute / 10 if now % 60 == 20 else 0.0}

    (why,) = reasons([item], values, seconds=300.0)
    assert why.startswith("gpu 0 ran kernels for") == works and bool(why) == works


def test_only_the_instance_that_works_is_spared():
    other = {**IN_MIG, "name": "y.service", "gpus": ["GPU-0 2"]}
    assert reasons([IN_MIG, other, PARTS], lambda where, _now: {"kernels_ratio": float(where == ("GPU-0", 2))}) == [
        "",
        "gpu 0 ran kernels for 10 s",
        "",
    ]


def test_unreadable_gpu_is_spared():
    assert reasons([UNIT], lambda _where, _now: None) == ["GPU-0 no longer answers"]
    assert reasons([PARTS], lambda where, _now: None if where == GPU_1 else {}) == ["GPU-1 no longer answers"]
    found, took, _count = watched(
        [UNIT, OTHER, IN_MIG], lambda _where, now: FleetError("NVML", "it is gone") if now else {}
    )
    assert took == 20.0
    assert all("the utilization of its GPU is not known: NVML: it is gone" in one.why for one in found)


@pytest.mark.parametrize(
    ("item", "values", "unmeasured"),
    [
        # Before Hopper, utilization has a resolution of one percent.
        (UNIT, {"kernels_ratio": None}, {SHORT_KERNELS}),
        (UNIT, {"engines_ratio": None, "pcie_bytes_per_second": None}, {ENGINES, TRANSFERS}),
        (IN_MIG, {"kernels_ratio": None, "watts": None}, {SHORT_KERNELS, LONG_KERNELS}),
        ({**IN_MIG, "rest_watts": {"GPU-0": 70.0}}, {"kernels_ratio": None}, {SHORT_KERNELS}),
        ({**IN_MIG, "rest_watts": {"GPU-0": 70.0}}, {"kernels_ratio": None, "watts": 78.0}, {SHORT_KERNELS, LONG_KERNELS}),
        ({**IN_MIG, "rest_watts": {"GPU-0": 20.0}}, {"kernels_ratio": None, "watts": 24.9}, {SHORT_KERNELS}),
        ({**IN_MIG, "rest_watts": {"GPU-1": 70.0}}, {"kernels_ratio": None}, {SHORT_KERNELS, LONG_KERNELS}),
        ({**IN_MIG, "rest_watts": {"GPU-0": 70.0}}, {"kernels_ratio": None, "watts": None}, {SHORT_KERNELS, LONG_KERNELS}),
    ],
)  # fmt: skip
def test_unmeasured_work_is_known_from_any_measurement(item, values, unmeasured):
    ((found,), _took, _count) = watched([item], lambda _where, now: values if now == 20.0 else {})
    assert (found.why, set(found.unmeasured)) == ("", unmeasured)


def process(pid=7, cpu=100.0, **more):
    return held(instance=1, pid=pid, started_seconds=1.0, started_ticks=5, clients=0, cpu_seconds=cpu, **more)


@pytest.mark.parametrize(
    ("unmeasured", "cpu", "rdma", "why"),
    [
        ((), 110.0, True, ""),
        ((SHORT_KERNELS,), 100.8, False, ""),
        # This process starts a kernel of 4 ms each second.
        ((SHORT_KERNELS,), 101.0, False, "used CPU time, and its GPU does not measure short kernels"),
        ((ENGINES,), 101.0, False, "used CPU time, and its GPU does not measure JPEG and optical flow"),
        ((SHORT_KERNELS,), None, False, "its CPU time is not known"),
        ((LONG_KERNELS, SHORT_KERNELS), 100.0, False, "NVML does not measure its instance, and the GPU is not at rest"),
        ((TRANSFERS,), 100.0, True, "it may receive data by RDMA"),
        ((TRANSFERS,), 100.0, False, ""),
    ],
)  # fmt: skip
def test_unmeasured_work_prevents_a_stop_if_the_process_may_do_it(unmeasured, cpu, rdma, why):
    found = cannot_tell(unmeasured, [process()], [process(cpu=cpu)], 300.0, lambda _pid: rdma)
    assert (found.startswith("cannot tell whether it works: ") and why in found) if why else found == ""
    # If there is no process, there can be no work.
    assert cannot_tell(unmeasured, [], [held(instance=1)], 300.0, lambda _pid: rdma) == ""


def test_doubt_does_not_withdraw_the_notice(machine):
    machine.seen, machine.holders = host(mig=True), [process()]
    machine.run(IN_MIG)
    machine.now += DAY
    machine.measure = at_rest(kernels_ratio=None)
    for _again in range(2):
        done = machine.run(IN_MIG)
        assert done["noticed"] == [] and done["spared"][0]["why"].startswith("cannot tell whether it works")
    assert machine.stops.names == []
    machine.measure = at_rest()
    assert names(machine.run(IN_MIG)["stopped"]) == ["x.service"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"clients": 1}, "a new client has connected"),
        ({"cpu_seconds": 100.2}, "its processes used 0 s of CPU time within 1 s"),
        ({"cpu_seconds": 100.05}, ""),
        # These values do not count: the pid belongs to another process, or a value is unknown because a client
        # disconnected.
        ({"cpu_seconds": 200.0, "started_ticks": 6}, ""),
        ({"clients": None, "cpu_seconds": None}, ""),
    ],
)
def test_activity_of_processes_spares_them_on_instances(machine, changes, why):
    before = held(instance=1, pid=7, started_seconds=1.0, started_ticks=5, clients=0, cpu_seconds=100.0)
    machine.seen, machine.holders = host(mig=True), [before]
    looks = []

    def look():
        looks.append(machine.now)
        return machine.seen, [before if len(looks) == 1 else replace(before, **changes)]

    tools = Tools(look, at_rest(), lambda: (), machine.stops.stop, machine.stops.closure)
    done = reclaim([IN_MIG], tools, Policy(look_seconds=1.0))
    assert [one["why"] for one in done["spared"]] == ([why] if why else [])
    assert machine.stops.names == ([] if why else ["x.service"]) and len(looks) == 2


def test_working_finding_is_spared_and_announced_again_when_idle(machine):
    machine.run(UNIT, OTHER)
    machine.now += DAY
    machine.measure = lambda places, seconds: {
        where: work_of(where, seconds, used=80 if where == GPU_0 else 0) for where in places
    }
    done = machine.run(UNIT, OTHER)
    assert machine.stops.names == ["y.service"] and done["spared"][0]["why"] == "gpu 0 is in use now (80 %)"
    machine.measure, machine.now = at_rest(), machine.now + 2 * DAY
    assert names(machine.run(UNIT)["noticed"]) == ["x.service"]


# -- The text ----------------------------------------------------------------------------------------------------------

ROW = {
    "kind": "unit", "name": "draft.service", "runtime": "", "gpus": ["GPU-5"], "places": ["gpu 2 (GPU-5)"],
    "idle_since": 1.8e9 - 3 * DAY, "stop_after": 1.8e9 + DAY, "jupyter": False, "keep": "draft.service",
}  # fmt: skip


def test_notice_has_subject_place_times_and_how_to_keep():
    assert wording.notice("ada", ROW) == (
        "Service draft.service on ada holds gpu 2 (GPU-5) and uses nothing of it.\n"
        "It has been idle since 2027-01-12 08:00 UTC or longer.\n"
        "It will be stopped after 2027-01-16 08:00 UTC, unless it uses its GPU again or is kept.\n"
        "\nTo keep it for 3 days, run on ada:\n\n    gpu-layout keep draft.service 3d\n"
    )


def test_link_is_included_only_if_configured():
    text = wording.notice("a/da", {**ROW, "keep": ""}, "https://gpu.example.org/keep?host={host}&name={name}")
    assert "gpu-layout keep" not in text
    assert text.endswith("\nOr open: https://gpu.example.org/keep?host=a%2Fda&name=draft.service\n")


def test_notice_is_short_printable_text_for_any_names():
    row = {**ROW, "name": "x\x1b[2J\u202e" + "y" * 10_000, "places": ["gpu\r0"] * 500}
    for text in (
        wording.notice("ada", row),
        wording.stopped("ada", row),
        wording.subject("ada", "noticed", [row]),
    ):
        assert len(text) < 3000 and all(line.isprintable() for line in text.splitlines())


def test_only_kernels_of_a_jupyter_server_are_shut_down():
    assert "Its idle kernels will be shut down after" in wording.notice("ada", {**ROW, "jupyter": True})
    assert "were shut down: kernel 1." in wording.stopped("ada", {**ROW, "kernels": ["kernel 1"]})


def test_container_restart_uses_its_engine():
    row = {**ROW, **CONTAINER, "runtime": "podman"}
    assert "To start it again: podman start notebook" in wording.stopped("ada", row)
