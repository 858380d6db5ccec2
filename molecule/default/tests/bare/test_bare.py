# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A dry run on hosts where nothing is installed foretells what it would do, and installs nothing."""

from __future__ import annotations

import pytest
from lab_fixtures import HOSTS
from thorough import THOROUGH

BARE = HOSTS if THOROUGH else ["h100"]

INSTALLED = [
    "/etc/gpusim",
    "/etc/ld.so.conf.d/000-gpusim.conf",
    "/usr/local/bin/gpusim",
    "/usr/local/lib/gpusim",
    "/var/lib/gpusim",
]


@pytest.fixture(scope="module")
def foretold(play_site):
    """The dry run. All tests come after it."""
    return play_site("check-bare.json", "--check", "--limit", ",".join(BARE))


def test_the_dry_run_foretells_changes_of_every_host(foretold):
    assert sorted(foretold.hosts) == BARE
    assert {change.host for change in foretold.changes} == set(BARE)


@pytest.mark.parametrize("name", BARE)
def test_a_dry_run_left_the_bare_host_alone(foretold, lab_host, name):
    host = lab_host(name)
    for path in INSTALLED:
        assert not host.file(path).exists, path
    # The distribution's own library answers, and finds no driver.
    assert host.run("nvidia-smi -L").rc != 0
