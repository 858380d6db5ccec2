# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.lab.lab_fixtures import lab_host

sys.path.insert(0, str(Path(__file__).resolve().parent))
from slurm_host import prepared

__all__ = ["lab_host"]


@pytest.fixture(scope="session")
def host(lab_host):
    """Return the host with the collection's modules and the device nodes of the GPUs."""
    return prepared("one", lab_host("one"))


@pytest.fixture(scope="module")
def typed(host):
    """Return the host while slurmctld refuses requests for GPUs without a type.

    Tests of the same file that need a host without this rule must run first.
    """
    host.require_types()
    yield host
    host.require_types(False)
