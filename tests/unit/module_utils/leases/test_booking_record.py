# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the file that records a host's leases and waiting requests."""

from __future__ import annotations

import json

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import ApplyError
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.model import Booking, Place, Request, Shape
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.record import BookingRecord, Recorded

BOOKINGS = (
    Booking(
        Request(3, "alice", Shape(profile="1g.5gb"), 3600.5), "gpu_layout[0]", (Place("GPU-a", 4),), 1.8e9 + 0.25, True
    ),
    Booking(Request(7, "bob", Shape(2**30, 30), 60.0, 2), "gpu_layout[1]", (Place("GPU-b"), Place("GPU-c")), 1.9e9),
    Booking(Request(8, "pod:a/b", Shape(2**30, 30), 60.0, 1, "u-1"), "gpu_layout[1]", (Place("GPU-b"),), 1.9e9, True),
)


def test_bookings_are_read_back(tmp_path):
    record = BookingRecord(str(tmp_path))
    assert record.read() == Recorded((), 1)
    record.write(Recorded(BOOKINGS, 8))
    assert record.read() == Recorded(BOOKINGS, 8)
    # A later lease must not get the number of an ended lease.
    record.write(Recorded((), 8))
    assert record.read().next_number == 8


def test_equal_bookings_are_not_written_again(tmp_path):
    record = BookingRecord(str(tmp_path))
    record.write(Recorded(BOOKINGS, 8))
    before = record.path.stat().st_ino
    record.write(Recorded(BOOKINGS, 8))
    assert record.path.stat().st_ino == before


@pytest.mark.parametrize("change", [{"bookings": [{}]}, {"bookings": 7}, {"next_number": None}, {"schema": 99}])
def test_unreadable_file_is_named(tmp_path, change):
    record = BookingRecord(str(tmp_path))
    record.write(Recorded(BOOKINGS, 8))
    record.path.write_text(json.dumps({**json.loads(record.path.read_text()), **change}))
    with pytest.raises(ApplyError, match=r"leases\.json"):
        record.read()
