# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures: the simulated library, built once, and a simulated GPU host per test."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.simulated_host import SimulatedHost


@contextmanager
def open_folder():
    """Create a folder that other users can read, as they can on a host.

    Only their owner can read pytest's own folders.
    """
    with tempfile.TemporaryDirectory(prefix="openfleet-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="session")
def library():
    with open_folder() as folder:
        yield SimulatedHost.build(folder).library


@pytest.fixture
def host(library):
    """Return a host with an empty folder and the library.

    Call create() to add GPUs.
    """
    if os.geteuid() != 0:
        pytest.skip("partitioning GPUs needs root, also on the simulator: run as root")
    with open_folder() as folder:
        yield SimulatedHost(folder, library)
