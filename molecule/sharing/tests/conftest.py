# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import sys
from pathlib import Path

import pytest
from lab_fixtures import lab_host

sys.path.insert(0, str(Path(__file__).resolve().parent))
from mps_daemons import MpsDaemons

__all__ = ["lab_host"]


@pytest.fixture(scope="session")
def hopper(lab_host):
    return lab_host("hopper")


@pytest.fixture(scope="session")
def with_library(hopper):
    """The host with the collection's library of hosts, of this working tree, and without a daemon."""
    MpsDaemons.install(hopper)
    MpsDaemons(hopper).clear()
    return hopper


@pytest.fixture
def mps(with_library):
    """The host without a daemon; what a test starts is taken away after it."""
    daemons = MpsDaemons(with_library)
    yield daemons
    daemons.clear()
