# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the calculation of credit, and its value in a seat."""

from __future__ import annotations

import random
from ctypes import byref

import pytest

from tests.limiter.turnstile_lab import MS, NOW, SECOND, Terms


@pytest.mark.parametrize("percent", [1, 10, 33, 50, 80, 99])
def test_time_is_paid_for_at_the_share(library, percent):
    charged = library.turnstile_charge(NOW, NOW, NOW, 3 * MS, percent, 600 * SECOND)
    assert charged - NOW == 3 * MS * 100 // percent


def test_idle_time_saves_no_more_than_a_tenth_of_a_second(library):
    long_idle = library.turnstile_charge(0, NOW, NOW, MS, 50, 600 * SECOND)
    assert long_idle == NOW - 100 * MS + 2 * MS
    # Work is charged from the time of its request, so the credit that the tenant has earned since then already pays for
    # it.
    assert library.turnstile_charge(0, NOW - SECOND, NOW, MS, 50, 600 * SECOND) == NOW - SECOND - 98 * MS


def test_a_charge_that_was_too_high_is_given_back(library):
    charged = library.turnstile_charge(NOW, NOW, NOW, 4 * MS, 20, 600 * SECOND)
    assert library.turnstile_charge(charged, NOW, NOW + MS, -3 * MS, 20, 600 * SECOND) == NOW + 5 * MS


def test_a_debt_has_a_limit_and_a_charge_never_lowers_one(library):
    assert library.turnstile_charge(NOW, NOW, NOW, 10**18, 1, SECOND) == NOW + SECOND
    assert library.turnstile_charge(NOW + 5 * SECOND, NOW, NOW, MS, 1, SECOND) == NOW + 5 * SECOND


def test_any_sequence_of_use_stays_within_the_share(library):
    """Compare with a model that knows only wall time and busy time.

    Total use must never exceed the share by more than the credit limit.
    """
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


def test_a_borrower_owes_at_most_a_second(library, turnstile):
    for policy, most in ((0, 50 * SECOND), (1, 50 * SECOND), (2, SECOND)):
        turnstile.seats[1].paid_until = NOW
        library.turnstile_spend(byref(turnstile.seats[1]), Terms(10, policy, 0), NOW, NOW, 5 * SECOND)
        assert turnstile.seats[1].paid_until == NOW + most


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


def test_small_shares_wait_for_a_useful_turn_but_not_for_ever(library):
    assert library.turnstile_resume(80) == 5 * MS * 100 // 80
    assert library.turnstile_resume(10) == 50 * MS
    assert library.turnstile_resume(1) == 50 * MS
