# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the role vgpu_limiter: defaults, documentation, and its place in playbooks."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.core

REPOSITORY = Path(__file__).parents[3]
ROLE = REPOSITORY / "roles" / "vgpu_limiter"


def test_the_roles_defaults_are_those_of_its_argument_specs():
    defaults = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
    specs = yaml.safe_load((ROLE / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    for entry_point in specs.values():
        assert {name: option["default"] for name, option in entry_point["options"].items()} == defaults


def test_readme_lists_every_variable():
    readme = (ROLE / "README.md").read_text()
    for name in yaml.safe_load((ROLE / "defaults" / "main.yml").read_text()):
        assert f"| `{name}` |" in readme


def test_controllers_build_includes_all_folders_of_the_source():
    """The cached build has a name computed from the source.

    A change in a missing folder would not cause a build.
    """
    folders = yaml.safe_load((ROLE / "vars" / "main.yml").read_text())["vgpu_limiter__folders"]
    assert set(folders) == {path.parent.name for path in (ROLE / "files/src").glob("*/*.c")}


def tasks(playbook):
    plays = yaml.safe_load((REPOSITORY / "playbooks" / playbook).read_text())
    for play in plays:
        for task in [inner for outer in play.get("tasks", []) for inner in outer.get("block", [outer])]:
            role = task.get("ansible.builtin.include_role") or task.get("ansible.builtin.import_role")
            if role:
                yield role["name"].rpartition(".")[2], role.get("tasks_from", "main"), task


def test_library_is_installed_before_and_removed_after_tenants():
    """A tenant without the library would run without a quota."""
    site = [(name, entry) for name, entry, _ in tasks("site.yml") if entry != "plan"]
    layout = site.index(("gpu_layout", "main"))
    assert [number > layout for number, (name, _) in enumerate(site) if name == "vgpu_limiter"] == [False, True]
    reset = [name for name, _, _ in tasks("reset.yml")]
    assert reset.index("gpu_layout") < reset.index("vgpu_limiter")
