# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the module mps on hosts that cannot run a daemon.

Either the driver is missing, or the GPUs allow only one process.
"""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.core, pytest.mark.host_python]


def absent(host, state, check=False):
    return host.module("mps", check=check, layout=[], state=state, state_directory=str(host.folder / "state.d"))


@pytest.mark.parametrize("check", [True, False])
def test_without_a_driver_daemons_can_only_be_removed(host, check):
    gone = absent(host, "absent", check)
    assert not gone.get("failed")
    assert (gone["driver_present"], gone["changed"], gone["plan"]) == (False, False, [])
    come = absent(host, "present", check)
    assert come.get("failed", False) is not check
    assert not check or (come["driver_present"] is False and come["msg"])


def test_gpus_in_a_container_have_no_daemons_of_the_host(host):
    host.create([{"model": "H100-80GB", "count": 1}])
    for state in ("present", "absent"):
        told = absent(host, state)
        assert (told["changed"], told["daemons"]) == (False, [])
    assert host.module("gpu_info")["mps_daemons"] == []
