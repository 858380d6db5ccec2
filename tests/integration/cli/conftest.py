# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Provide hosts with simulated GPUs and gpu-layout, as the role installs it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.integration.command_host import CommandHost, build_command
from tests.integration.simulated_host import SimulatedHost


@pytest.fixture(scope="session")
def library():
    with tempfile.TemporaryDirectory(prefix="openfleet-") as folder:
        yield SimulatedHost.build(Path(folder)).library


@pytest.fixture(scope="session")
def command(tmp_path_factory):
    """Build the command as one file that includes pynvml."""
    return build_command(tmp_path_factory.mktemp("command") / "gpu-layout")


@pytest.fixture
def host(library, command):
    if os.geteuid() != 0:
        pytest.skip("partitioning GPUs needs root, also on the simulator: run as root")
    with tempfile.TemporaryDirectory(prefix="openfleet-") as folder:
        yield CommandHost(SimulatedHost(Path(folder), library), command)
