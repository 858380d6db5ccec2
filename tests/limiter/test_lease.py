# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the lease: one process has the GPU, and other processes wait."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import threading
import time
from ctypes import c_int, c_void_p

import pytest

from tests.limiter.turnstile_lab import MS, NOW, SECOND, Turnstile, Watch, view


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
    """Give the lease up if another process took it at the same time.

    Each process writes its own lease before it checks for others.
    """
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
    """Do not prolong a lease that has just ended.

    Another process may have seen that it ended, and taken the GPU.
    """
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
    """Limit a lease to one second, also if a process has ten seconds of pending work.

    Other processes would ignore a longer lease, so the process renews it.
    """
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


GIVEN, LONG, NOT = range(3)


@pytest.fixture
def watched(library):
    """Return views of one turnstile for its own tenant and for another tenant.

    The memory is sealed. The first view is writable, and the second one is read-only.
    """
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
    """Wake a waiting process, although it can only read the memory of the futex."""
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
    library.turnstile_give(own, 3, 8)  # Process 7 holds the lease, so process 8 cannot give it back.
    count = len(results)
    while len(results) < count + 3:
        time.sleep(0.001)
    library.turnstile_give(own, 3, 7)
    waiter.join(60)
    # The result NOT is also possible, because the waiter may have been between two sleeps.
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
