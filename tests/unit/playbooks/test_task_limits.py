# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that tasks which only read from hosts and clusters have a timeout.

With a timeout, a hanging task is reported, and other hosts continue.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted([*ROOT.glob("playbooks/*.yml"), *ROOT.glob("roles/*/tasks/*.yml")])
#: These modules call an API server. Those of kubernetes.core set no request timeout.
CLUSTER = ("kubernetes.core.", "openfleet.gpu.kubernetes_")
#: For each file, the tasks that query a host without changing it.
QUESTIONS = {
    "playbooks/audit.yml": ("openfleet.gpu.gpu_info", "ansible.builtin.raw"),
    "playbooks/rightsize.yml": ("openfleet.gpu.gpu_info",),
    "roles/gpu_layout/tasks/plan.yml": ("openfleet.gpu.layout",),
    "roles/gpu_layout/tasks/verify.yml": ("openfleet.gpu.layout",),
}


def tasks(items):
    """Yield all tasks of plays and blocks."""
    for item in items or ():
        yield item
        for name in ("tasks", "pre_tasks", "post_tasks", "block", "rescue", "always"):
            yield from tasks(item.get(name))


def of_modules(path: Path, modules) -> list[dict]:
    found = tasks(yaml.safe_load(path.read_text(encoding="utf-8")))
    return [task for task in found if any(key.startswith(tuple(modules)) for key in task)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_cluster_tasks_have_a_timeout(path):
    assert [task["name"] for task in of_modules(path, CLUSTER) if "timeout" not in task] == []


@pytest.mark.parametrize("path", QUESTIONS)
def test_reading_tasks_have_a_timeout(path):
    found = of_modules(ROOT / path, QUESTIONS[path])
    assert len(found) == len(QUESTIONS[path])
    assert [task["name"] for task in found if "timeout" not in task] == []


def test_every_task_of_the_plan_has_a_timeout():
    plays = yaml.safe_load((ROOT / "playbooks/site.yml").read_text(encoding="utf-8"))
    limits = {play["name"]: play.get("timeout") for play in plays}
    assert limits["Plan (every host, nothing changes)"] == 1800
    # If the controller stopped waiting for a change, the change would continue on the host without supervision.
    assert limits["Apply (in waves, a canary first)"] is None


#: Tasks that may loop, because they have few objects: the pods of one node, and the kinds of objects that one host
#: reads for the whole cluster.
LOOPING = {
    "restart.yml": ["Restart the plugin or driver on the node"],
    "cluster_compare.yml": ["Read the objects that the nodes share"],
}


@pytest.mark.parametrize("path", [file for file in FILES if "gpu_kubernetes" in file.parts], ids=lambda path: path.name)
def test_cluster_tasks_do_not_loop(path):
    """Handle all objects in one execution, because each execution takes seconds.

    A node has one pod of the plugin or driver.
    """
    looping = [task["name"] for task in of_modules(path, CLUSTER) if "loop" in task]
    assert looping == LOOPING.get(path.name, [])
