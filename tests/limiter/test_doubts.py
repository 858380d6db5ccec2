# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test when processes stop waiting for a tenant that keeps the GPU for too long."""

from __future__ import annotations

from ctypes import byref

from tests.limiter.turnstile_lab import HOLDS, MS, NOW, SECOND, Claim, held_for_ever, seat, view


def wait(library, t, other, own, milliseconds, since=NOW):
    """Let the tenant of seat 0 wait for another lease, and return the time afterwards.

    The waiting tenant checks every millisecond.
    """
    for after in range(milliseconds + 1):
        library.turnstile_waits_for(t, 0, other, own, since + after * MS)
    return since + milliseconds * MS


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
    """Wait without doubt while two more urgent tenants take turns.

    If the shares exceed 100 percent, the tenant with the lowest priority may get nothing.
    """
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
