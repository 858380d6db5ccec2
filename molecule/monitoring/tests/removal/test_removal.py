# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remove exporters and monitoring with reset.yml."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.lab.lab_fixtures import REPOSITORY
from tests.thorough import THOROUGH

INVENTORY = Path(__file__).resolve().parents[2] / "inventory"
RUN_SECONDS = 600


def reset(*options):
    done = subprocess.run(
        ["ansible-playbook", "-i", str(INVENTORY), "playbooks/reset.yml", *options],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    return done.stdout


def listening(monitor):
    """Return the ports with listeners, except the receiver's.

    All hosts share one loopback interface.
    """
    lines = monitor.host.check_output("ss -Hlnt").splitlines()
    return {line.split()[3].rpartition(":")[2] for line in lines} - {"9099"}


@pytest.fixture(scope="module")
def taken_away(monitor):
    before = listening(monitor)
    if THOROUGH:
        reset("--check", "--diff", "--limit", "hopper,monitor")
    assert listening(monitor) == before == {"9090", "9093", "9400"}, "a dry run took something away"
    reset()


def test_exporter_is_removed_completely(taken_away, hopper, ada):
    for host in (hopper, ada):
        left = host.check_output("find /etc /usr/local /var/lib -xdev -iname '*dcgm*' -o -xdev -iname '*exporter*'")
        assert left == ""
        assert host.run("systemctl cat dcgm-exporter").rc != 0


def test_monitoring_is_removed_completely(taken_away, monitor):
    assert monitor.host.check_output("find /etc /var/lib/prometheus -xdev -iname '*openfleet*'") == ""


def test_no_port_is_open(taken_away, monitor):
    # Debian's services may still run with Debian's configuration, because their packages were installed before the
    # role.
    assert "9400" not in listening(monitor)
