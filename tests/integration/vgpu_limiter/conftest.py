# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from vgpu_limiter_host import Host


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path / "host")
