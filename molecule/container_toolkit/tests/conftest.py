# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.lab.lab_fixtures import lab_host

sys.path.insert(0, str(Path(__file__).resolve().parent))

__all__ = ["lab_host"]


@pytest.fixture(scope="session")
def boxes(lab_host):
    return lab_host("boxes")


@pytest.fixture(scope="session")
def engines(lab_host):
    return lab_host("engines")


@pytest.fixture(scope="session")
def whole(lab_host):
    return lab_host("whole")
