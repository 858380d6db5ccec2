# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the schedule of leases with examples, and in random hours of a host."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.openfleet.gpu.plugins.module_utils.layout.leases import Leases
from ansible_collections.openfleet.gpu.plugins.module_utils.leases import schedule as leases
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.model import LeaseError, Offer, Request, Shape
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.schedule import Schedule
from ansible_collections.openfleet.gpu.plugins.module_utils.model import GpuInstance, Placement
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.fit import Bin
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.lease_card import QuotaCard
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.mig.lease_card import MigCard
from tests.thorough import draws

GIB, HOUR = 2**30, 3600.0
NOW = 1_800_000_000.0
GPUS = assumed_gpus(["A100-40GB"] * 2)
PROFILES = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")


def mig_card(gpu=GPUS[0], profiles=PROFILES, fixed=(), idle=()):
    def instances(places):
        found = []
        for number, (name, start) in enumerate(places):
            profile = next(each for each in gpu.mig.profiles if each.name == name)
            placement = next(each for each in profile.placements if each.start == start)
            found.append(GpuInstance(number, name, placement))
        return found

    return MigCard.of(gpu, profiles, instances(fixed), instances(idle))


def quota_card(number=0, memory=48, sm=100, seats=64):
    return QuotaCard(Bin("GPU-quota-%d" % number, memory * GIB, sm, seats), "gpu %d" % number, "gpu %d" % number)


def offer(*cards, where="gpu_layout[0]", **limits):
    limits = {"hours": 8760, "count": 64, **limits}
    return Offer(where, Leases("host", ("ml",), profiles=PROFILES, **limits), cards)


def host(*cards, **limits):
    return Schedule((offer(*cards, **limits),))


def mig(number, profile, hours=1.0, account="alice"):
    return Request(number, account, Shape(profile=profile), hours * HOUR)


def quota(number, memory=8, sm=30, hours=1.0, gpus=1, account="alice"):
    return Request(number, account, Shape(memory * GIB, sm), hours * HOUR, gpus)


def book(schedule, *requests, now=NOW, wait=True):
    for request in requests:
        schedule = leases.book(schedule, request, schedule.offers, now, wait)
    return schedule


def starts(schedule):
    """Return when each booking starts, in hours from now."""
    return {each.request.number: (each.begins - NOW) / HOUR for each in schedule.bookings}


def places(schedule):
    return {each.request.number: [place.start for place in each.places] for each in schedule.bookings}


def refused(schedule, request, **options):
    with pytest.raises(LeaseError) as error:
        book(schedule, request, **options)
    return str(error.value)


# -- places ------------------------------------------------------------------------------------------------------------


def test_instance_is_placed_where_the_largest_profiles_stay_possible():
    schedule = book(host(mig_card()), mig(1, "1g.5gb"))
    # A 4g.20gb can start only at slice 0, so the first small instance gets a place in the upper half of the GPU.
    assert places(schedule)[1][0] >= 4
    assert book(schedule, mig(2, "4g.20gb")).started[1].places[0].start == 0


def test_used_gpu_is_filled_before_an_empty_one():
    schedule = book(host(*map(mig_card, GPUS)), mig(1, "1g.5gb"), mig(2, "2g.10gb"), mig(3, "3g.20gb"))
    assert {place.gpu_uuid for each in schedule.started for place in each.places} == {GPUS[0].uuid}
    assert book(schedule, mig(4, "7g.40gb")).started[3].places[0].gpu_uuid == GPUS[1].uuid


def test_leases_are_placed_beside_fixed_instances():
    schedule = book(host(mig_card(fixed=[("3g.20gb", 4)])), mig(1, "4g.20gb"))
    assert places(schedule) == {1: [0]}
    assert "never fits beside the fixed instances" in refused(schedule, mig(2, "7g.40gb"))


def test_equal_idle_instance_is_used_again_and_others_give_way():
    card = mig_card(idle=[("1g.5gb", 2), ("2g.10gb", 4)])
    small = book(host(card), mig(1, "1g.5gb", 1)).started[0]
    assert card.removed(leases._uses(small)[0][1]) in ((), (card.idle[1],))
    large = book(host(card), mig(1, "7g.40gb")).started[0]
    assert card.removed(leases._uses(large)[0][1]) == card.idle


def test_lease_of_two_gpus_has_the_quota_on_each():
    schedule = book(host(quota_card(0), quota_card(1)), quota(1, gpus=2))
    assert [place.gpu_uuid for place in schedule.started[0].places] == ["GPU-quota-0", "GPU-quota-1"]
    assert "3 GPUs are too many" in refused(schedule, quota(2, gpus=3))


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_refusal_names_what_is_free_and_when():
    schedule = book(host(quota_card(memory=48)), quota(1, memory=40, sm=60, hours=2.5))
    text = refused(schedule, quota(2, memory=20), wait=False)
    assert "8192MiB and 40 % on gpu 0" in text and "in 2 h 30 min at the latest" in text
    text = refused(book(host(mig_card()), mig(1, "4g.20gb")), mig(2, "4g.20gb"), wait=False)
    assert "3x 1g.5gb or 1x 2g.10gb or 1x 3g.20gb on gpu 0" in text


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"count": 1}, "alice has 1 leases and waiting requests, and the limit is 1"),
        ({"memory_bytes": 15 * GIB}, "alice has 8GiB and asks for 8GiB on 1 GPU, and the limit is 15GiB"),
        ({"sm_percent": 59}, "alice has 30 % and asks for 30 % on 1 GPU, and the limit is 59 %"),
    ],
)
def test_limits_are_per_account(limits, words):
    schedule = book(host(quota_card(), **limits), quota(1))
    assert words in refused(schedule, quota(2))
    assert len(book(schedule, quota(2, account="bob")).started) == 2


def test_waiting_requests_count_so_that_no_account_fills_the_queue():
    schedule = book(host(quota_card(), count=2), quota(1, sm=100), quota(2, sm=100))
    assert "the limit is 2" in refused(schedule, quota(3))


def test_too_long_a_lease_is_refused():
    assert "at most 8 hours" in refused(host(quota_card(), hours=8), quota(1, hours=9))


def test_account_without_an_offer_is_refused():
    with pytest.raises(LeaseError, match="no entry offers leases to alice"):
        leases.book(host(quota_card()), quota(1), (), NOW)


def test_second_entry_is_used_if_the_first_is_full():
    schedule = Schedule((offer(quota_card(0)), offer(quota_card(1), where="gpu_layout[1]")))
    schedule = book(schedule, quota(1, sm=100), quota(2, sm=100))
    assert [each.where for each in schedule.started] == ["gpu_layout[0]", "gpu_layout[1]"]


# -- the queue ---------------------------------------------------------------------------------------------------------


def test_small_request_passes_a_large_one_only_without_delaying_it():
    schedule = book(host(quota_card()), quota(1, sm=60, hours=4), quota(2, sm=80, hours=2))
    assert starts(schedule) == {1: 0, 2: 4}
    assert starts(book(schedule, quota(3, sm=30, hours=4)))[3] == 0
    assert starts(book(schedule, quota(3, sm=30, hours=5)))[3] == 6
    assert starts(book(schedule, quota(3, sm=20, hours=5)))[3] == 0


def test_waiting_requests_start_when_a_lease_ends_early():
    schedule = book(host(quota_card()), quota(1, sm=100, hours=8), quota(2, sm=60), quota(3, sm=60), quota(4, sm=40))
    assert starts(schedule) == {1: 0, 2: 8, 3: 9, 4: 8}
    schedule = leases.ended(schedule, 1, NOW + HOUR)
    assert [each.request.number for each in schedule.started] == [2, 4]
    assert starts(schedule) == {2: 1, 3: 2, 4: 1}


def test_overdue_lease_keeps_its_place():
    schedule = book(host(quota_card()), quota(1, sm=100), quota(2, sm=60))
    late = leases.advance(schedule, NOW + HOUR)
    assert [each.request.number for each in late.started] == [1]
    # A new request must not start before an earlier request whose start is due.
    assert [each.request.number for each in book(late, quota(3, sm=60), now=NOW + HOUR).started] == [1]
    assert [each.request.number for each in leases.ended(late, 1, NOW + HOUR + 5).started] == [2]


def test_limit_of_the_entry_that_could_grant_the_request_is_reported():
    offers = (offer(mig_card()), offer(quota_card(), where="gpu_layout[1]", memory_bytes=40 * GIB))
    schedule = book(Schedule(offers), quota(1, memory=30))
    with pytest.raises(
        LeaseError, match=r"gpu_layout\[1\]: alice has 30GiB and asks for 30GiB on 1 GPU, and the limit is 40GiB"
    ):
        book(schedule, quota(2, memory=30))


def test_queue_has_a_limit():
    schedule = book(host(quota_card(), hours=8760), quota(0, sm=100))
    for number in range(1, leases.MOST_WAITING + 1):
        schedule = book(schedule, quota(number, sm=100, account="user%d" % number))
    assert "64 requests wait already" in refused(schedule, quota(100, sm=100))


# -- changes of a lease ------------------------------------------------------------------------------------------------


def test_extension_delays_no_waiting_request():
    schedule = book(host(quota_card()), quota(1, sm=60), quota(2, sm=30), quota(3, sm=60))
    assert starts(leases.extended(schedule, 2, 5 * HOUR, NOW)) == {1: 0, 2: 0, 3: 1}
    with pytest.raises(LeaseError, match="a waiting request would be delayed"):
        leases.extended(schedule, 1, 2 * HOUR, NOW)


def test_extension_counts_from_now_and_has_the_limit_of_the_entry():
    schedule = book(host(quota_card(), hours=8), quota(1, hours=8))
    assert leases.extended(schedule, 1, 8 * HOUR, NOW + HOUR).started[0].ends == NOW + 9 * HOUR
    with pytest.raises(LeaseError, match="at most 8 hours"):
        leases.extended(schedule, 1, 9 * HOUR, NOW + HOUR)


def test_resize_uses_free_room_only_and_lets_others_start():
    schedule = book(host(quota_card(), sm_percent=90), quota(1, sm=60), quota(2, sm=60, account="bob"))
    with pytest.raises(LeaseError, match="limit is 90 %"):
        leases.resized(schedule, 1, quota(1, sm=95), NOW)
    with pytest.raises(LeaseError, match="a waiting request would be delayed"):
        leases.resized(schedule, 1, quota(1, sm=70, hours=2), NOW)
    assert [each.request.number for each in leases.resized(schedule, 1, quota(1, sm=40), NOW).started] == [1, 2]


def test_unknown_and_waiting_leases_cannot_change():
    schedule = book(host(quota_card()), quota(1, sm=100), quota(2, sm=100))
    for change in (lambda: leases.ended(schedule, 7, NOW), lambda: leases.extended(schedule, 7, HOUR, NOW)):
        with pytest.raises(LeaseError, match="lease 7: it does not exist"):
            change()
    with pytest.raises(LeaseError, match="it waits"):
        leases.extended(schedule, 2, HOUR, NOW)


# -- properties --------------------------------------------------------------------------------------------------------

CARDS = {
    "mig": [mig_card(GPUS[0], fixed=[("2g.10gb", 0)]), mig_card(GPUS[1])],
    "vgpu": [quota_card(0, 48), quota_card(1, 24, 60, 3)],
}


def random_events(kind, draw):
    """Return the events of a busy host.

    Hypothesis draws only the seed, because lists from Hypothesis rarely fill a host.
    """
    events = []
    for _number in range(draw.randint(10, 60)):
        shape = (Shape(profile=draw.choice(PROFILES[:4])), 1)
        if kind == "vgpu":
            shape = (Shape(draw.randint(1, 24) * GIB, draw.randint(1, 60)), draw.randint(1, 2))
        book = ("book", shape, draw.randint(1, 12), draw.choice(["alice", "bob", "carol"]), draw.random() < 0.9)
        end, extend = ("end", draw.randint(0, 30)), ("extend", draw.randint(0, 30), draw.randint(1, 12))
        events.append(draw.choice([book, book, book, book, end, extend, ("wait", draw.randint(1, 3))]))
    return events


class Hours:
    """Simulate a host over time. Each method checks the rules after each event."""

    def __init__(self, kind):
        self.schedule = host(*CARDS[kind], count=6, hours=12)
        self.now, self.number, self.ended = NOW, 0, set()

    def run(self, event):
        before = self.schedule
        with_error = None
        try:
            getattr(self, event[0])(*event[1:])
        except LeaseError as error:
            with_error = error
        if with_error is not None:
            assert self.schedule == before
        self.check(before)

    def book(self, shape, hours, account, wait):
        self.number += 1
        request = Request(self.number, account, shape[0], hours * HOUR, shape[1])
        self.schedule = leases.book(self.schedule, request, self.schedule.offers, self.now, wait)
        new = self.schedule.bookings[-1]
        assert new.request == request and (wait or new.started)

    def end(self, which):
        if self.schedule.bookings:
            gone = self.schedule.bookings[which % len(self.schedule.bookings)]
            self.ended.add(gone.request.number)
            self.schedule = leases.ended(self.schedule, gone.request.number, self.now)

    def extend(self, which, hours):
        if self.schedule.bookings:
            one = self.schedule.bookings[which % len(self.schedule.bookings)]
            self.schedule = leases.extended(self.schedule, one.request.number, hours * HOUR, self.now)

    def wait(self, hours):
        until = self.now + hours * HOUR
        while True:
            due = [each.ends for each in self.schedule.started] + [each.begins for each in self.schedule.waiting]
            due = [time for time in due if time <= until]
            if not due:
                break
            self.now = max(self.now, min(due))
            over = [each for each in self.schedule.started if each.ends <= self.now]
            for each in over:
                self.ended.add(each.request.number)
                self.schedule = leases.ended(self.schedule, each.request.number, self.now)
            if not over:
                self.schedule = leases.advance(self.schedule, self.now)
        self.now = until

    def check(self, before):
        after = {each.request.number: each for each in self.schedule.bookings}
        for old in before.bookings:
            number = old.request.number
            # No booking may get lost, and a booking that has started must stay unchanged.
            assert number in after or number in self.ended
            if number in after and old.started:
                new = after[number]
                assert new.started and (new.places, new.begins) == (old.places, old.begins)
            elif number in after:
                # Apart from a small tolerance, no booking may start later than promised.
                assert after[number].begins <= max(old.begins, self.now) + leases.SLACK_SECONDS
        self.no_conflicts()
        self.order()
        for account in ("alice", "bob", "carol"):
            assert sum(each.request.account == account for each in self.schedule.bookings) <= 6

    def no_conflicts(self):
        """Check each card at each instant, independently of the schedule's own arithmetic."""
        for card in self.schedule.offers[0].cards:
            mine = [
                (each, place) for each in self.schedule.bookings for place in each.places if place.gpu_uuid == card.uuid
            ]
            for instant in {each.begins for each, _place in mine} | {self.now}:
                now = [(b, p) for b, p in mine if b.begins <= instant < b.ends]
                if isinstance(card, QuotaCard):
                    assert sum(b.request.shape.memory_bytes for b, _ in now) <= card.room.memory_bytes
                    assert sum(b.request.shape.sm_percent for b, _ in now) <= card.room.sm_percent
                    assert len(now) <= card.room.seats
                    continue
                units = [u for i in card.fixed for u in range(i.start, i.start + i.placement.size)]
                for booking, place in now:
                    profile = card.capacity.profiles[booking.request.shape.profile]
                    size = next(p.size for p in profile.placements if p.start == place.start)
                    units += range(place.start, place.start + size)
                assert len(units) == len(set(units))

    def order(self):
        """Check that of two equal requests, the earlier one starts first."""
        bookings = self.schedule.waiting
        for number, first in enumerate(bookings):
            for later in bookings[number + 1 :]:
                same = dataclasses.replace(later.request, number=first.request.number, account=first.request.account)
                assert same != first.request or first.begins <= later.begins


@pytest.mark.parametrize("kind", ["mig", "vgpu"])
@draws(50)
@given(seed=st.integers(0, 2**32))
def test_leases_are_fair_and_undisturbed_over_random_hours(kind, seed):
    hours = Hours(kind)
    for event in random_events(kind, random.Random(seed)):
        hours.run(event)
    # If nothing else happens, every lease ends and all GPUs become free.
    hours.wait(24 * 365)
    assert hours.schedule.bookings == ()


def test_instances_have_the_placements_of_their_profiles():
    assert mig_card(fixed=[("3g.20gb", 4)]).fixed[0].placement == Placement(4, 4)
