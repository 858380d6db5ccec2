# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps from a finding to a stop: a notice, its time, keeps, a longer look. Each is told once."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from test_idle_stop import CONTAINER, IN_MIG, UNIT, Stops, at_rest, held, host

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.module_utils.keep import notices
from ansible_collections.openfleet.gpu.plugins.module_utils.keep.keeps import Keep
from ansible_collections.openfleet.gpu.plugins.module_utils.reclaim import stop, tell, wording
from ansible_collections.openfleet.gpu.plugins.module_utils.reclaim.stop import Policy, Tools, reclaim
from ansible_collections.openfleet.gpu.plugins.module_utils.reclaim.watch import watch

DAY = 86400.0
OTHER = {**UNIT, "name": "y.service", "gpus": ["GPU-1"]}
HOLDERS = [held(), held("y.service", gpu="GPU-1"), held("podman container notebook", kind="container")]


class Machine:
    """A host whose clock, holders and keeps the test moves; what it records is a real file."""

    def __init__(self, folder, monkeypatch) -> None:
        self.folder, self.now, self.kept, self.told = str(folder), 1.8e9, [], []
        self.stops, self.seen, self.holders, self.sample = Stops(), host(), list(HOLDERS), at_rest()
        monkeypatch.setattr(stop.time, "time", lambda: self.now)
        monkeypatch.setattr(tell, "owner_of", lambda item: None)
        monkeypatch.setattr(tell, "tell", lambda way, row, uid, text: self.told.append((way, text)))

    def run(self, *items, **policy):
        tools = Tools(
            lambda: (self.seen, self.holders), self.sample, lambda: self.kept, self.stops.stop, self.stops.closure
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


def test_it_is_announced_then_waited_for_then_stopped_and_each_is_told_once(machine):
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
        "Service x.service on ada was stopped. It held gpu 0 (GPU-0) and used nothing of it.",
    ]


@pytest.mark.parametrize("changed", [{"name": "z.service"}, {"gpus": ["GPU-0", "GPU-1"]}, {"kind": "container"}])
def test_another_finding_gets_a_notice_of_its_own(machine, changed):
    machine.run(UNIT)
    machine.now += 2 * DAY
    machine.holders += [held("z.service"), held(gpu="GPU-1"), held("container x.service")]
    done = machine.run({**UNIT, **changed})
    assert len(done["noticed"]) == 1 and done["stopped"] == []
    assert len(machine.recorded) == 1


def test_a_finding_that_is_gone_is_forgotten(machine):
    machine.run(UNIT, OTHER)
    machine.now += DAY
    machine.run(OTHER)
    machine.now += DAY
    done = machine.run(UNIT)
    assert names(done["noticed"]) == ["x.service"] and machine.stops.names == ["y.service"]


def test_what_is_seen_at_work_in_between_gets_a_notice_again(machine):
    machine.run(UNIT)
    machine.seen, machine.now = host(5), machine.now + DAY / 2
    assert "is in use now" in machine.run(UNIT)["spared"][0]["why"]
    machine.seen, machine.now = host(), machine.now + DAY
    assert names(machine.run(UNIT)["noticed"]) == ["x.service"] and machine.stops.names == []


def test_a_notice_of_before_the_idle_time_began_is_none(machine):
    """As when no run was in between that could have forgotten it."""
    machine.run({**UNIT, "quiet_seconds": 3 * DAY})
    machine.now += 10 * DAY
    assert names(machine.run({**UNIT, "quiet_seconds": 3 * DAY})["noticed"]) == ["x.service"]
    machine.now += 2 * DAY
    assert names(machine.run({**UNIT, "quiet_seconds": 5 * DAY})["stopped"]) == ["x.service"]


def test_a_clock_that_was_set_back_begins_the_time_anew(machine):
    machine.run(UNIT)
    machine.now -= 30 * DAY
    assert names(machine.run(UNIT)["noticed"]) == ["x.service"]


def test_each_has_to_be_as_old_as_the_audit_says_of_it(machine):
    """By its own time: one grace for all would be too short for a holder whose rhythm is longer."""
    machine.holders = [replace(one, pid=7, started_seconds=machine.now - 5 * DAY) for one in machine.holders]
    done = machine.run(
        {**UNIT, "idle_after_seconds": 6 * DAY}, {**OTHER, "idle_after_seconds": 4 * DAY}, grace_seconds=2 * DAY
    )
    assert names(done["noticed"]) == ["y.service"]
    assert "started 120.0 h ago; protected for 144 h" in done["spared"][0]["why"]


def test_what_would_be_spared_gets_no_notice(machine):
    machine.holders = []
    done = machine.run(UNIT)
    assert done["noticed"] == [] and "no longer holds a GPU" in done["spared"][0]["why"] and machine.told == []


def test_a_notice_that_others_tell_counts_when_they_say_so(machine):
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


def test_a_way_that_fails_is_noted_and_stops_nothing(machine, monkeypatch):
    def fails(*_given):
        raise FleetError("wall", "it cannot be run")

    monkeypatch.setattr(tell, "tell", fails)
    (row,) = machine.run(UNIT)["noticed"]
    assert (row["told"], row["untold"]) == ([], ["wall: it cannot be run."])
    machine.now += DAY
    assert names(machine.run(UNIT)["stopped"]) == ["x.service"]


def keep_of(machine, until):
    return Keep("unit", "x.service", "x.service", 61001, "alice", machine.now, until)


def test_what_is_kept_is_neither_announced_nor_stopped(machine):
    machine.kept = [keep_of(machine, machine.now + 3 * DAY)]
    done = machine.run(UNIT, OTHER)
    assert done["spared"] == [{"kind": "unit", "name": "x.service", "why": "kept until 2027-01-18 08:00 UTC by alice"}]
    machine.kept = []
    machine.run(UNIT, OTHER)
    machine.now += DAY
    machine.kept = [keep_of(machine, machine.now + 60)]
    assert names(machine.run(UNIT, OTHER)["spared"]) == ["x.service"]
    assert machine.stops.names == ["y.service"]


def test_a_keep_during_the_look_comes_in_time(machine):
    machine.run(UNIT)
    machine.now += DAY

    def sample():
        machine.kept = [keep_of(machine, machine.now + 60)]
        return at_rest()()

    machine.sample = sample
    done = machine.run(UNIT)
    assert machine.stops.names == [] and "kept until" in done["spared"][0]["why"]


def test_where_keeps_cannot_be_read_nothing_is_stopped(machine):
    machine.run(UNIT)
    machine.now += DAY

    class Unreadable:
        def __call__(self):
            raise FleetError("keeps.json", "it is damaged")

    tools = Tools(lambda: (host(), HOLDERS), at_rest(), Unreadable(), machine.stops.stop, machine.stops.closure)
    done = reclaim([UNIT], tools, Policy())
    assert machine.stops.names == [] and "it is damaged" in done["spared"][0]["why"]


# -- The record --------------------------------------------------------------------------------------------------------


def test_the_record_is_root_s_alone_and_no_link_is_followed(machine, tmp_path):
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
def test_a_damaged_record_stops_the_run_before_anything_else(machine, tmp_path, text):
    machine.run(UNIT)
    (tmp_path / "reclaim/notices.json").write_text(text)
    machine.now += DAY
    with pytest.raises(notices.NoticeError, match=r"notices\.json.*Remove it: every idle holder then gets a notice"):
        machine.run(UNIT)
    assert machine.stops.names == []


def test_two_runs_do_not_share_a_record(machine):
    with notices.opened(machine.folder, DAY), pytest.raises(notices.NoticeError, match="another run"):
        machine.run(UNIT)


# -- The look ----------------------------------------------------------------------------------------------------------


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def watched(items, samples, seconds=60.0):
    """(why each is spared, how long it took, how many samples)."""
    clock, taken = Clock(), []

    def sample():
        taken.append(samples(int(clock.seconds)))
        if isinstance(taken[-1], Exception):
            raise taken[-1]
        return taken[-1]

    found = watch(items, sample, seconds, clock.now, clock.sleep)
    return found, clock.seconds, len(taken)


def rates(first, second=0):
    return {"GPU-0": (0, first), "GPU-1": (1, second)}


def test_all_are_watched_together_with_a_sample_a_second():
    assert watched([UNIT, OTHER, UNIT], lambda _now: rates(0)) == (["", "", ""], 60.0, 61)


@pytest.mark.parametrize("second", [0, 1, 37, 60])
def test_any_sample_of_activity_spares_and_the_others_are_watched_to_the_end(second):
    found, took, _count = watched([UNIT, OTHER], lambda now: rates(3 if now == second else 0))
    assert found == ["gpu 0 is in use now (3 %)", ""] and took == 60.0


def test_it_ends_when_none_is_left():
    found, took, count = watched([UNIT, OTHER], lambda now: rates(int(now == 5), int(now == 7)))
    assert all(found) and (took, count) == (7.0, 8)


def test_one_that_cannot_be_seen_is_spared():
    assert watched([UNIT], lambda _now: {})[0] == ["GPU-0 no longer answers"]
    assert watched([UNIT], lambda _now: rates(None))[0] == ["the utilization of gpu 0 is not known"]
    found, took, _count = watched([UNIT, OTHER], lambda now: FleetError("NVML", "it is gone") if now else rates(0))
    assert took == 1.0 and all("the utilization of its GPU is not known: NVML: it is gone" in why for why in found)


def test_of_an_instance_there_is_nothing_to_sample_and_the_time_passes():
    assert watched([IN_MIG], lambda _now: rates(100)) == ([""], 60.0, 0)
    assert watched([{**UNIT, "gpus": ["GPU-0 1", "GPU-1"]}], lambda _now: rates(100, 0))[0] == [""]
    # Nor does a driver that tells nothing speak for it.
    found, took, _count = watched([UNIT, IN_MIG], lambda _now: FleetError("NVML", "it is gone"))
    assert found[0] and found[1] == "" and took == 60.0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"clients": 1}, "a new client has connected"),
        ({"cpu_seconds": 100.2}, "its processes used 0 s of CPU time within 1 s"),
        ({"cpu_seconds": 100.05}, ""),
        # Another process with the same pid; what cannot be told; a client that has left.
        ({"cpu_seconds": 200.0, "started_ticks": 6}, ""),
        ({"clients": None, "cpu_seconds": None}, ""),
    ],
)
def test_what_processes_do_during_the_look_spares_them_also_on_an_instance(machine, changes, why):
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


def test_what_works_during_the_look_is_spared_and_told_again_only_when_it_is_idle_anew(machine):
    machine.run(UNIT, OTHER)
    machine.now += DAY
    machine.sample = lambda: rates(80)
    done = machine.run(UNIT, OTHER)
    assert machine.stops.names == ["y.service"] and done["spared"][0]["why"] == "gpu 0 is in use now (80 %)"
    machine.sample, machine.now = at_rest(), machine.now + 2 * DAY
    assert names(machine.run(UNIT)["noticed"]) == ["x.service"]


def test_the_look_is_as_long_as_it_is_asked_for(machine):
    """Not a span of the test's, but a number of samples: two that are a real second apart."""
    machine.run(UNIT)
    machine.now += DAY
    taken = []
    machine.sample = lambda: taken.append(time.monotonic()) or rates(0)
    machine.run(UNIT, look_seconds=1.0)
    assert len(taken) >= 2 and machine.stops.names == ["x.service"]


# -- The text ----------------------------------------------------------------------------------------------------------

ROW = {
    "kind": "unit", "name": "draft.service", "runtime": "", "gpus": ["GPU-5"], "places": ["gpu 2 (GPU-5)"],
    "idle_since": 1.8e9 - 3 * DAY, "stop_after": 1.8e9 + DAY, "jupyter": False, "keep": "draft.service",
}  # fmt: skip


def test_the_notice_says_what_where_since_when_until_when_and_how_to_keep_it():
    assert wording.notice("ada", ROW) == (
        "Service draft.service on ada holds gpu 2 (GPU-5) and uses nothing of it.\n"
        "It has been idle since 2027-01-12 08:00 UTC or longer.\n"
        "It will be stopped after 2027-01-16 08:00 UTC, unless it uses its GPU again or is kept.\n"
        "\nTo keep it for 3 days, run on ada:\n\n    gpu-layout keep draft.service 3d\n"
    )


def test_a_link_is_there_only_where_it_is_configured():
    text = wording.notice("a/da", {**ROW, "keep": ""}, "https://gpu.example.org/keep?host={host}&name={name}")
    assert "gpu-layout keep" not in text
    assert text.endswith("\nOr open: https://gpu.example.org/keep?host=a%2Fda&name=draft.service\n")


def test_it_is_a_screen_of_printable_text_whatever_things_are_called():
    row = {**ROW, "name": "x\x1b[2J\u202e" + "y" * 10_000, "places": ["gpu\r0"] * 500}
    for text in (
        wording.notice("ada", row),
        wording.stopped("ada", row),
        wording.subject("ada", "noticed", [row]),
    ):
        assert len(text) < 3000 and all(line.isprintable() for line in text.splitlines())


def test_of_a_jupyter_server_only_kernels_go():
    assert "Its idle kernels will be shut down after" in wording.notice("ada", {**ROW, "jupyter": True})
    assert "were shut down: kernel 1." in wording.stopped("ada", {**ROW, "kernels": ["kernel 1"]})


def test_a_container_is_started_again_by_its_engine():
    row = {**ROW, **CONTAINER, "runtime": "podman"}
    assert "To start it again: podman start notebook" in wording.stopped("ada", row)
