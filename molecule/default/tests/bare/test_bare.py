# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that a dry run on bare hosts predicts changes and installs nothing.

Each role's own scenario also has a dry run on a bare host.
"""

from __future__ import annotations

import pytest

from tests.lab.lab_fixtures import HOSTS

INSTALLED = [
    "/etc/gpusim",
    "/etc/ld.so.conf.d/000-gpusim.conf",
    "/usr/local/bin/gpusim",
    "/usr/local/lib/gpusim",
    "/var/lib/gpusim",
]


def is_bare(host) -> bool:
    # The distribution's library responds, and finds no driver.
    return not any(host.file(path).exists for path in INSTALLED) and host.run("nvidia-smi -L").rc != 0


@pytest.mark.parametrize("name", HOSTS)
def test_host_starts_without_gpu_software(lab_host, name):
    assert is_bare(lab_host(name))


@pytest.fixture(scope="module")
def foretold(play_site):
    """Run site.yml in check mode."""
    return play_site("check-bare.json", "--check", "--limit", ",".join(HOSTS))


@pytest.mark.thorough
def test_dry_run_predicts_changes_of_every_host(foretold):
    assert sorted(foretold.hosts) == HOSTS
    assert {change.host for change in foretold.changes} == set(HOSTS)


@pytest.mark.thorough
@pytest.mark.parametrize("name", HOSTS)
def test_dry_run_does_not_change_the_bare_host(foretold, lab_host, name):
    assert is_bare(lab_host(name))
