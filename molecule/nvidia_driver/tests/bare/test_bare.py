# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""After a dry run on bare hosts: they are bare still."""

from __future__ import annotations

import pytest

WRITTEN = [
    "/etc/apt/sources.list.d/openfleet-nvidia-driver.sources",
    "/etc/apt/preferences.d/openfleet-nvidia-driver",
    "/etc/apt/keyrings/openfleet-nvidia-driver.gpg",
    "/etc/modprobe.d/openfleet-nvidia-driver.conf",
    "/etc/modules-load.d/openfleet-nvidia-driver.conf",
    "/etc/dracut.conf.d/openfleet-nvidia-driver.conf",
    "/var/lib/openfleet-gpu",
]


@pytest.mark.parametrize("name", ["hgx", "pcie", "secure", "blackwell"])
def test_a_dry_run_left_the_bare_host_alone(lab_host, name):
    host = lab_host(name)
    for path in WRITTEN:
        assert not host.file(path).exists, path
    assert not host.package("dkms").is_installed
    assert host.check_output("apt-mark showhold") == ""
    # Neither lists nor packages were fetched into the host's own folders, nor was anything left behind elsewhere.
    assert host.check_output("find /var/lib/apt/lists /var/cache/apt/archives -type f ! -name lock") == ""
    assert host.check_output("find /tmp -name 'openfleet-*'") == ""
