# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.lab.fleet import Run, play_and_read
from tests.lab.lab_fixtures import host_vars, lab_host
from tests.lab.mps_answers import read_daemons
from tests.lab.nvidia_smi import read_gpus
from tests.lab.verify_layout import read_tenants

sys.path.insert(0, str(Path(__file__).resolve().parent))

__all__ = ["daemons_of", "gpus_of", "host_vars", "lab_host", "play_site", "tenants_of"]


@pytest.fixture(scope="session")
def play_site():
    """Return a function that runs site.yml: play_site(log, argument, ...).

    It uses the settings of molecule.yml.
    """

    def play(log_name: str, *arguments: str) -> Run:
        usual = [
            "--diff",
            "--extra-vars=gpu_layout_unlisted=remove",
            "--limit",
            os.environ.get("OPENFLEET_LIMIT", "all"),
        ]
        return play_and_read("site.yml", log_name, *usual, *arguments)

    return play


@pytest.fixture(scope="session")
def gpus_of(lab_host):
    """Return a function from a lab host's name to its current GPUs in nvidia-smi."""

    return lambda host_name: read_gpus(_run_on(lab_host(host_name)))


@pytest.fixture(scope="session")
def daemons_of(lab_host):
    """Return a function from a lab host's name to its running MPS daemons."""
    return lambda host_name: read_daemons(_run_on(lab_host(host_name)))


@pytest.fixture(scope="session")
def tenants_of(lab_host, host_vars):
    """Return a function from a lab host's name to the GPUs that its tenants see."""
    return lambda host_name: read_tenants(_run_on(lab_host(host_name)), host_vars(host_name))


def _run_on(host):
    def run(command: str) -> tuple[int, str]:
        done = host.run(command)
        return done.rc, done.stdout + done.stderr

    return run
