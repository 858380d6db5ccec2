# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the role like an operator, and read a host's state before and after."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.lab.lab_fixtures import lab_host

sys.path.insert(0, str(Path(__file__).resolve().parent))
from driver_runs import LOOK, State

__all__ = ["lab_host"]


@pytest.fixture
def state_of(lab_host):
    """Return a function from a host's name to its State."""
    return lambda name: State.read(lab_host(name).check_output(LOOK))
