# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The arithmetic of the turnstile: credit, whose turn it is, the lease, and time that is counted once."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import random
import threading
import time
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
    c_void_p,
)
from pathlib import Path

import pytest
from limiter_lab import SOURCE, compile_c

MS, SECOND = 10**6, 10**9
NOW = 5000 * SECOND
SEATS = 64


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
        ("lease", c_uint64),
        ("lease_since", c_int64),
        ("passes", c_uint64),
        ("reserved", c_uint64 * 4),
    )


class Turnstile(Structure):
    """The file."""

    _fields_ = (
        ("magic", c_uint64),
        ("version", c_uint32),
        ("size", c_uint32),
        ("unused", c_uint64 * 526),
        ("seats", Seat * SEATS),
    )


class SeatTerms(Structure):
    _fields_ = (
        ("tenant", c_char * 64),
        ("percent", c_uint32),
        ("policy", c_uint32),
        ("priority", c_int32),
        ("unused", c_uint32),
    )


class AllTerms(Structure):
    _fields_ = (("changes", c_uint64), ("reserved", c_uint64 * 7), ("seats", SeatTerms * SEATS))


class Doubt(Structure):
    _fields_ = (("dead", c_uint64), ("waited_ns", c_int64), ("until_ns", c_int64))


class View(Structure):
    """A turnstile as a process sees it."""

    _fields_ = (
        ("seats", POINTER(Seat) * SEATS),
        ("terms", POINTER(AllTerms)),
        ("count", c_int),
        ("holder", c_int),
        ("waited_ns", c_int64),
        ("yielded_ns", c_int64),
        ("lost_ns", c_int64),
        ("doubts", Doubt * SEATS),
    )

    @classmethod
    def of(cls, turnstile: Turnstile) -> View:
        view = cls(count=SEATS)
        view.file = turnstile  # kept as long as the view
        for number in range(SEATS):
            view.seats[number] = ctypes.pointer(turnstile.seats[number])
        return view


class Terms(Structure):
    _fields_ = (("percent", c_uint32), ("policy", c_uint32), ("priority", c_int32))


class Claim(Structure):
    _fields_ = (("credit", c_bool), ("priority", c_int32), ("paid_until", c_int64), ("place", c_uint32))


class Watch(Structure):
    _fields_ = (("half", c_void_p), ("value", c_uint32))


class Covered(Structure):
    _fields_ = (("floor", c_int64), ("start", c_int64), ("to", c_int64))


SIGNATURES = {
    "turnstile_charge": (c_int64, c_int64, c_int64, c_int64, c_int64, c_uint, c_int64),
    "turnstile_wall": (c_int64, c_int64, c_uint),
    "turnstile_resume": (c_int64, c_uint),
    "turnstile_order": (c_int, Claim, Claim),
    "turnstile_place": (c_uint32, c_char_p, c_int64),
    "turnstile_is_overdue": (c_bool, POINTER(Seat), c_int64),
    "turnstile_is_working": (c_bool, POINTER(Seat), c_int64),
    "turnstile_before": (c_bool, Claim, Claim),
    "turnstile_adopt": (c_bool, POINTER(Turnstile)),
    "turnstile_rival": (c_int, POINTER(View), c_int, c_int64, POINTER(Claim)),
    "turnstile_contended": (c_bool, POINTER(View), c_int, c_int64),
    "turnstile_spend": (None, POINTER(Seat), Terms, c_int64, c_int64, c_int64),
    "turnstile_show": (None, POINTER(Seat), Terms),
    "turnstile_terms": (Terms, POINTER(View), c_int),
    "turnstile_paid": (c_int64, POINTER(Seat), c_int64),
    "turnstile_is_active": (c_bool, POINTER(Seat), c_int64),
    "turnstile_is_waiting": (c_bool, POINTER(Seat), c_int64),
    "turnstile_set_active": (None, POINTER(Seat), c_int64, c_int64),
    "turnstile_set_waiting": (None, POINTER(Seat), c_int64, c_int64),
    "turnstile_limit_debt": (c_int64, POINTER(Seat), c_int64, c_int64),
    "turnstile_count": (None, POINTER(View)),
    "turnstile_passes": (c_uint64, POINTER(View)),
    "turnstile_process": (c_uint, POINTER(View), c_int, c_int64),
    "turnstile_last_process": (c_uint, POINTER(View), c_int),
    "turnstile_holder": (c_int, POINTER(View), c_int, c_int64),
    "turnstile_take": (c_bool, POINTER(View), c_int, c_uint, c_int64, c_int64),
    "turnstile_renew": (c_bool, POINTER(View), c_int, c_uint, c_int64, c_int64),
    "turnstile_give": (None, POINTER(View), c_int, c_uint),
    "turnstile_is_second": (c_bool, POINTER(View), c_int, c_int64),
    "turnstile_bury": (None, POINTER(View), c_int, c_uint),
    "turnstile_waits_for": (None, POINTER(View), c_int, c_int, Claim, c_int64),
    "turnstile_watch": (Watch, POINTER(View), c_int),
    "turnstile_watch_ns": (c_int64, POINTER(View), c_int, c_int64, c_int64),
    "turnstile_sleep": (c_int, Watch, c_int64),
    "turnstile_yields_to": (c_bool, POINTER(View), c_int, c_int64),
    "turnstile_had_turn": (None, POINTER(View), c_int64),
    "busy_cover": (c_int64, POINTER(Covered), c_int64, c_int64),
}


@pytest.fixture(scope="module")
def library(build_folder: Path) -> ctypes.CDLL:
    sources = [str(SOURCE / f"throttle/{name}.c") for name in ("claims", "cover", "credit", "doubts", "lease", "words")]
    path = compile_c(build_folder / "turnstile.so", *sources, f"-I{SOURCE}", "-D_GNU_SOURCE", "-shared", "-fPIC")
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


def view(turnstile: Turnstile) -> View:
    return View.of(turnstile)


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


def test_a_borrower_owes_at_most_a_second(library, turnstile):
    for policy, most in ((0, 50 * SECOND), (1, 50 * SECOND), (2, SECOND)):
        turnstile.seats[1].paid_until = NOW
        library.turnstile_spend(byref(turnstile.seats[1]), Terms(10, policy, 0), NOW, NOW, 5 * SECOND)
        assert turnstile.seats[1].paid_until == NOW + most


# --- values that no honest process can have written ---

ABSURD = [2**62, 2**63 - 1, -(2**62), -(2**63), -1]


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


@pytest.mark.parametrize(
    ("value", "believed"),
    [(2**62, NOW), (2**63 - 1, NOW), (NOW + 700 * SECOND, NOW), (-1, 0), (-(2**63), 0), (NOW + SECOND, NOW + SECOND)],
)
def test_no_debt_is_longer_than_a_charge_can_have_made_it(library, turnstile, value, believed):
    turnstile.seats[3].paid_until = value
    assert library.turnstile_paid(byref(turnstile.seats[3]), NOW) == believed
    library.turnstile_spend(byref(turnstile.seats[3]), Terms(50, 0, 0), NOW, NOW, MS)
    assert turnstile.seats[3].paid_until == max(believed, NOW - 100 * MS) + 2 * MS


def test_a_debt_can_be_limited(library, turnstile):
    turnstile.seats[3].paid_until = NOW + 90 * SECOND
    assert library.turnstile_limit_debt(byref(turnstile.seats[3]), NOW, NOW + SECOND) == NOW + SECOND
    assert turnstile.seats[3].paid_until == NOW + SECOND
    assert library.turnstile_limit_debt(byref(turnstile.seats[3]), NOW, NOW + 2 * SECOND) == NOW + SECOND


@pytest.mark.parametrize("percent", [0, 101, 2**31, 2**32 - 1])
def test_terms_that_no_quota_can_say_give_nothing(library, turnstile, percent):
    wrong = turnstile.seats[3]
    wrong.percent, wrong.policy, wrong.priority = percent, 77, -(2**31)
    terms = library.turnstile_terms(view(turnstile), 3)
    assert (terms.percent, terms.policy, terms.priority) == (1, 0, 2**31 - 1)
    library.turnstile_show(byref(turnstile.seats[3]), Terms(30, 2, -5))
    assert (wrong.percent, wrong.policy, wrong.priority) == (30, 2, -5)


HOLDS = Claim(True, 0, NOW, 0)


def test_one_tenant_has_the_gpu_until_its_lease_ends(library, turnstile):
    t = view(turnstile)
    assert library.turnstile_holder(t, -1, NOW) == -1
    assert library.turnstile_take(t, 0, 7, NOW, NOW + 10 * MS)
    assert (library.turnstile_holder(t, -1, NOW + 9 * MS), library.turnstile_process(t, 0, NOW + 9 * MS)) == (0, 7)
    assert not library.turnstile_take(t, 1, 8, NOW + 9 * MS, NOW + SECOND)
    assert turnstile.seats[1].lease == 0, "who does not get it leaves nothing behind"
    assert library.turnstile_holder(t, -1, NOW + 10 * MS) == -1, "it is over"
    assert library.turnstile_last_process(t, 0) == 7
    assert library.turnstile_take(t, 1, 8, NOW + 10 * MS, NOW + 20 * MS)
    assert not library.turnstile_renew(t, 0, 7, NOW + 11 * MS, NOW + SECOND), "another has it by now"
    library.turnstile_give(t, 1, 7)
    assert library.turnstile_holder(t, -1, NOW + 15 * MS) == 1, "one cannot give what one has not got"
    library.turnstile_give(t, 1, 8)
    assert library.turnstile_holder(t, -1, NOW + 15 * MS) == -1


def test_one_process_of_a_tenant_has_its_lease(library, turnstile):
    t = view(turnstile)
    assert library.turnstile_take(t, 0, 7, NOW, NOW + 10 * MS)
    assert not library.turnstile_take(t, 0, 8, NOW, NOW + 10 * MS)
    assert not library.turnstile_renew(t, 0, 8, NOW, NOW + 10 * MS)
    assert library.turnstile_take(t, 0, 8, NOW + 10 * MS, NOW + 20 * MS)


def test_who_finds_another_after_taking_it_gives_it_back(library, turnstile):
    """Of two that take it at once each writes first and looks afterwards."""
    t = view(turnstile)
    turnstile.seats[1].lease = 8 << 48 | (NOW + 10 * MS) // 1000
    assert not library.turnstile_take(t, 0, 7, NOW, NOW + 10 * MS)
    assert turnstile.seats[0].lease == 0


def test_of_two_that_have_it_the_later_one_finds_out(library, turnstile):
    t = view(turnstile)
    for number, since in ((0, NOW - 2 * MS), (1, NOW - MS)):
        turnstile.seats[number].lease = (7 + number) << 48 | (NOW + 10 * MS) // 1000
        turnstile.seats[number].lease_since = since
    assert [library.turnstile_is_second(t, number, NOW) for number in range(2)] == [False, True]
    turnstile.seats[0].lease_since = NOW - MS
    assert [library.turnstile_is_second(t, number, NOW) for number in range(2)] == [False, True], "the seat decides"


def test_a_lease_is_prolonged_and_never_shortened(library, turnstile):
    t = view(turnstile)
    assert library.turnstile_take(t, 0, 7, NOW, NOW + 10 * MS)
    assert library.turnstile_renew(t, 0, 7, NOW, NOW + 5 * MS)
    assert library.turnstile_process(t, 0, NOW + 9 * MS) == 7
    assert library.turnstile_renew(t, 0, 7, NOW, NOW + 50 * MS)
    assert library.turnstile_process(t, 0, NOW + 49 * MS) == 7


def test_a_lease_that_ends_at_once_is_not_prolonged_beside_another(library, turnstile):
    """The other may have looked when it had ended."""
    t = view(turnstile)
    assert library.turnstile_take(t, 0, 7, NOW, NOW + 10 * MS)
    turnstile.seats[1].lease = 8 << 48 | (NOW + 30 * MS) // 1000
    assert not library.turnstile_renew(t, 0, 7, NOW + 10 * MS - MS // 2, NOW + 20 * MS)
    assert library.turnstile_renew(t, 0, 7, NOW + MS, NOW + 20 * MS)


def test_the_lease_of_the_dead_counts_no_more_and_their_seats_next_does(library, turnstile):
    t = view(turnstile)
    assert library.turnstile_take(t, 0, 7, NOW, NOW + 500 * MS)
    library.turnstile_bury(t, 0, 6)
    assert not library.turnstile_take(t, 1, 8, NOW, NOW + SECOND), "another process is dead"
    library.turnstile_bury(t, 0, 7)
    assert library.turnstile_take(t, 1, 8, NOW, NOW + 20 * MS)
    assert not library.turnstile_is_second(t, 1, NOW)
    assert library.turnstile_take(t, 0, 9, NOW + 30 * MS, NOW + SECOND), "a sibling takes it over"
    assert library.turnstile_holder(t, 1, NOW + 30 * MS) == 0


def test_a_lease_is_never_so_long_that_it_would_bind_nobody(library, turnstile):
    """With ten seconds of work on its way: others see the holder, for a second at a time."""
    t = view(turnstile)
    assert library.turnstile_take(t, 0, 7, NOW, NOW + 11 * SECOND)
    assert [library.turnstile_process(t, 0, NOW + later) for later in (0, SECOND - MS, SECOND)] == [7, 7, 0]
    assert library.turnstile_renew(t, 0, 7, NOW + SECOND // 2, NOW + 11 * SECOND)
    assert library.turnstile_process(t, 0, NOW + SECOND // 2) == 7
    assert [library.turnstile_process(t, 0, NOW + 3 * SECOND // 2 - late) for late in (MS, 0)] == [7, 0]


@pytest.mark.parametrize("lease", [2**64 - 1, 9 << 48 | (NOW + 2 * SECOND) // 1000, 9 << 48])
@pytest.mark.parametrize("number", [0, 1])
def test_a_lease_that_cannot_have_been_taken_binds_nobody(library, turnstile, lease, number):
    turnstile.seats[number].lease = lease
    assert library.turnstile_holder(view(turnstile), -1, NOW) == -1
    assert library.turnstile_take(view(turnstile), 0, 8, NOW, NOW + SECOND)


def test_passes_of_all_tenants_count(library, turnstile):
    turnstile.seats[3].passes, turnstile.seats[5].passes = 2, 5
    assert library.turnstile_passes(view(turnstile)) == 7


# --- sleeping until a lease is given back ---

GIVEN, LONG, NOT = range(3)


@pytest.fixture
def watched(library):
    """A turnstile as its tenant has it, and as a neighbour does: one sealed memory, for writing and only for reading."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = c_void_p
    libc.mmap.argtypes = (c_void_p, ctypes.c_size_t, c_int, c_int, c_int, ctypes.c_long)
    memory = os.memfd_create("turnstile", os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, ctypes.sizeof(Turnstile))
    fcntl.fcntl(memory, 1033, 0x2)  # F_ADD_SEALS, F_SEAL_SHRINK
    views = []
    for access in (mmap.PROT_READ | mmap.PROT_WRITE, mmap.PROT_READ):
        at = libc.mmap(None, ctypes.sizeof(Turnstile), access, mmap.MAP_SHARED, memory, 0)
        views.append(view(Turnstile.from_address(at)))
    os.close(memory)
    yield views
    for one in views:
        assert libc.munmap(c_void_p(ctypes.addressof(one.file)), ctypes.c_size_t(ctypes.sizeof(Turnstile))) == 0


def test_who_waits_for_a_lease_is_woken_when_it_is_given_back(library, watched):
    """The kernel waits for a word that the waiter can only read."""
    own, neighbours = watched
    now = time.monotonic_ns()
    assert library.turnstile_take(own, 3, 7, now, now + SECOND)
    watch = library.turnstile_watch(neighbours, 3)
    assert library.turnstile_renew(own, 3, 7, now, now + SECOND // 2), "which is no end of it"
    results = []

    def wait():
        while (result := library.turnstile_sleep(watch, SECOND)) == LONG:
            results.append(result)
        results.append(result)

    waiter = threading.Thread(target=wait)
    waiter.start()
    while len(results) < 3:
        time.sleep(0.001)
    library.turnstile_give(own, 3, 8)  # another process has nothing to give
    count = len(results)
    while len(results) < count + 3:
        time.sleep(0.001)
    library.turnstile_give(own, 3, 7)
    waiter.join(60)
    # NOT: it was just between two sleeps.
    assert results[-1] in (GIVEN, NOT)
    assert set(results[:-1]) == {LONG}, "it sleeps, and never for long"


def test_a_lease_that_has_changed_is_not_waited_for(library, watched):
    own, neighbours = watched
    own.file.seats[3].lease = 7 << 48 | 5
    watch = library.turnstile_watch(neighbours, 3)
    own.file.seats[3].lease = 8 << 48 | 5
    assert library.turnstile_sleep(watch, SECOND) == NOT
    own.file.seats[3].lease = 7 << 48 | 6
    assert library.turnstile_sleep(watch, SECOND) == LONG


def test_a_seat_that_is_not_mapped_any_more_is_not_waited_for(library):
    assert library.turnstile_sleep(Watch(4096, 0), SECOND) == NOT


def test_a_sleep_ends_with_the_lease(library, turnstile):
    t = view(turnstile)
    turnstile.seats[3].lease = 7 << 48 | (NOW + MS // 2) // 1000
    assert library.turnstile_watch_ns(t, 3, NOW, MS) == MS // 2 + 1000
    assert library.turnstile_watch_ns(t, 3, NOW - SECOND, MS) == MS
    for ended in (0, 1, (1 << 48) - 1, 2**64 - 1):
        turnstile.seats[3].lease = ended
        assert 0 < library.turnstile_watch_ns(t, 3, NOW, MS) <= MS


# --- tenants that keep others waiting ---


def wait(library, t, other, own, milliseconds, since=NOW):
    """Has the tenant of seat 0 wait for the other's lease, with a look every millisecond."""
    for after in range(milliseconds + 1):
        library.turnstile_waits_for(t, 0, other, own, since + after * MS)
    return since + milliseconds * MS


def held_for_ever(turnstile, number=1, percent=50, priority=0):
    seat(turnstile, number, percent, priority)
    turnstile.seats[number].lease = 8 << 48 | (NOW + SECOND) // 1000


def test_a_tenant_that_never_ends_its_turn_is_left_out_for_ten_seconds(library, turnstile):
    t = view(turnstile)
    held_for_ever(turnstile)
    now = wait(library, t, 1, HOLDS, 1020)
    assert t.doubts[1].until_ns == 0
    now = wait(library, t, 1, HOLDS, 2, now)
    assert now < t.doubts[1].until_ns <= now + 10 * SECOND
    turnstile.seats[1].lease = 8 << 48 | (now + SECOND) // 1000
    turnstile.seats[1].waiting_until = turnstile.seats[1].active_until = now + MS
    assert library.turnstile_holder(t, -1, now) == -1
    assert library.turnstile_rival(t, 0, now, byref(Claim())) == -1
    assert library.turnstile_take(t, 0, 7, now, now + 20 * MS)
    assert not library.turnstile_is_second(t, 0, now)
    later = now + 11 * SECOND
    turnstile.seats[1].lease = 8 << 48 | (later + SECOND) // 1000
    assert library.turnstile_holder(t, -1, later) == 1, "it counts again"


def test_a_tenant_that_gives_others_their_turns_stays_in(library, turnstile):
    t, now = view(turnstile), NOW
    held_for_ever(turnstile)
    for _ in range(5):
        now = wait(library, t, 1, HOLDS, 900, now)
        library.turnstile_had_turn(t, now)
    assert t.doubts[1].until_ns == 0


def test_turns_that_are_taken_away_do_not_count_as_turns(library, turnstile):
    t, now = view(turnstile), NOW
    held_for_ever(turnstile)
    for _ in range(4):
        now = wait(library, t, 1, HOLDS, 400, now)
        library.turnstile_had_turn(t, now)
        t.lost_ns = now
    assert t.doubts[1].until_ns > NOW


def test_who_borrows_waits_for_as_long_as_it_takes(library, turnstile):
    t = view(turnstile)
    held_for_ever(turnstile)
    wait(library, t, 1, Claim(False, 0, NOW, 0), 3000)
    assert t.doubts[1].until_ns == 0


def test_a_more_urgent_tenant_may_use_up_what_it_has_saved(library, turnstile):
    t = view(turnstile)
    held_for_ever(turnstile, percent=90)
    wait(library, t, 1, Claim(True, 5, NOW, 0), 1900)
    assert t.doubts[1].until_ns == 0
    wait(library, t, 1, Claim(True, 5, NOW, 0), 100, NOW + 1900 * MS)
    assert t.doubts[1].until_ns > 0


def test_more_urgent_tenants_may_take_turns(library, turnstile):
    """Where shares are more than there is, the least urgent tenant has what is left, which may be nothing."""
    t, now = view(turnstile), NOW
    held_for_ever(turnstile, 1)
    held_for_ever(turnstile, 2)
    for number in range(100):
        now = wait(library, t, 1 + number % 2, Claim(True, 5, NOW, 0), 40, now)
    assert [t.doubts[number].until_ns for number in (1, 2)] == [0, 0]


def test_a_tenant_that_comes_first_and_does_not_come_is_not_waited_for(library, turnstile):
    t, now = view(turnstile), NOW
    seat(turnstile, 1)
    while library.turnstile_yields_to(t, 1, now):
        now += MS
    assert now - NOW == 21 * MS
    assert t.doubts[1].until_ns == now + 10 * SECOND


def test_who_waits_for_a_tenant_that_is_left_out_is_not_to_blame(library, turnstile):
    t, now = view(turnstile), NOW
    seat(turnstile, 1)
    seat(turnstile, 2)
    t.doubts[2].until_ns = NOW + SECOND
    while library.turnstile_yields_to(t, 1, now):
        now += MS
    assert t.doubts[1].until_ns == 0


# --- what the agent says of a seat ---


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
