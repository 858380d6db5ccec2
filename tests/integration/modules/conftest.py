# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures: the simulated library built once, and a host of simulated GPUs for each test."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from simulated_host import SimulatedHost


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    folder.chmod(0o755)
    return SimulatedHost.build(folder).library


@pytest.fixture
def host(library, tmp_path):
    """An empty folder with the library; call create() on it."""
    if os.geteuid() != 0:
        pytest.skip("partitioning GPUs needs root, also on the simulator: run as root")
    # Other users must reach the state and the tools here, as on a host.
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    return SimulatedHost(tmp_path, library)
