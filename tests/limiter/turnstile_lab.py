# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Call the turnstile's C code from Python: its memory, structures and functions."""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    Structure,
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

from tests.limiter.limiter_lab import SOURCE, compile_c

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
        ("gave_way", c_uint64),
        ("waits", c_uint64),
        ("waits_ns", c_uint64),
        ("late", c_uint64),
    )


class Turnstile(Structure):
    """The layout of the turnstile's file."""

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
    """The C structure with which a process accesses a turnstile."""

    _fields_ = (
        ("seats", POINTER(Seat) * SEATS),
        ("terms", POINTER(AllTerms)),
        ("count", c_int),
        ("holder", c_int),
        ("waited_ns", c_int64),
        ("yielded_ns", c_int64),
        ("lost_ns", c_int64),
        ("doubts", Doubt * SEATS),
        ("gives_way", c_bool * SEATS),
    )

    @classmethod
    def of(cls, turnstile: Turnstile) -> View:
        view = cls(count=SEATS)
        view.file = turnstile  # The reference keeps the file alive as long as the view exists.
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


def load(folder: Path) -> ctypes.CDLL:
    """Build and load a library that contains only the arithmetic of the turnstile."""
    sources = [str(SOURCE / f"throttle/{name}.c") for name in ("claims", "cover", "credit", "doubts", "lease", "words")]
    path = compile_c(folder / "turnstile.so", *sources, f"-I{SOURCE}", "-D_GNU_SOURCE", "-shared", "-fPIC")
    loaded = ctypes.CDLL(str(path))
    for name, (result, *arguments) in SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def view(turnstile: Turnstile) -> View:
    return View.of(turnstile)


def seat(
    turnstile: Turnstile, number: int, percent: int = 50, priority: int = 0, paid: int = NOW, waits: bool = True
) -> None:
    chosen = turnstile.seats[number]
    chosen.percent, chosen.priority, chosen.paid_until = percent, priority, paid
    chosen.waiting_until = NOW + MS if waits else 0


def held_for_ever(turnstile, number=1, percent=50, priority=0):
    seat(turnstile, number, percent, priority)
    turnstile.seats[number].lease = 8 << 48 | (NOW + SECOND) // 1000


#: Values that a correct process never writes.
ABSURD = [2**62, 2**63 - 1, -(2**62), -(2**63), -1]

#: A claim of a tenant that has credit.
HOLDS = Claim(True, 0, NOW, 0)
