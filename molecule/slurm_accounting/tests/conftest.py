# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest

from tests.lab import host_modules
from tests.lab.lab_fixtures import lab_host

__all__ = ["lab_host"]


@pytest.fixture(scope="session")
def host(lab_host):
    """Return the host with the collection's modules."""
    host_modules.install("one")
    return lab_host("one")
