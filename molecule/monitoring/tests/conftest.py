# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.lab.lab_fixtures import lab_host

sys.path.insert(0, str(Path(__file__).resolve().parent))
from watched_fleet import Monitor

__all__ = ["lab_host"]


@pytest.fixture(scope="session")
def monitor(lab_host):
    return Monitor(lab_host("monitor"))


@pytest.fixture(scope="session")
def hopper(lab_host):
    return lab_host("hopper")


@pytest.fixture(scope="session")
def ada(lab_host):
    return lab_host("ada")
