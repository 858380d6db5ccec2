# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from tests.lab import host_modules
from tests.lab.lab_fixtures import lab_host

sys.path.insert(0, str(Path(__file__).resolve().parent))
from drained_host import RUNNING, UNITS, DrainedHost
from role_runs import RoleRun

__all__ = ["lab_host"]


@pytest.fixture(scope="session")
def host_name(worker_id):
    """Return the name of the host for this pytest-xdist worker."""
    return {"master": "one", "gw0": "one", "gw1": "two"}[worker_id]


@pytest.fixture(scope="session")
def with_units(lab_host, host_name):
    """Return the host with the units of the tests and the collection's modules."""
    host = lab_host(host_name)
    host_modules.install(host_name)
    for name, text in UNITS.items():
        # Enabled units start again after a restart of the host, like real services.
        installed = f"{text}\n[Install]\nWantedBy=multi-user.target\n"
        host.check_output(f"printf %s {shlex.quote(installed)} > /etc/systemd/system/{name}")
    host.check_output(f"systemctl daemon-reload; systemctl enable --quiet {' '.join(RUNNING)}")
    return host


@pytest.fixture
def host(with_units, host_name):
    """Return the host in its initial state.

    The units run, the node is idle, and the host has no record of a drain.
    """
    drained = DrainedHost(host_name, with_units)
    drained.bare()
    return drained


@pytest.fixture
def run(tmp_path, host_name):
    """Return a function that starts a run of the role.

    For example: run("drain", "--check", gpu_drain_services=[...]).
    """
    runs = []

    def start(playbook: str, *arguments: str, **variables) -> RoleRun:
        runs.append(RoleRun(tmp_path, host_name, playbook, arguments, {"gpu_drain_slurm": False, **variables}))
        return runs[-1]

    yield start
    for one in runs:
        one.kill()
