# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that the plan of site.yml collects each error.

A mistake of many hosts is then printed once.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.callback.fleet_summary import Summary
from ansible_collections.openfleet.gpu.plugins.plugin_utils.site.losses import losses

ROOT = Path(__file__).resolve().parents[3]
SITE = yaml.safe_load((ROOT / "playbooks/site.yml").read_text(encoding="utf-8"))
PLAN = next(play for play in SITE if play["name"].startswith("Plan (every host"))
# Modules that only read. They fail only if a host or a cluster fails.
READERS = {"gpu_info", "slurm_info", "kubernetes_eviction", "kubernetes_objects", "kubelet_info"}
FAILING = ("ansible.builtin.assert", "ansible.builtin.fail")
# Files that fail on purpose: checks of the controller run once, and host_error.yml fails hosts of other plays.
ENDS = ("facts.yml", "host_error.yml")


def included(task, folder):
    """Yield the task files that a task includes."""
    for kind in ("include_tasks", "import_tasks"):
        name = task.get("ansible.builtin." + kind)
        if name:
            path = ROOT / "roles/x" / name.partition("}}/")[2] if "role_path" in name else folder / name
            yield (folder / path).resolve() if path.is_relative_to(folder) else path.resolve()
    for kind in ("include_role", "import_role"):
        role = task.get("ansible.builtin." + kind)
        if role:
            tasks = ROOT / "roles" / role["name"].rpartition(".")[2] / "tasks"
            yield tasks / ("%s.yml" % role.get("tasks_from", "main"))


def tasks_of(items, folder, seen):
    """Yield each task that the items reach, with its file."""
    for task in items or ():
        yield task
        for part in ("block", "rescue", "always"):
            yield from tasks_of(task.get(part), folder, seen)
        for path in included(task, folder):
            if "{{" in str(path) or path.name in ENDS or path in seen:
                continue
            seen.add(path)
            yield from tasks_of(yaml.safe_load(path.read_text(encoding="utf-8")), path.parent, seen)


def changes_hosts(path):
    """Return whether the plan never includes this file.

    The file's tasks run only when hosts change.
    """
    return path in {ROOT / "roles/nvidia_driver/tasks/change.yml", ROOT / "roles/vgpu_limiter/tasks/compiler.yml"}


def plan():
    """Return the tasks of the plan, and the files that contain them."""
    seen = {path for path in ROOT.glob("roles/*/tasks/*.yml") if changes_hosts(path)}
    before = set(seen)
    return list(tasks_of(PLAN["tasks"], ROOT / "playbooks", seen)), seen - before


def planners():
    """Return modules of the plan that can fail because of the inventory."""
    names = {name.rpartition(".")[2] for task in plan()[0] for name in task if name.startswith("openfleet.gpu.")}
    return sorted(names - READERS)


def test_the_walk_reaches_the_tasks_of_every_role_in_the_plan():
    reached = {path.parts[-3] for path in plan()[1] if "roles" in path.parts}
    # playbooks/tasks/reloads.yml includes the role container_toolkit.
    included_roles = set(re.findall(r"'name': 'openfleet\.gpu\.(\w+)'", str(PLAN)))
    assert included_roles | {"container_toolkit"} == reached
    assert {"layout", "driver", "dcgm_exporter"} <= set(planners())


def test_no_check_of_the_plan_fails_by_itself():
    assert [task["name"] for task in plan()[0] if any(name in task for name in FAILING)] == []


@pytest.mark.parametrize("module", planners())
def test_an_error_of_a_module_is_collected(module):
    tasks = [task for task in plan()[0] if "openfleet.gpu." + module in task]
    assert tasks
    for task in tasks:
        expected = "%s is failed and not gpu_site__collect_errors | default(false)" % task["register"]
        assert task["failed_when"] in (expected, False), task["name"]


def test_every_collected_error_is_given_to_the_shared_tasks():
    tasks = [task for task in plan()[0] if "host_error.yml" in str(task.get("ansible.builtin.include_tasks"))]
    assert len(tasks) > 10
    assert [task["name"] for task in tasks if "gpu_site__error" not in task["vars"] or "when" not in task] == []


def test_only_the_plan_collects_errors():
    files = [path for folder in ("playbooks", "roles") for path in (ROOT / folder).rglob("*.yml")]
    setters = [path for path in files if re.search(r"gpu_site__collect_errors:", _text(path))]
    assert setters == [ROOT / "playbooks/site.yml"]
    assert [play["name"] for play in SITE if "gpu_site__collect_errors" in play.get("vars", {})] == [PLAN["name"]]


def _text(path):
    hidden = any(part.startswith(".") for part in path.relative_to(ROOT).parts) or "collections" in path.parts
    return "" if hidden or not path.is_file() else path.read_text(encoding="utf-8")


def test_the_text_of_a_check_is_an_error_of_the_inventory():
    # The text may quote the inventory, so it is never a sign of the host's own fault.
    message = "%s: nvidia_driver_repository_url: Missing sudo password."
    found = losses(["a", "b", "c"], ["c"], {host: message % host for host in "ab"}, 2)
    assert found.errors == ["a, b: nvidia_driver_repository_url: Missing sudo password."]
    assert found.left_out["a"] == "nvidia_driver_repository_url: Missing sudo password."
    assert "Correct the errors above" in found.refusal


def test_a_collected_host_fault_can_be_tolerated():
    result = {"failed": False, "failed_when_result": False, "host_fault": True, "msg": "a: gpu 3 is lost."}
    found = losses(["a", "b"], ["b"], {"a": result}, 1)
    assert found.refusal == "" and found.errors == ["a: gpu 3 is lost."]


def test_the_summary_has_the_reason_of_a_collected_error():
    summary = Summary(check_mode=False)
    summary.recorded("a", "a: it is wrong")
    summary.recorded("b", {"msg": "b: it is wrong"})
    summary.failed("c", "c: seen before")
    summary.recorded("c", "c: it is wrong")
    summary.recorded("d", None)
    for host in "abc":
        summary.failed(host, "no plan (its error is above)")
    assert summary.failures(list("abc")) == ["a, b: it is wrong", "c: seen before"]
    assert summary.reasons.keys() == set("abc")
