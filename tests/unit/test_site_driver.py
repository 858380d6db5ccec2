# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether site.yml brings the driver, by what its play "Plan" was told: the conditions of the playbook, evaluated by Ansible."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

ROOT = Path(__file__).resolve().parents[2]
RIGHT = {"needed": False, "drained": False, "reboot": ""}
ASKED = {"nvidia_driver_version": "580.105.08"}


def brings(**variables) -> bool:
    plays = yaml.safe_load((ROOT / "playbooks" / "site.yml").read_text())
    (apply,) = (play for play in plays if play["name"].startswith("Apply"))
    (task,) = (task for task in apply["tasks"] if task["name"] == "Bring the driver that the inventory asks for")
    templar = Templar(loader=DataLoader(), variables=variables)
    return all(templar.evaluate_conditional(trust_as_template(condition)) for condition in task["when"])


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
def test_it_does_where_the_plan_has_something_to_do(variables, expected):
    assert brings(**variables) is expected
