# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest

from tests.unit.module_utils.leases.lease_world import World


@pytest.fixture
def world(tmp_path):
    """Return a simulated host on which the real lease service runs."""
    return World(tmp_path)
