# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan changes of Slurm's files on controllers and on the node."""

from __future__ import annotations

from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.slurm.answer import removal
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.slurm.places import places


def plan(host, **values):
    return {
        "item": host,
        "exist": True,
        "changed": False,
        "problems": [],
        "interrupted": False,
        "candidate": host,
        **values,
    }


def test_node_with_own_files_tests_these():
    found = places([plan("controller", changed=True), plan("node", notes=["a note"], restart=True)], "node")
    assert (found["write"], found["files"], found["candidate"]) == (["controller"], ["controller", "node"], "node")
    assert found["problems"] == [] and found["restart"] and found["notes"] == ["a note"]


def test_configless_node_tests_the_files_of_the_controller():
    found = places([plan("controller"), plan("node", exist=False, candidate=None)], "node")
    assert (found["files"], found["candidate"], found["problems"]) == (["controller"], "controller", [])


def test_problems_name_the_host():
    results = [
        {"item": "away", "unreachable": True, "msg": "no route"},
        {"item": "broken", "failed": True, "msg": "no Python"},
        plan("empty", exist=False),
        plan("controller", problems=["move a line"]),
        {**plan("liar"), "changed": "perhaps"},
    ]
    found = places(results, "node")
    away, broken, empty, controller, liar = found["problems"]
    assert away.startswith("away: no route Check that the host is on")
    assert broken == "broken: no Python"
    assert "gpu_slurm_directory" in empty and empty.startswith("empty: ")
    assert controller == "controller: move a line"
    assert liar.startswith("liar: ")


def test_removal_waits_for_all_gpu_jobs_and_keeps_other_gres():
    jobs = [{"id": "7", "gres": [{"name": "gpu", "count": 1, "numbers": [0]}]}]
    info = {"node": "gpu-a", "version": "22.05.8", "gres": "gpu:h100:4,nic:2", "gres_types": "gpu,nic", "jobs": jobs}
    found = removal({**info, "minors": [], "capabilities": []}, "one")
    assert found["gres"] == "nic:2" and found["restart"]
    assert (found["change"]["way"], found["change"]["jobs"]) == ("all jobs", ["7"])
    none = removal({**info, "gres": "nic:2", "jobs": [], "minors": [], "capabilities": []}, "one")
    assert none["change"]["way"] == "nothing"
