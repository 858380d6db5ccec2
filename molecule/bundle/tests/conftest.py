# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest

from tests.lab.lab_fixtures import lab_host

__all__ = ["lab_host"]


@pytest.fixture(scope="session")
def remote(lab_host):
    return lab_host("remote")
