# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import sys
from pathlib import Path

import pytest
from lab_fixtures import lab_host

sys.path.insert(0, str(Path(__file__).resolve().parent))
from vgpu_host import VgpuHost

__all__ = ["lab_host"]


@pytest.fixture(scope="session")
def ada(lab_host):
    host = VgpuHost("ada", lab_host("ada"))
    host.name_gpus()
    return host
