# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.lab.lab_fixtures import lab_host

sys.path.insert(0, str(Path(__file__).resolve().parent))
from lease_desk import Desk

__all__ = ["lab_host"]


@pytest.fixture(scope="session")
def connected(lab_host):
    return Desk(lab_host("desk"))


@pytest.fixture
def desk(connected):
    yield connected
    connected.end_all()
