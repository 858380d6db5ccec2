# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest

from tests.integration.vgpu_limiter.vgpu_limiter_host import Host


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path / "host")
