# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test whose turn it is, from the fields of seats and the order of claims."""

from __future__ import annotations

import ctypes
from ctypes import byref

import pytest

from tests.limiter.turnstile_lab import (
    ABSURD,
    MS,
    NOW,
    SEATS,
    SECOND,
    AllTerms,
    Claim,
    SeatTerms,
    Terms,
    Turnstile,
    held_for_ever,
    seat,
    view,
)


def test_a_file_of_zeros_is_an_empty_turnstile_and_another_version_is_refused(library, turnstile):
    assert turnstile.size == ctypes.sizeof(Turnstile), "this test's idea of the layout is not the library's"
    assert library.turnstile_adopt(byref(turnstile))
    turnstile.version = 2
    assert not library.turnstile_adopt(byref(turnstile))
    turnstile.version, turnstile.magic = 1, 7
    assert not library.turnstile_adopt(byref(turnstile))


@pytest.mark.parametrize(
    ("first", "second", "order"),
    [
        (Claim(True, 5, 9), Claim(False, 0, 1), 1),
        (Claim(False, 0, 9), Claim(True, 9, 1), -1),
        (Claim(True, 1, 9), Claim(True, 2, 1), 1),
        (Claim(False, 2, 9), Claim(False, 1, 1), -1),
        (Claim(True, 1, 9), Claim(True, 1, 1), 0),
    ],
)
def test_credit_comes_first_then_the_smaller_priority_number(library, first, second, order):
    assert library.turnstile_order(first, second) == order
    assert library.turnstile_order(second, first) == -order


def test_tenants_of_equal_rights_change_places_from_slot_to_slot(library):
    slot, names = 20 * MS, [b"tenant-%d" % i for i in range(4)]
    first, before = dict.fromkeys(names, 0), {}
    for number in range(400):
        places = {name: library.turnstile_place(name, NOW + number * slot) for name in names}
        assert len(set(places.values())) == len(names)
        assert places == {name: library.turnstile_place(name, NOW + (number + 1) * slot - 1) for name in names}
        if number % 2:
            assert sorted(names, key=before.get) == sorted(names, key=places.get, reverse=True)
        before = places
        first[min(names, key=places.get)] += 1
    assert all(count > 60 for count in first.values()), first
    here, there = Claim(True, 0, 9, 1), Claim(True, 0, 1, 2)
    assert (library.turnstile_order(here, there), library.turnstile_order(there, here)) == (1, -1)


def test_work_is_overdue_for_a_second_at_most(library, turnstile):
    def states(due):
        chosen = turnstile.seats[3]
        chosen.due = due
        return tuple(getattr(library, f"turnstile_is_{word}")(byref(chosen), NOW) for word in ("working", "overdue"))

    assert states(0) == (False, False)
    assert states(NOW + MS) == (True, False)
    assert states(NOW - MS // 4) == (False, False)
    assert states(NOW - MS) == (False, True)
    assert states(NOW - 2 * SECOND) == (False, False)
    for value in ABSURD:
        assert states(value) == (False, False)


def test_a_lead_counts_up_to_its_limit(library, turnstile):
    rival = Claim()
    seat(turnstile, 3, paid=NOW + 10 * MS)
    for lead, paid in ((0, 10 * MS), (4 * MS, 6 * MS), (2**62, -90 * MS), (-(2**62), 10 * MS)):
        turnstile.seats[3].lead = lead
        assert library.turnstile_rival(view(turnstile), 0, NOW, byref(rival)) >= 0
        assert rival.paid_until == NOW + paid


def test_of_equals_the_one_that_is_further_behind_comes_first(library):
    assert library.turnstile_before(Claim(True, 0, 1), Claim(True, 0, 2))
    assert not library.turnstile_before(Claim(True, 0, 2), Claim(True, 0, 1))
    assert not library.turnstile_before(Claim(True, 0, 1), Claim(True, 0, 1))


def test_the_rival_is_the_first_of_those_that_wait(library, turnstile):
    rival = Claim()
    seat(turnstile, 0)
    assert library.turnstile_rival(view(turnstile), 0, NOW, byref(rival)) < 0, "one's own seat is no rival"
    seat(turnstile, 3, priority=1, paid=NOW + SECOND)  # no credit
    seat(turnstile, 5, priority=4, paid=NOW - SECOND)
    seat(turnstile, 7, priority=5, paid=NOW - 2 * SECOND)
    seat(turnstile, 9, priority=0, paid=NOW - SECOND, waits=False)
    assert library.turnstile_rival(view(turnstile), 0, NOW, byref(rival)) >= 0
    assert (rival.credit, rival.priority, rival.paid_until) == (True, 4, NOW - SECOND)
    assert library.turnstile_rival(view(turnstile), 0, NOW + SECOND, byref(rival)) < 0, "who is silent waits no more"


def test_others_that_are_active_make_a_gpu_contended(library, turnstile):
    turnstile.seats[4].active_until = NOW + MS
    assert library.turnstile_contended(view(turnstile), 3, NOW)
    assert not library.turnstile_contended(view(turnstile), 4, NOW)
    assert not library.turnstile_contended(view(turnstile), 3, NOW + MS)


@pytest.mark.parametrize("value", [*ABSURD, NOW + SECOND])
def test_a_seat_does_not_wait_later_than_it_can_have_said(library, turnstile, value):
    turnstile.seats[3].waiting_until = value
    assert not library.turnstile_is_waiting(byref(turnstile.seats[3]), NOW)
    assert library.turnstile_rival(view(turnstile), 0, NOW, byref(Claim())) < 0
    library.turnstile_set_waiting(byref(turnstile.seats[3]), NOW, NOW + 2 * MS)
    assert library.turnstile_is_waiting(byref(turnstile.seats[3]), NOW), "its own tenant puts it right"


@pytest.mark.parametrize("value", [*ABSURD, NOW + SECOND])
def test_a_seat_is_not_active_later_than_it_can_have_said(library, turnstile, value):
    turnstile.seats[3].active_until = value
    assert not library.turnstile_contended(view(turnstile), 0, NOW)
    library.turnstile_set_active(byref(turnstile.seats[3]), NOW, NOW + 50 * MS)
    assert library.turnstile_contended(view(turnstile), 0, NOW), "its own tenant puts it right"


def test_a_seat_in_debt_is_active_until_it_has_paid(library, turnstile):
    turnstile.seats[3].paid_until = NOW + 10 * SECOND
    library.turnstile_set_active(byref(turnstile.seats[3]), NOW, NOW + 10 * SECOND + 100 * MS)
    assert library.turnstile_is_active(byref(turnstile.seats[3]), NOW + 10 * SECOND)


@pytest.mark.parametrize("percent", [0, 101, 2**31, 2**32 - 1])
def test_terms_that_no_quota_can_say_give_nothing(library, turnstile, percent):
    wrong = turnstile.seats[3]
    wrong.percent, wrong.policy, wrong.priority = percent, 77, -(2**31)
    terms = library.turnstile_terms(view(turnstile), 3)
    assert (terms.percent, terms.policy, terms.priority) == (1, 0, 2**31 - 1)
    library.turnstile_show(byref(turnstile.seats[3]), Terms(30, 2, -5))
    assert (wrong.percent, wrong.policy, wrong.priority) == (30, 2, -5)


def test_passes_of_all_tenants_count(library, turnstile):
    turnstile.seats[3].passes, turnstile.seats[5].passes = 2, 5
    assert library.turnstile_passes(view(turnstile)) == 7


def test_the_agents_terms_count_and_not_what_a_tenant_says_of_itself(library, turnstile):
    t, terms = view(turnstile), AllTerms()
    t.terms = ctypes.pointer(terms)
    terms.seats[3] = SeatTerms(b"tenant-d", 30, 1, 4)
    seat(turnstile, 3, percent=99, priority=-7)
    said = library.turnstile_terms(t, 3)
    assert (said.percent, said.policy, said.priority) == (30, 1, 4)
    turnstile.seats[3].tenant = b"of-the-best-place"
    rival = Claim()
    assert library.turnstile_rival(t, 0, NOW, byref(rival)) == 3
    assert (rival.priority, rival.place) == (4, library.turnstile_place(b"tenant-d", NOW))


def test_only_seats_with_a_tenant_are_looked_at(library, turnstile):
    t, terms = view(turnstile), AllTerms()
    held_for_ever(turnstile, 9)
    turnstile.seats[5].tenant = b"tenant-f"
    library.turnstile_count(t)
    assert (t.count, library.turnstile_holder(t, 0, NOW)) == (6, -1)
    terms.seats[9].tenant = b"tenant-j"
    t.terms = ctypes.pointer(terms)
    library.turnstile_count(t)
    assert (t.count, library.turnstile_holder(t, 0, NOW)) == (10, 9)


def test_seats_that_are_not_there_are_free(library, turnstile):
    t = view(turnstile)
    for number in range(1, SEATS):
        seat(turnstile, number)
        t.seats[number] = None
    assert library.turnstile_holder(t, 0, NOW) == -1
    assert library.turnstile_rival(t, 0, NOW, byref(Claim())) == -1
    assert not library.turnstile_contended(t, 0, NOW)
    assert library.turnstile_take(t, 0, 7, NOW, NOW + MS)
