# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Set every variable of every playbook to a wrong value.

The errors name the variables, and nothing changes.
"""

from __future__ import annotations

import re

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.plugin_utils.variables import known
from tests.integration.simulated_fleet import Fleet
from tests.integration.simulated_host import ROOT
from tests.unit.wrong_values import wrong_values

LAYOUT = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}]
LOCAL = {"ansible_connection": "local", "ansible_become": False}


@pytest.fixture
def fleet(host, library, tmp_path):
    return Fleet(tmp_path, library, ["one", "two"])


def owners_checked(playbook):
    """Return the roles and playbooks whose variables the playbook checks.

    The result is in the order of the plays.
    """
    found = {}
    for play in yaml.safe_load((ROOT / "playbooks" / playbook).read_text(encoding="utf-8")):
        tasks = [*play.get("tasks", [])]
        for task in tasks:
            tasks += task.get("block", [])
            if "of" in task.get("openfleet.gpu.check_variables", {}):
                found[play["name"]] = task["openfleet.gpu.check_variables"]["of"]
    return found


def wrong(owners):
    """Return a wrong value for each variable, by name.

    The function does not use None, which means a missing variable. This is another error.
    """
    names = sorted({name for owner in owners for name in known.of_owner(owner)})
    return {name: next(value for value in wrong_values(name) if value is not None) for name in names}


def files(fleet):
    """Return the modification times of all of the hosts' and the controller's files.

    Leave out the inventory, the interpreters and the simulator's state.
    """
    others = {fleet.folder / "hosts.yml"}
    for host in fleet.hosts.values():
        others |= {host.bin / "python3", host.folder / "state"}
    return {path: path.stat().st_mtime_ns for path in fleet.folder.rglob("*") if path.is_file() and path not in others}


def assert_refused(run, names, host):
    said = " ".join((run.stdout + run.stderr).split())
    assert run.returncode != 0
    assert [name for name in names if not re.search(rf"{host}: {name}\b", said)] == []
    assert "Traceback" not in said and "Nothing was changed." in said
    return said


# Only the group's last host has wrong variables.
@pytest.mark.parametrize(
    ("playbook", "play"),
    [
        ("site.yml", "Check the variables (contacts no host)"),
        ("reset.yml", "Remove everything the collection installed"),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in [
                ("rightsize.yml", "Read GPUs and holders from the hosts"),
                ("bundle.yml", "Build the bundle for an air-gapped site"),
                ("check_gpu.yml", "Check GPUs"),
                ("accept.yml", "Accept GPU hosts"),
                ("export.yml", "Export the current layout"),
            ]
        ),
    ],
    ids=lambda value: value if value.endswith(".yml") else "",
)
def test_wrong_variables_of_gpu_hosts(fleet, playbook, play):
    variables = wrong(owners_checked(playbook)[play])
    fleet.more["two"] = dict(variables)
    before = files(fleet)
    run = fleet.play(dict.fromkeys(fleet.hosts, LAYOUT), waves=[1], playbook=f"playbooks/{playbook}")
    # A reset does not read the layout, because an invalid layout may be the reason for the reset.
    read = variables.pop("gpu_layout", None) if playbook == "reset.yml" else None
    said = assert_refused(run, variables, "two")
    assert read is None or "two: gpu_layout:" not in said
    # No task after the check ran on any host.
    assert re.findall(r"^TASK \[(.*?)\]", run.stdout, flags=re.MULTILINE)[-1].startswith("Check the variables")
    assert fleet.seen() == {"one": [], "two": []}
    assert files(fleet) == before


@pytest.mark.core
def test_equal_errors_of_many_hosts_are_one_message(host, library, tmp_path):
    fleet = Fleet(tmp_path, library, ["one"])
    names = ["one", *("h%02d" % number for number in range(40))]
    common = {**LOCAL, "gpu_layout": LAYOUT, "gpu_layout_on_busy": "drian", "gpu_layouts": []}
    inventory = tmp_path / "many.yml"
    inventory.write_text(yaml.safe_dump({"gpu_hosts": {"hosts": {name: {} for name in names}, "vars": common}}))
    run = fleet.run("site.yml", inventory)
    assert run.returncode != 0
    said = " ".join((run.stdout + run.stderr).split())
    message = 'h00, h01, h02, h03, h04 and 36 more hosts: gpu_layout_on_busy: unknown value "drian"'
    # ansible-core may print the message as an error and as a result.
    assert 1 <= said.count(message) <= 2 and said.count('unknown value "drian"') == said.count(message), said
    assert said.count("gpu_layouts: unknown variable, ignored") == 1
    # Ansible itself prints one or two lines for each host.
    assert len(run.stdout.splitlines()) < 4 * len(names)


@pytest.mark.thorough
@pytest.mark.parametrize("playbook", ["site.yml", "reset.yml"])
@pytest.mark.parametrize("group", ["gpu_monitoring", "gpu_audit"])
def test_wrong_variables_of_other_groups(fleet, playbook, group):
    assert [group] in owners_checked(playbook).values()
    variables = wrong([group])
    fleet.groups[group] = {"hosts": {"other": {**LOCAL, **variables}}}
    before = files(fleet)
    run = fleet.play(dict.fromkeys(fleet.hosts, LAYOUT), waves=[1], playbook=f"playbooks/{playbook}")
    said = assert_refused(run, variables, "other")
    assert "Apply gpu_layout" not in said and "Apply the layout" not in said and "Take " not in said
    assert fleet.seen() == {"one": [], "two": []}
    assert files(fleet) == before


@pytest.mark.thorough
@pytest.mark.parametrize(("playbook", "play"), [("audit.yml", "Audit"), ("rightsize.yml", "Propose")])
def test_wrong_variables_of_the_controller(fleet, playbook, play):
    """Check the controller's variables before the playbook changes anything.

    At this point, the playbook has already read the hosts.
    """
    variables = wrong(owners_checked(playbook)[play])
    fleet.groups["control"] = {"hosts": {"localhost": {**LOCAL, **variables}}}
    before = files(fleet)
    run = fleet.play(dict.fromkeys(fleet.hosts, LAYOUT), playbook=f"playbooks/{playbook}")
    assert_refused(run, variables, "localhost")
    assert fleet.seen() == {"one": [], "two": []}
    assert files(fleet) == before
