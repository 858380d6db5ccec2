# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.lab.lab_fixtures import lab_host

sys.path.insert(0, str(Path(__file__).resolve().parent))
from mps_daemons import MpsDaemons

__all__ = ["lab_host"]


@pytest.fixture(scope="session")
def hopper(lab_host):
    return lab_host("hopper")


@pytest.fixture(scope="session")
def with_library(hopper):
    """Return the host without a daemon, and with this checkout's library for hosts."""
    MpsDaemons.install(hopper)
    MpsDaemons(hopper).clear()
    return hopper


@pytest.fixture
def mps(with_library):
    """Return the host without a daemon.

    After the test, the fixture removes daemons that the test started.
    """
    daemons = MpsDaemons(with_library)
    yield daemons
    daemons.clear()
