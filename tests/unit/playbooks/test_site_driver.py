# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evaluate with Ansible the conditions under which site.yml installs the driver."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

ROOT = Path(__file__).resolve().parents[3]
RIGHT = {"needed": False, "drained": False, "reboot": ""}
IN_USE = {"disruptive": True, "loaded_version": "580.95.05"}
ASKED = {"nvidia_driver_version": "580.105.08"}


def brings(**variables) -> bool:
    plays = yaml.safe_load((ROOT / "playbooks" / "site.yml").read_text())
    (apply,) = (play for play in plays if play["name"].startswith("Apply"))
    (task,) = (task for task in apply["tasks"][0]["block"] if task["name"] == "Install or remove the driver")
    return holds(task["when"], variables)


def holds(conditions: list[str], variables: dict) -> bool:
    templar = Templar(loader=DataLoader(), variables=variables)
    return all(templar.evaluate_conditional(trust_as_template(condition)) for condition in conditions)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (ASKED, True),
        ({**ASKED, "nvidia_driver_plan": RIGHT}, False),
        ({**ASKED, "nvidia_driver_plan": {**RIGHT, "needed": True}}, True),
        ({**ASKED, "nvidia_driver_plan": {**RIGHT, "drained": True}}, True),
        ({**ASKED, "nvidia_driver_plan": {**RIGHT, "reboot": "the old module is loaded"}}, True),
        ({"nvidia_driver_state": "absent", "nvidia_driver_plan": {**RIGHT, "needed": True}}, True),
        ({"nvidia_driver_plan": {**RIGHT, "needed": True}}, False),
        ({}, False),
    ],
)
def test_driver_is_installed_if_the_plan_has_steps(variables, expected):
    assert brings(**variables) is expected


@pytest.mark.parametrize("plan", [{"disruptive": False}, {"loaded_version": ""}, {"needed": False}])
def test_workloads_are_searched_only_if_a_loaded_driver_changes(plan):
    tasks = yaml.safe_load((ROOT / "roles" / "nvidia_driver" / "tasks" / "driver.yml").read_text())
    (finding,) = (task for task in tasks if "openfleet.gpu.driver_workloads" in task)
    assert holds(finding["when"], {"nvidia_driver_plan": {"needed": True, **IN_USE}})
    assert not holds(finding["when"], {"nvidia_driver_plan": {"needed": True, **IN_USE, **plan}})


@pytest.mark.parametrize(("needed", "drained", "reboot"), [*product([False, True], [False, True], ["", "it is due"])])
def test_driver_role_runs_if_it_would_change_or_report_something(needed, drained, reboot):
    """The conditions are the role's own, so the playbook cannot miss a new one."""
    planning, checking, finding, refusing, *acting = yaml.safe_load(
        (ROOT / "roles" / "nvidia_driver" / "tasks" / "driver.yml").read_text()
    )
    assert planning["register"] == "nvidia_driver_plan" and len(acting) == 2
    variables = {
        **ASKED,
        "nvidia_driver_plan": {"needed": needed, "drained": drained, "reboot": reboot, **IN_USE},
        "nvidia_driver_reboot": "later",
        "nvidia_driver__only_plan": False,
        "ansible_check_mode": False,
    }
    # With a plan and without blocking workloads, these checks do not stop the role.
    assert not holds([checking["when"]], variables)
    assert not holds([refusing["when"]], {"nvidia_driver_workloads": {"skipped": True, "changed": False}})
    # If only a reboot is pending, the role does not change the driver again.
    assert holds(finding["when"], variables) is needed
    assert brings(**variables) is any(holds(task["when"], variables) for task in acting)
