# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run parts of playbooks with --tags, --skip-tags and --start-at-task.

A part runs only with a plan. Otherwise the playbook refuses it with a message.
"""

from __future__ import annotations

import json
import sys

import pytest
import yaml

from tests.integration.simulated_fleet import Fleet
from tests.integration.simulated_host import ROOT
from tests.integration.warm_ansible import interpreter

LAYOUT = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}]
INSTANCES = [("3g.40gb", 0), ("3g.40gb", 4)]
ROLES = [
    *("gpu_simulator", "nvidia_driver", "container_toolkit", "vgpu_limiter", "gpu_kubernetes", "gpu_slurm"),
    "gpu_layout",
    *("dcgm_exporter", "gpu_monitoring", "gpu_audit"),
]


@pytest.fixture
def fleet(host, library, tmp_path):
    return Fleet(tmp_path, library, ["one"])


def text_of(run):
    return " ".join((run.stdout + run.stderr).split())


@pytest.mark.core
def test_tag_of_a_role_plans_and_applies_only_that_role(fleet, tmp_path):
    fleet.more["one"] = {"dcgm_exporter_state": "absent", "dcgm_exporter__root": str(tmp_path / "exporter")}
    run = fleet.play({"one": LAYOUT}, "--tags", "gpu_layout", waves=[1])
    assert run.returncode == 0, text_of(run)
    assert fleet.seen() == {"one": INSTANCES}
    assert "TASK [Check the variables of the inventory]" in run.stdout
    # The playbook plans the other role too, but does not run it.
    assert "TASK [Check the request for the exporter]" in run.stdout
    assert "TASK [Install or remove the exporter]" not in run.stdout
    assert "2 created" in text_of(run), text_of(run)


def test_role_is_skipped_by_its_tag(fleet, tmp_path):
    fleet.more["one"] = {"dcgm_exporter_state": "absent", "dcgm_exporter__root": str(tmp_path / "exporter")}
    run = fleet.play({"one": LAYOUT}, "--skip-tags", "dcgm_exporter", waves=[1])
    assert run.returncode == 0, text_of(run)
    assert fleet.seen() == {"one": INSTANCES}
    assert "TASK [Install or remove the exporter]" not in run.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tags", "mig"], "Unknown tag mig. The tags are gpu_simulator, nvidia_driver, container_toolkit,"),
        (["--skip-tags", "gpu_layuot"], "Unknown tag gpu_layuot. The tags are gpu_simulator,"),
        (["--tags", "untagged"], "Unknown tag untagged."),
        (
            ["--tags", "always"],
            "These tags select no role. For a plan without changes, use --check. Nothing was changed.",
        ),
        (["--tags", "gpu_layout", "--skip-tags", "gpu_layout"], "These tags select no role."),
        (["--tags", "nvidia_driver"], "The tag nvidia_driver selects nothing. No host has nvidia_driver_version or"),
        (
            ["--tags", "gpu_monitoring"],
            "The tag gpu_monitoring selects nothing. The group gpu_monitoring has no hosts.",
        ),
    ],
)
def test_tags_that_select_nothing_are_refused(fleet, arguments, message):
    run = fleet.play({"one": LAYOUT}, *arguments, waves=[1])
    assert run.returncode != 0
    assert message in text_of(run), text_of(run)
    assert fleet.seen() == {"one": []}


def test_tag_that_needs_another_role_is_refused(fleet, tmp_path):
    fleet.more["one"] = {
        "ansible_python_interpreter": str(interpreter(tmp_path / "python3")),
        "gpu_simulator_gpus": [{"model": "H100-80GB"}],
        "gpu_layout_expected_gpus": ["H100-80GB"],
    }
    run = fleet.play({"one": LAYOUT}, "--tags", "gpu_layout", waves=[1])
    assert run.returncode != 0
    message = (
        "one: The tag gpu_layout also needs the tag gpu_simulator: without the simulator, the host has no GPUs. "
        "Nothing was changed."
    )
    assert message in text_of(run), text_of(run)


@pytest.mark.core
@pytest.mark.parametrize(
    "arguments",
    [
        ["--start-at-task", "Prepare the Kubernetes node"],
        ["--start-at-task", "Apply the layout"],
        ["--start-at-task", "Install the boot service"],
        ["--skip-tags", "always"],
        ["--skip-tags", "always", "--tags", "gpu_layout"],
    ],
    ids=" ".join,
)
def test_hosts_are_not_changed_without_a_plan_of_the_same_run(fleet, arguments):
    run = fleet.play({"one": LAYOUT}, *arguments, waves=[1])
    assert run.returncode != 0, text_of(run)
    assert "one: this run has no plan for the host. Run site.yml without --start-at-task" in text_of(run), text_of(run)
    assert fleet.seen() == {"one": []}
    assert not (fleet.hosts["one"].folder / "root/etc/openfleet-gpu").exists()


@pytest.mark.parametrize("task", ["Print the plan of each host", "End hosts without a plan", "Plan the layout"])
def test_hosts_are_not_changed_by_a_run_that_starts_during_planning(fleet, task):
    run = fleet.play({"one": LAYOUT}, "--start-at-task", task, waves=[1])
    assert run.returncode != 0, text_of(run)
    assert fleet.seen() == {"one": []}
    assert not (fleet.hosts["one"].folder / "root/etc/openfleet-gpu").exists()


@pytest.mark.parametrize(
    ("group", "task"),
    [
        ("gpu_monitoring", "Install or remove the monitoring"),
        ("gpu_audit", "Install or remove the audit timer"),
    ],
)
@pytest.mark.parametrize("playbook", ["site.yml", "playbooks/reset.yml"])
def test_other_hosts_are_not_changed_without_a_check_of_the_same_run(fleet, tmp_path, playbook, group, task):
    if playbook != "site.yml":
        task = {
            "gpu_monitoring": "Remove rules, dashboards and scrape targets",
            "gpu_audit": "Remove the audit timer files",
        }[group]
    python = {"ansible_python_interpreter": sys.executable}
    variables = {"ansible_connection": "local", "ansible_become": False, **python}
    inventory = tmp_path / "other.yml"
    inventory.write_text(json.dumps({group: {"hosts": {"other": variables}}}))
    run = fleet.run(playbook, inventory, "--start-at-task", task)
    assert run.returncode != 0
    assert "other: this run did not check" in text_of(run), text_of(run)


@pytest.mark.parametrize("task", ["Remove the exporter", "Remove the vGPU limiter"])
def test_reset_removes_nothing_without_a_check_of_the_same_run(fleet, task):
    run = fleet.play({"one": LAYOUT}, "--start-at-task", task, playbook="playbooks/reset.yml")
    assert run.returncode != 0
    assert "one: this run did not check the variables of the host. Run reset.yml without --start-at-task" in text_of(
        run
    ), text_of(run)


@pytest.mark.parametrize("playbook", ["reset", "audit", "rightsize", "bundle", "export", "check_gpu", "accept"])
def test_tags_of_a_playbook_without_any_are_refused(fleet, playbook):
    for option in ("--tags", "--skip-tags"):
        run = fleet.play({"one": LAYOUT}, option, "gpu_layout", playbook=f"playbooks/{playbook}.yml")
        assert run.returncode != 0, text_of(run)
        assert "This playbook has no tags. Run it without --tags and --skip-tags. Nothing was changed." in text_of(
            run
        ), text_of(run)


def test_every_role_of_site_has_its_tag():
    plays = yaml.safe_load((ROOT / "playbooks" / "site.yml").read_text(encoding="utf-8"))
    assert plays[0]["vars"]["gpu_site__tags"] == ROLES
    for play in plays[1:]:
        if play.get("tags"):
            assert play["tags"] in ("always", "gpu_layout")
            continue
        tasks = [task for each in play["tasks"] for task in each.get("block", [each])]
        for task in tasks:
            role = task.get("ansible.builtin.include_role") or task.get("ansible.builtin.import_role")
            if role is None:
                assert task["tags"] == "always"
                continue
            tags = [role["name"].rpartition(".")[2]]
            assert task["tags"] == tags and tags[0] in ROLES
            assert "ansible.builtin.import_role" in task or role["apply"] == {"tags": tags}
