# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures: the simulated library built once, and a host of simulated GPUs for each test."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from simulated_host import SimulatedHost


@contextmanager
def open_folder():
    """A folder that other users reach too, as they do on a host; pytest's own are for their owner alone."""
    with tempfile.TemporaryDirectory(prefix="openfleet-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="session")
def library():
    with open_folder() as folder:
        yield SimulatedHost.build(folder).library


@pytest.fixture
def host(library):
    """An empty folder with the library; call create() on it."""
    if os.geteuid() != 0:
        pytest.skip("partitioning GPUs needs root, also on the simulator: run as root")
    with open_folder() as folder:
        yield SimulatedHost(folder, library)
