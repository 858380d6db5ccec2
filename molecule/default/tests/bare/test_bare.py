# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""After a dry run on hosts where nothing is installed: nothing is installed."""

from __future__ import annotations

import pytest

INSTALLED = [
    "/etc/gpusim",
    "/etc/ld.so.conf.d/000-gpusim.conf",
    "/usr/local/bin/gpusim",
    "/usr/local/lib/gpusim",
    "/var/lib/gpusim",
]


@pytest.mark.parametrize("name", ["h100", "a100", "pro6000", "l40s"])
def test_a_dry_run_left_the_bare_host_alone(lab_host, name):
    host = lab_host(name)
    for path in INSTALLED:
        assert not host.file(path).exists, path
    # The distribution's own library answers, and finds no driver.
    assert host.run("nvidia-smi -L").rc != 0
