# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read DNF's change table and locks, and choose a package manager.

molecule/rpm runs the real DNF.
"""

from __future__ import annotations

import subprocess

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.packages import dnf, dnf_changes
from ansible_collections.openfleet.gpu.plugins.module_utils.packages.family import package_manager
from ansible_collections.openfleet.gpu.plugins.module_utils.packages.model import Owner

pytestmark = pytest.mark.core

# DNF 4.14 prints this if its output is no terminal.
TABLE = """Last metadata expiration check: 0:00:05 ago on Sat Nov 28 03:45:36 2026.
Dependencies resolved.
================================================================================
 Package                     Arch       Version                 Repo       Size
================================================================================
Installing:
 nvidia-container-toolkit-base-with-a-long-name
                             x86_64     1.18.2-1                t         7.7 k
     replacing  nvidia-docker2.noarch 2.14.0-1
Upgrading:
 libnvidia-ml                x86_64     3:590.48.01-1.el9       t         795 k
Installing dependencies:
 dkms                        x86_64     3.0.13-1.el9            base      6.2 k
Downgrading:
 nvidia-persistenced         x86_64     3:580.95.05-1.el9
                                                   openfleet-nvidia-driver-asked
                                                                          7.3 k
Removing dependent packages:
 site-gpu-tools              x86_64     1.0-1.el9               @base       0
Enabling module streams:
 nvidia-driver                          580-dkms

Transaction Summary
================================================================================
Upgrade  6 Packages
Operation aborted.
"""


def test_a_change_is_read_from_the_table_of_dnf():
    assert dnf_changes.table(TABLE) == [
        ("install", "nvidia-container-toolkit-base-with-a-long-name", "1.18.2-1"),
        ("remove", "nvidia-docker2", "2.14.0-1"),
        ("install", "libnvidia-ml", "590.48.01-1.el9"),
        ("install", "dkms", "3.0.13-1.el9"),
        ("install", "nvidia-persistenced", "580.95.05-1.el9"),
        ("remove", "site-gpu-tools", "1.0-1.el9"),
    ]


def test_dnf_is_retried_while_another_one_runs(monkeypatch):
    monkeypatch.setattr(dnf_changes.time, "sleep", lambda seconds: None)
    statuses = [200, 200, 0]
    commands = []

    def call(command):
        commands.append(command)
        return subprocess.CompletedProcess(command, statuses.pop(0), "", "RPMDB already locked by 7\n")

    manager = dnf.Dnf(Owner("nvidia_driver", "openfleet-nvidia-driver", "the driver", "nvidia"), call)
    assert manager.change("install", "x") == ""
    assert len(commands) == 3
    assert "--setopt=exit_on_lock=True" in commands[0]


@pytest.mark.parametrize(
    ("release", "manager"),
    [
        ('ID="rhel"\nVERSION_ID="9.6"\n', "dnf"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "dnf"),
        ("ID=debian\n", "apt"),
        ("ID=linuxmint\nID_LIKE=ubuntu\n", "apt"),
    ],
)
def test_distribution_determines_the_package_manager(tmp_path, monkeypatch, release, manager):
    """Ignore installed programs, because EPEL has apt, and Debian has dnf."""
    monkeypatch.setattr(
        "ansible_collections.openfleet.gpu.plugins.module_utils.packages.family.program", lambda name: name
    )
    path = tmp_path / "os-release"
    path.write_text(release)
    assert package_manager(str(path)) == manager


LOCKS = (
    "# Added lock\nlibnvidia-ml-3:580.95.05-1.el9.*\nlibcuda-3:580.95.05-1.el9.*\nlibcuda-3:590.48.01-1.el9.*\n"
    "kernel-0:5.14.0-570.*\nnvlsm-0:2025.*-1.*\n"
)


@pytest.mark.parametrize(
    ("name", "version", "held"),
    [
        ("libnvidia-ml", "580.95.05-1.el9", True),
        # A DNF process was killed before it removed the versionlock entry of the old version.
        ("libnvidia-ml", "580.105.08-1.el9", False),
        ("libnvidia", "580.95.05-1.el9", False),
        # The lock names another version, so DNF could change this package to that version.
        ("libcuda", "580.95.05-1.el9", False),
        ("nvlsm", "2025.06.11-1", True),
        ("bash", "5.1.8-9.el9", False),
    ],
)
def test_a_lock_counts_for_the_version_that_it_names(name, version, held):
    assert dnf.is_held(name, version, LOCKS) is held
