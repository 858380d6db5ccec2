# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the output of site.yml after the plans, and for an inventory without hosts."""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.site.groups import misspelt
from ansible_collections.openfleet.gpu.plugins.plugin_utils.site.plans import plans

UUIDS = ["GPU-5c89d3fa-0000-4000-8000-000000000001", "GPU-5c89d3fb-0000-4000-8000-000000000002"]
GROUPS = ["gpu_hosts", "gpu_monitoring", "gpu_audit"]


def result(*lines, changed=1):
    """Return a module result. A line about a GPU is given as (index, text)."""
    told = [
        {"text": line} if isinstance(line, str) else {"index": line[0], "uuid": UUIDS[line[0]], "text": line[1]}
        for line in lines
    ]
    return {"driver_present": True, "plan_lines": told, "counts": {"gpus_changed": changed}}


def test_each_host_has_its_lines_with_uuids():
    changes = result((0, "enable MIG mode"), (1, "nothing to do"), "mps a: start (2 clients) on gpu 1")
    assert plans({"one": changes, "two": result((0, "keep 7g.80gb@0"), changed=0)}) == {
        "one": [
            "gpu 0 (GPU-5c89d3fa): enable MIG mode",
            "gpu 1 (GPU-5c89d3fb): nothing to do",
            "mps a: start (2 clients) on gpu 1",
        ],
        "nothing to do": "two",
    }


def test_changed_daemon_or_tenant_is_a_change():
    assert list(plans({"one": result("vgpu a: remove", changed=0)})) == ["one"]


def test_gpu_that_lost_its_entry_is_named_without_a_change():
    same = result((0, "keep 7g.80gb@0"), (1, "unmanaged, without an entry: keeps exclusive"), changed=0)
    same["plan_lines"][1]["unmanaged"] = True
    assert plans({"one": same}) == {"one": ["gpu 1 (GPU-5c89d3fb): unmanaged, without an entry: keeps exclusive"]}


def test_fleet_without_changes_is_one_line():
    same = result((0, "keep 7g.80gb@0"), changed=0)
    found = plans({"h%d" % number: same for number in range(1000)})
    assert list(found) == ["nothing to do"]
    assert found["nothing to do"].startswith("h0, h1, ") and found["nothing to do"].endswith("h19, 980 more")


def test_blocking_holders_are_named():
    held = {"what": "gpu 1 (GPU-5c89d3fb): 1g.10gb@4 (1 process)", "who": ["pid 7 (python3 train.py)", "pid 8"]}
    tenant = {"what": "vgpu a", "who": ["pid 9"]}
    # Only a daemon and a tenant change here, so no GPU counts as changed.
    busy = dict(result((1, "nothing to do"), changed=0), busy=[held, tenant])
    assert plans({"one": busy}) == {
        "one": [
            "gpu 1 (GPU-5c89d3fb): nothing to do",
            "blocking: gpu 1 (GPU-5c89d3fb): 1g.10gb@4 (1 process) is in use by pid 7 (python3 train.py), pid 8",
            "blocking: vgpu a is in use by pid 9",
        ]
    }


def test_many_blocking_holders_are_shortened():
    held = [{"what": "gpu 0 (GPU-5c89d3fa): 1g.10gb@%d" % number, "who": ["pid 7"] * 25} for number in range(23)]
    found = plans({"one": dict(result((0, "disable MIG mode")), busy=held)})["one"]
    assert len(found) == 22
    assert found[-2].startswith("blocking: gpu 0 (GPU-5c89d3fa): 1g.10gb@19 ") and found[-1] == "blocking: 3 more"
    assert found[1].count("pid 7") == 20 and found[1].endswith(", 5 more")
    # If a list is longer, only its first elements are read.
    crowd = [{"what": "gpu 0: 7g.80gb@0", "who": ["pid 7"] * 5000}] * 5000
    found = plans({"one": dict(result((0, "disable MIG mode")), busy=crowd)})["one"]
    assert found[1].endswith(", at least 180 more") and found[-1] == "blocking: at least 180 more"
    assert len(str(found)) < 10000


@pytest.mark.parametrize("busy", ["all", [{"what": "gpu 0"}], [["gpu 0", "pid 7"]]])
def test_invalid_list_of_blocking_holders_is_refused(busy):
    found = plans({"bad": dict(result((0, "disable MIG mode")), busy=busy)})
    assert "bad: busy" in found["bad"][0] and "the host sent" in found["bad"][0]


@pytest.mark.parametrize(
    ("forecast", "lines"),
    [
        (
            {"checked": True, "plan": ["gpu 0: enable MIG mode"]},
            ["(no NVIDIA driver yet; checked against the model catalogue)", "gpu 0: enable MIG mode"],
        ),
        ({"checked": False, "plan": []}, ["(no NVIDIA driver yet)", "No driver."]),
        (None, ["(no NVIDIA driver yet)", "No driver."]),
    ],
)
def test_host_without_a_driver_has_its_forecast(forecast, lines):
    assert plans({"new": {"driver_present": False, "msg": "No driver.", "forecast": forecast}}) == {"new": lines}


def test_texts_of_a_host_cannot_control_the_terminal_or_hide_other_plans():
    bad = result((0, "\x1b[31mred"))
    worse = dict(bad, plan_lines=[{"index": 0, "uuid": "{{ 1 }}", "text": "enable MIG mode"}])
    found = plans({"bad": bad, "worse": worse, "good": result((0, "enable MIG mode"))})
    assert "\x1b" not in str(found)
    assert "worse: plan_lines[0].uuid: the host sent" in found["worse"][0]
    assert found["good"] == ["gpu 0 (GPU-5c89d3fa): enable MIG mode"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpu_host", "gpu_hosts"),
        ("gpu-hosts", "gpu_hosts"),
        ("GPU_Hosts", "gpu_hosts"),
        ("gpus_hosts", "gpu_hosts"),
        ("gpu_monitor", "gpu_monitoring"),
        ("gpu_audits", "gpu_audit"),
    ],
)
def test_misspelt_group_is_named_with_a_suggestion(name, meant):
    expected = "The inventory has the group %s: did you mean %s?" % (name, meant)
    assert misspelt({"all": ["a"], "ungrouped": [], name: ["a"]}, GROUPS) == expected


def test_other_groups_are_no_misspelt_ones():
    assert misspelt({"all": ["a"], "web": ["a"], "gpu_h100": ["a"], "gpu_hosts": ["a"], "gpu_host": []}, GROUPS) == ""
