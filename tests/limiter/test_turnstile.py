# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The arithmetic of the turnstile: credit, whose turn it is, the lease, and time that is counted once."""

from __future__ import annotations

import ctypes
import random
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_bool,
    c_char,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_uint,
    c_uint32,
    c_uint64,
)
from pathlib import Path

import pytest
from limiter_lab import SOURCE, compile_c

MS, SECOND = 10**6, 10**9
NOW = 5000 * SECOND
SEATS, PROCESSES = 64, 4096


class Seat(Structure):
    _fields_ = (
        ("tenant", c_char * 64),
        ("percent", c_uint32),
        ("policy", c_uint32),
        ("priority", c_int32),
        ("unused", c_uint32),
        ("paid_until", c_int64),
        ("active_until", c_int64),
        ("waiting_until", c_int64),
        ("used_ns", c_uint64),
        ("throttled_ns", c_uint64),
        ("due", c_int64),
        ("lead", c_int64),
        ("launches", c_uint64),
        ("reserved", c_uint64 * 7),
    )


class Turnstile(Structure):
    _fields_ = (
        ("magic", c_uint64),
        ("version", c_uint32),
        ("size", c_uint32),
        ("lease", c_uint64),
        ("lease_since", c_int64),
        ("passes", c_uint64),
        ("reserved", c_uint64 * 11),
        ("seat_of", ctypes.c_uint8 * PROCESSES),
        ("seats", Seat * SEATS),
    )


class Terms(Structure):
    _fields_ = (("percent", c_uint32), ("policy", c_uint32), ("priority", c_int32))


class Claim(Structure):
    _fields_ = (("credit", c_bool), ("priority", c_int32), ("paid_until", c_int64), ("place", c_uint32))


class Covered(Structure):
    _fields_ = (("floor", c_int64), ("start", c_int64), ("to", c_int64))


SIGNATURES = {
    "turnstile_charge": (c_int64, c_int64, c_int64, c_int64, c_int64, c_uint, c_int64),
    "turnstile_wall": (c_int64, c_int64, c_uint),
    "turnstile_resume": (c_int64, c_uint),
    "turnstile_order": (c_int, Claim, Claim),
    "turnstile_place": (c_uint32, c_char_p, c_int64),
    "turnstile_is_overdue": (c_bool, POINTER(Turnstile), c_int, c_int64),
    "turnstile_is_working": (c_bool, POINTER(Turnstile), c_int, c_int64),
    "turnstile_before": (c_bool, Claim, Claim),
    "turnstile_adopt": (c_bool, POINTER(Turnstile)),
    "turnstile_rival": (c_bool, POINTER(Turnstile), c_int, c_int64, POINTER(Claim)),
    "turnstile_contended": (c_bool, POINTER(Turnstile), c_int, c_int64),
    "turnstile_spend": (None, POINTER(Turnstile), c_int, Terms, c_int64, c_int64, c_int64),
    "turnstile_show": (None, POINTER(Turnstile), c_int, Terms),
    "turnstile_terms": (Terms, POINTER(Turnstile), c_int),
    "turnstile_paid": (c_int64, POINTER(Turnstile), c_int, c_int64),
    "turnstile_is_active": (c_bool, POINTER(Turnstile), c_int, c_int64),
    "turnstile_is_waiting": (c_bool, POINTER(Turnstile), c_int, c_int64),
    "turnstile_set_active": (None, POINTER(Turnstile), c_int, c_int64, c_int64),
    "turnstile_set_waiting": (None, POINTER(Turnstile), c_int, c_int64, c_int64),
    "turnstile_limit_debt": (c_int64, POINTER(Turnstile), c_int, c_int64, c_int64),
    "turnstile_holder": (c_uint, POINTER(Turnstile), c_int64),
    "turnstile_last_holder": (c_uint, POINTER(Turnstile)),
    "turnstile_take": (c_bool, POINTER(Turnstile), c_uint, c_int64, c_int64, c_uint),
    "turnstile_renew": (c_bool, POINTER(Turnstile), c_uint, c_int64, c_int64),
    "turnstile_give": (None, POINTER(Turnstile), c_uint),
    "busy_cover": (c_int64, POINTER(Covered), c_int64, c_int64),
}


@pytest.fixture(scope="module")
def library(build_folder: Path) -> ctypes.CDLL:
    sources = [str(SOURCE / name) for name in ("turnstile.c", "cover.c")]
    path = compile_c(build_folder / "turnstile.so", *sources, "-shared", "-fPIC")
    loaded = ctypes.CDLL(str(path))
    for name, (result, *arguments) in SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


@pytest.fixture
def turnstile(library: ctypes.CDLL) -> Turnstile:
    new = Turnstile()
    assert library.turnstile_adopt(byref(new))
    return new


def seat(
    turnstile: Turnstile, number: int, percent: int = 50, priority: int = 0, paid: int = NOW, waits: bool = True
) -> None:
    chosen = turnstile.seats[number]
    chosen.percent, chosen.priority, chosen.paid_until = percent, priority, paid
    chosen.waiting_until = NOW + MS if waits else 0


def test_a_file_of_zeros_is_an_empty_turnstile_and_another_version_is_refused(library, turnstile):
    assert turnstile.size == ctypes.sizeof(Turnstile), "this test's idea of the layout is not the library's"
    assert library.turnstile_adopt(byref(turnstile))
    turnstile.version = 2
    assert not library.turnstile_adopt(byref(turnstile))
    turnstile.version, turnstile.magic = 1, 7
    assert not library.turnstile_adopt(byref(turnstile))


@pytest.mark.parametrize("percent", [1, 10, 33, 50, 80, 99])
def test_time_is_paid_for_at_the_share(library, percent):
    charged = library.turnstile_charge(NOW, NOW, NOW, 3 * MS, percent, 600 * SECOND)
    assert charged - NOW == 3 * MS * 100 // percent


def test_idle_time_saves_no_more_than_a_tenth_of_a_second(library):
    long_idle = library.turnstile_charge(0, NOW, NOW, MS, 50, 600 * SECOND)
    assert long_idle == NOW - 100 * MS + 2 * MS
    # What was asked for long ago counts from then: the time since has paid for it.
    assert library.turnstile_charge(0, NOW - SECOND, NOW, MS, 50, 600 * SECOND) == NOW - SECOND - 98 * MS


def test_a_charge_that_was_too_high_is_given_back(library):
    charged = library.turnstile_charge(NOW, NOW, NOW, 4 * MS, 20, 600 * SECOND)
    assert library.turnstile_charge(charged, NOW, NOW + MS, -3 * MS, 20, 600 * SECOND) == NOW + 5 * MS


def test_a_debt_has_a_limit_and_a_charge_never_lowers_one(library):
    assert library.turnstile_charge(NOW, NOW, NOW, 10**18, 1, SECOND) == NOW + SECOND
    assert library.turnstile_charge(NOW + 5 * SECOND, NOW, NOW, MS, 1, SECOND) == NOW + 5 * SECOND


def test_any_sequence_of_use_stays_within_the_share(library):
    """A model that only knows wall time and busy time: the sum used never passes the share by more than what may be saved."""
    for case in range(50):
        choose = random.Random(case)
        percent = choose.randint(1, 99)
        paid, now, used = NOW, NOW, 0
        for _ in range(400):
            now += choose.choice((0, MS, 10 * MS, 300 * MS)) * choose.randint(0, 3)
            if paid > now:
                now = paid
            busy = choose.choice((1000, MS, 50 * MS))
            paid = library.turnstile_charge(paid, now, now, busy, percent, 600 * SECOND)
            used += busy
            now += busy
            assert used <= (now - NOW + 100 * MS) * percent / 100 + 50 * MS


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
        turnstile.seats[3].due = due
        return tuple(
            getattr(library, f"turnstile_is_{word}")(byref(turnstile), 3, NOW) for word in ("working", "overdue")
        )

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
        assert library.turnstile_rival(byref(turnstile), 0, NOW, byref(rival))
        assert rival.paid_until == NOW + paid


def test_of_equals_the_one_that_is_further_behind_comes_first(library):
    assert library.turnstile_before(Claim(True, 0, 1), Claim(True, 0, 2))
    assert not library.turnstile_before(Claim(True, 0, 2), Claim(True, 0, 1))
    assert not library.turnstile_before(Claim(True, 0, 1), Claim(True, 0, 1))


def test_the_rival_is_the_first_of_those_that_wait(library, turnstile):
    rival = Claim()
    seat(turnstile, 0)
    assert not library.turnstile_rival(byref(turnstile), 0, NOW, byref(rival)), "one's own seat is no rival"
    seat(turnstile, 3, priority=1, paid=NOW + SECOND)  # no credit
    seat(turnstile, 5, priority=4, paid=NOW - SECOND)
    seat(turnstile, 7, priority=5, paid=NOW - 2 * SECOND)
    seat(turnstile, 9, priority=0, paid=NOW - SECOND, waits=False)
    assert library.turnstile_rival(byref(turnstile), 0, NOW, byref(rival))
    assert (rival.credit, rival.priority, rival.paid_until) == (True, 4, NOW - SECOND)
    assert not library.turnstile_rival(byref(turnstile), 0, NOW + SECOND, byref(rival)), "who is silent waits no more"


def test_others_that_are_active_make_a_gpu_contended(library, turnstile):
    turnstile.seats[4].active_until = NOW + MS
    assert library.turnstile_contended(byref(turnstile), 3, NOW)
    assert not library.turnstile_contended(byref(turnstile), 4, NOW)
    assert not library.turnstile_contended(byref(turnstile), 3, NOW + MS)


def test_a_borrower_owes_at_most_a_second(library, turnstile):
    for policy, most in ((0, 50 * SECOND), (1, 50 * SECOND), (2, SECOND)):
        turnstile.seats[1].paid_until = NOW
        library.turnstile_spend(byref(turnstile), 1, Terms(10, policy, 0), NOW, NOW, 5 * SECOND)
        assert turnstile.seats[1].paid_until == NOW + most


# --- values that no honest process can have written ---

ABSURD = [2**62, 2**63 - 1, -(2**62), -(2**63), -1]


@pytest.mark.parametrize("value", [*ABSURD, NOW + SECOND])
def test_a_seat_does_not_wait_later_than_it_can_have_said(library, turnstile, value):
    turnstile.seats[3].waiting_until = value
    assert not library.turnstile_is_waiting(byref(turnstile), 3, NOW)
    assert not library.turnstile_rival(byref(turnstile), 0, NOW, byref(Claim()))
    library.turnstile_set_waiting(byref(turnstile), 3, NOW, NOW + 2 * MS)
    assert library.turnstile_is_waiting(byref(turnstile), 3, NOW), "its own tenant puts it right"


@pytest.mark.parametrize("value", [*ABSURD, NOW + SECOND])
def test_a_seat_is_not_active_later_than_it_can_have_said(library, turnstile, value):
    turnstile.seats[3].active_until = value
    assert not library.turnstile_contended(byref(turnstile), 0, NOW)
    library.turnstile_set_active(byref(turnstile), 3, NOW, NOW + 50 * MS)
    assert library.turnstile_contended(byref(turnstile), 0, NOW), "its own tenant puts it right"


def test_a_seat_in_debt_is_active_until_it_has_paid(library, turnstile):
    turnstile.seats[3].paid_until = NOW + 10 * SECOND
    library.turnstile_set_active(byref(turnstile), 3, NOW, NOW + 10 * SECOND + 100 * MS)
    assert library.turnstile_is_active(byref(turnstile), 3, NOW + 10 * SECOND)


@pytest.mark.parametrize(
    ("value", "believed"),
    [(2**62, NOW), (2**63 - 1, NOW), (NOW + 700 * SECOND, NOW), (-1, 0), (-(2**63), 0), (NOW + SECOND, NOW + SECOND)],
)
def test_no_debt_is_longer_than_a_charge_can_have_made_it(library, turnstile, value, believed):
    turnstile.seats[3].paid_until = value
    assert library.turnstile_paid(byref(turnstile), 3, NOW) == believed
    library.turnstile_spend(byref(turnstile), 3, Terms(50, 0, 0), NOW, NOW, MS)
    assert turnstile.seats[3].paid_until == max(believed, NOW - 100 * MS) + 2 * MS


def test_a_debt_can_be_limited(library, turnstile):
    turnstile.seats[3].paid_until = NOW + 90 * SECOND
    assert library.turnstile_limit_debt(byref(turnstile), 3, NOW, NOW + SECOND) == NOW + SECOND
    assert turnstile.seats[3].paid_until == NOW + SECOND
    assert library.turnstile_limit_debt(byref(turnstile), 3, NOW, NOW + 2 * SECOND) == NOW + SECOND


@pytest.mark.parametrize("percent", [0, 101, 2**31, 2**32 - 1])
def test_terms_that_no_quota_can_say_give_nothing(library, turnstile, percent):
    wrong = turnstile.seats[3]
    wrong.percent, wrong.policy, wrong.priority = percent, 77, -(2**31)
    terms = library.turnstile_terms(byref(turnstile), 3)
    assert (terms.percent, terms.policy, terms.priority) == (1, 0, 2**31 - 1)
    library.turnstile_show(byref(turnstile), 3, Terms(30, 2, -5))
    assert (wrong.percent, wrong.policy, wrong.priority) == (30, 2, -5)


def test_a_lease_has_one_holder_until_it_ends(library, turnstile):
    t = byref(turnstile)
    assert library.turnstile_holder(t, NOW) == 0
    assert library.turnstile_take(t, 7, NOW, NOW + 10 * MS, 0)
    assert library.turnstile_holder(t, NOW + 9 * MS) == 7
    assert not library.turnstile_take(t, 8, NOW + 9 * MS, NOW + SECOND, 0)
    assert library.turnstile_holder(t, NOW + 10 * MS) == 0, "it is over"
    assert library.turnstile_last_holder(t) == 7
    assert library.turnstile_take(t, 8, NOW + 10 * MS, NOW + 20 * MS, 0)
    assert not library.turnstile_renew(t, 7, NOW, NOW + SECOND), "another has it by now"
    library.turnstile_give(t, 7)
    assert library.turnstile_holder(t, NOW + 15 * MS) == 8, "one cannot give what one has not got"
    library.turnstile_give(t, 8)
    assert library.turnstile_holder(t, NOW + 15 * MS) == 0


def test_a_lease_is_prolonged_and_never_shortened(library, turnstile):
    t = byref(turnstile)
    assert library.turnstile_take(t, 7, NOW, NOW + 10 * MS, 0)
    assert library.turnstile_renew(t, 7, NOW, NOW + 5 * MS)
    assert library.turnstile_holder(t, NOW + 9 * MS) == 7
    assert library.turnstile_renew(t, 7, NOW, NOW + 50 * MS)
    assert library.turnstile_holder(t, NOW + 49 * MS) == 7


def test_the_lease_of_the_dead_is_taken_over_but_not_another_ones(library, turnstile):
    t = byref(turnstile)
    assert library.turnstile_take(t, 7, NOW, NOW + 500 * MS, 0)
    assert not library.turnstile_take(t, 8, NOW, NOW + SECOND, 6)
    assert library.turnstile_take(t, 8, NOW, NOW + SECOND, 7)
    assert library.turnstile_holder(t, NOW + MS) == 8


def test_a_lease_is_never_so_long_that_it_would_bind_nobody(library, turnstile):
    """With ten seconds of work on its way: others see the holder, for a second at a time."""
    t = byref(turnstile)
    assert library.turnstile_take(t, 7, NOW, NOW + 11 * SECOND, 0)
    assert [library.turnstile_holder(t, NOW + later) for later in (0, SECOND - MS, SECOND)] == [7, 7, 0]
    assert library.turnstile_renew(t, 7, NOW + SECOND // 2, NOW + 11 * SECOND)
    assert library.turnstile_holder(t, NOW + SECOND // 2) == 7
    assert [library.turnstile_holder(t, NOW + 3 * SECOND // 2 - late) for late in (MS, 0)] == [7, 0]


@pytest.mark.parametrize("lease", [2**64 - 1, 9 << 48 | (NOW + 2 * SECOND) // 1000, 9 << 48])
def test_a_lease_that_cannot_have_been_taken_binds_nobody(library, turnstile, lease):
    turnstile.lease = lease
    assert library.turnstile_holder(byref(turnstile), NOW) == 0
    assert library.turnstile_take(byref(turnstile), 8, NOW, NOW + SECOND, 0)


def test_small_shares_wait_for_a_useful_turn_but_not_for_ever(library):
    assert library.turnstile_resume(80) == 5 * MS * 100 // 80
    assert library.turnstile_resume(10) == 50 * MS
    assert library.turnstile_resume(1) == 50 * MS


def test_overlapping_stretches_are_counted_once(library):
    covered = Covered()
    steps = [
        ((0, 10), 10),
        ((5, 12), 2),  # half of it was counted
        ((6, 11), 0),  # all of it
        ((20, 30), 10),  # behind a gap
        ((15, 25), 5),  # begins in the gap
        ((10, 40), 3 + 10),  # all round the last stretch: the rest of the gap, and beyond
        ((0, 12), 0),  # long past
    ]
    for (start, end), added in steps:
        assert library.busy_cover(byref(covered), start, end) == added, f"{start} to {end}"


def test_stretches_in_the_order_of_their_launches_sum_to_their_union(library):
    """Several streams: launches begin in order or nearly so; the sum must be that of the marked nanoseconds."""
    for case in range(200):
        choose = random.Random(case)
        marked, total, covered, begin = set(), 0, Covered(), 0
        for _ in range(40):
            begin += choose.randint(0, 8)
            end = begin + choose.randint(1, 12)
            total += library.busy_cover(byref(covered), begin, end)
            marked.update(range(begin, end))
        assert total == len(marked), f"case {case}"
