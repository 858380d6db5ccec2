# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that each GPU is shared as in the inventory after site.yml.

The state must be the same after a host restart.
"""

from __future__ import annotations

import json

import pytest
from sharing_hosts import GIB

from tests.lab.lab_fixtures import reboot

INSTANCES = {"mig": True, "instances": ["1g.10gb", "1g.10gb", "3g.40gb"], "compute_mode": None, "time_slice": "Default"}
WHOLE = {"mig": False, "instances": [], "time_slice": "Default"}


def check_hopper(host):
    first = host.gpu(0)
    assert sorted(first.pop("instances")) == INSTANCES["instances"]
    assert first == {key: value for key, value in INSTANCES.items() if key != "instances"}
    assert host.gpu(1) == dict(WHOLE, compute_mode="Exclusive_Process")
    daemons = host.daemons()
    assert set(daemons) == {"small", "inference"}
    assert daemons["small"].devices == [host.device(0, "3g.40gb")]
    assert daemons["small"].percentage == 50
    assert daemons["inference"].devices == [host.device(1)]
    assert daemons["inference"].percentage == 25
    # The daemon chooses the unit of its response. The limit is 18 GiB.
    assert daemons["inference"].limits == ["18G"] or str(18 * GIB) in daemons["inference"].limits[0]


def test_mps_on_a_gpu_and_in_an_instance(hopper):
    check_hopper(hopper)


def test_time_slicing_and_shared(ada):
    assert ada.gpu(0) == dict(WHOLE, compute_mode="Default", time_slice="Long")
    assert ada.gpu(1) == dict(WHOLE, compute_mode="Default")
    assert ada.daemons() == {}


def test_everything_is_restored_after_a_reboot(hopper):
    reboot(hopper.host)
    assert hopper.host.service("gpu-layout.service").is_running
    check_hopper(hopper)


def test_time_slices_are_restored_after_a_reboot(ada):
    reboot(ada.host)
    assert ada.time_slices() == ["Long", "Default"]


def test_command_shows_the_daemons(hopper, ada):
    shown = hopper.ask("gpu-layout show")
    assert "mps inference  gpu 1  4 clients of 25 % and 18GiB  no clients" in shown
    assert "mps small  3g.40gb@" in shown
    told = json.loads(hopper.ask("gpu-layout show --json"))["mps_daemons"]
    assert [(seen["daemon"]["name"], seen["running"], seen["problem"]) for seen in told] == [
        ("inference", True, None),
        ("small", True, None),
    ]
    assert "gpu 0  NVIDIA L40S" in ada.ask("gpu-layout show")
    assert "time slice long" in ada.ask("gpu-layout show")


@pytest.mark.parametrize("name", ["hopper", "ada"])
def test_applying_the_export_changes_nothing(sharing, name):
    host = sharing(name)
    exported = json.loads(host.ask("gpu-layout export --json"))
    assert exported["left_out"] == []
    assert {entry["sharing"] for entry in exported["gpu_layout"]} == (
        {"mig", "mps"} if name == "hopper" else {"time_slicing", "shared"}
    )
    assert host.nothing_to_do(*exported["gpu_layout"])
