# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remove MPS from a host with reset.yml, and keep Debian's files."""

from __future__ import annotations

import pytest
from sharing_hosts import SharingHost

TRACES = (
    "/etc/openfleet-gpu",
    "/etc/systemd/system/openfleet-mps@.service",
    r"/etc/systemd/system/run-openfleet\x2dmps-inference.mount",
    "/etc/logrotate.d/openfleet-mps",
    "/run/openfleet-mps",
    "/var/log/openfleet-mps",
    "/var/lib/openfleet-gpu",
    "/etc/cdi/openfleet-mps-inference.json",
)


@pytest.fixture(scope="module")
def hopper(lab_host):
    return SharingHost("hopper", lab_host("hopper"))


@pytest.mark.thorough
def test_dry_run_removes_nothing(hopper):
    before = hopper.daemons()
    assert set(before) == {"small", "inference"}
    done = hopper.play("playbooks/reset.yml", "--check", "--diff")
    assert done.returncode == 0, done.stdout[-3000:]
    assert "mps inference: stop on gpu 1" in done.stdout
    assert hopper.daemons() == before


def test_removal_is_complete(hopper):
    for path in TRACES:
        assert hopper.host.file(path).exists, path
    done = hopper.play("playbooks/reset.yml")
    assert done.returncode == 0, done.stdout[-3000:]
    assert hopper.daemons() == {}
    for path in TRACES:
        assert not hopper.host.file(path).exists, path
    assert hopper.host.run("pgrep -x nvidia-cuda-mps").rc != 0
    assert hopper.host.file("/usr/bin/nvidia-cuda-mps-control").exists
