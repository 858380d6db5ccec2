# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test roles that tags select, and roles that must run together with another role."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.plugin_utils.site import tags

SITE = yaml.safe_load((Path(__file__).resolve().parents[4] / "playbooks/site.yml").read_text(encoding="utf-8"))
#: The tags that site.yml knows.
ROLES = SITE[0]["vars"]["gpu_site__tags"]
#: These roles run on every GPU host, even if no variable requests them.
ALWAYS = {"gpu_layout"}
LAYOUT = {"driver_present": True, "counts": {"gpus_changed": 0}}
CHANGED = {"driver_present": True, "counts": {"gpus_changed": 1}}
ABSENT = {"driver_present": False}
PLAIN = {"simulated": False, "kubernetes": "", "tenants": []}
DRIVER = {"needed": True, "drained": False, "reboot": ""}


def tasks_of(items):
    """Yield the tasks of plays and blocks."""
    for item in items:
        yield item
        for part in ("tasks", "block"):
            yield from tasks_of(item.get(part, []))


@pytest.mark.parametrize(
    ("run", "skip", "selected"),
    [
        (["all"], [], set(ROLES)),
        (["tagged"], ["gpu_audit"], set(ROLES) - {"gpu_audit"}),
        (["gpu_layout", "always"], [], {"gpu_layout"}),
        (["always"], [], set()),
        (["all"], ["always"], set(ROLES)),
    ],
)
def test_selected_roles(run, skip, selected):
    assert tags.selected(ROLES, run, skip) == selected


def test_each_tag_has_variables_or_a_group_that_request_its_role():
    # For a role with neither variables nor a group, the tag is accepted even if no host uses the role.
    assert {*tags._ASKED_BY, *tags._GROUPS, *ALWAYS} == set(ROLES)


@pytest.mark.parametrize("role", tags._ASKED_BY)
def test_a_role_runs_if_a_host_has_a_variable_that_requests_it(role):
    tasks = [task for task in tasks_of(SITE) if role in task.get("tags", []) and "when" in task]
    conditions = " ".join(str(task["when"]) for task in tasks)
    assert tasks and all(name in conditions for name in tags._ASKED_BY[role])


@pytest.mark.parametrize(
    ("role", "variables", "accepted"),
    [
        ("dcgm_exporter", {}, False),
        ("dcgm_exporter", {"dcgm_exporter_source": "container"}, True),
        ("vgpu_limiter", {"gpu_layout": []}, False),
        ("vgpu_limiter", {"gpu_layout": "text"}, False),
        (
            "vgpu_limiter",
            {
                "gpu_layout": [
                    {
                        "gpus": [0],
                        "sharing": "vgpu",
                        "vgpu": {"tenants": [{"name": "a", "memory": "1GiB", "sm_percent": 30}]},
                    }
                ]
            },
            True,
        ),
        ("gpu_layout", {}, True),
    ],
)
def test_tag_is_refused_if_no_host_uses_its_role(role, variables, accepted):
    hostvars = {"one": {}, "two": variables}
    problem = tags.problem(ROLES, [role], [], {"gpu_hosts": ["one", "two"]}, hostvars)
    assert (problem == "") == accepted, problem


@pytest.mark.parametrize(
    ("roles", "layout", "driver", "inventory", "sentences"),
    [
        ({"gpu_layout"}, CHANGED, {}, {}, 0),
        ({"gpu_layout"}, CHANGED, DRIVER, {}, 1),
        ({"nvidia_driver"}, LAYOUT, DRIVER, {}, 1),
        ({"nvidia_driver", "gpu_layout"}, ABSENT, DRIVER, {}, 0),
        ({"dcgm_exporter"}, ABSENT, DRIVER, {"tenants": ["a"]}, 0),
        ({"gpu_layout"}, ABSENT, {}, {"simulated": True}, 1),
        ({"gpu_layout"}, LAYOUT, {}, {"simulated": True}, 0),
        ({"gpu_layout"}, CHANGED, {}, {"tenants": ["a"]}, 1),
        ({"gpu_layout", "vgpu_limiter"}, CHANGED, {}, {"tenants": ["a"]}, 0),
        ({"gpu_layout"}, LAYOUT, {}, {"tenants": ["a"]}, 0),
        ({"gpu_layout"}, CHANGED, {}, {"kubernetes": "nvidia_dra"}, 1),
        ({"gpu_kubernetes"}, CHANGED, {}, {"kubernetes": "nvidia_dra"}, 1),
        ({"gpu_kubernetes"}, LAYOUT, {}, {"kubernetes": "nvidia_dra"}, 0),
    ],
)
def test_roles_that_the_plan_of_a_host_needs_together(roles, layout, driver, inventory, sentences):
    lacking = tags.lacking(roles, {"layout": layout, "driver": driver}, {**PLAIN, **inventory})
    assert len(lacking) == sentences, lacking


@pytest.mark.parametrize("known", [ROLES, []])
def test_molecules_own_skipped_tags_refuse_no_run(known):
    groups = {"gpu_hosts": ["h1"]}
    assert (
        tags.problem(known, ["all"], ["molecule-notest", "notest", "molecule-idempotence-notest"], groups, None) == ""
    )
    assert tags.problem(known, ["all"], ["notest", "gpu_layuot"], groups, None) != ""
