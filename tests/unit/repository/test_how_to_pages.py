# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that how-to pages have tests, and name existing playbooks and variables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests import how_to
from tests.unit import yaml_files

REPOSITORY = Path(__file__).parents[3]
NAMES = sorted(path.name for path in how_to.PAGES.glob("*.md"))
#: Pages whose commands no test runs. Each has a sentence of the page that says so, or the reason.
NOT_FOLLOWED = {
    "audit-owners.md": "tests/audit runs the same playbook with these settings",
    "awx.md": "were not run in AWX or Semaphore.",
    "cloud-init.md": "was not run in a cloud.",
    "colocate.md": "tests of the limiter run these tenants",
    "find-waste.md": "the scenario audit runs these steps with its own settings",
    "import-mig-parted.md": "tests/integration/cli/test_without_gpus.py imports such files",
    "kubernetes-busy-node.md": "tests/kubernetes runs such changes on a node with pods",
    "kubernetes-first-cluster.md": "make demo KUBERNETES=1 runs steps 5 to 8",
    "kubernetes-gpu-operator.md": "tests/kubernetes adopts a node under the operator's controller",
}
SPECS = [*REPOSITORY.glob("roles/*/meta/argument_specs.yml"), REPOSITORY / "playbooks/vars/argument_specs.yml"]
VARIABLES = {
    name for path in SPECS for entry in yaml_files.read(path)["argument_specs"].values() for name in entry["options"]
}
OURS = re.compile(r"(?:gpu|nvidia|dcgm|vgpu|container_toolkit)_[a-z_]+")


def test_each_page_is_followed_by_a_test_or_says_that_it_is_not():
    tests = [*REPOSITORY.glob("tests/**/test_*.py"), *REPOSITORY.glob("molecule/**/test_*.py")]
    texts = [path.read_text(encoding="utf-8") for path in tests if path != Path(__file__).resolve()]
    followed = {name for name in NAMES if any(f'"{name}"' in text for text in texts)}
    assert followed.isdisjoint(NOT_FOLLOWED)
    assert followed | set(NOT_FOLLOWED) == set(NAMES)


@pytest.mark.parametrize("name", [name for name, reason in sorted(NOT_FOLLOWED.items()) if reason.endswith(".")])
def test_pages_that_no_test_follows_say_so(name):
    assert NOT_FOLLOWED[name] in (how_to.PAGES / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_pages_name_playbooks_and_variables_that_exist(name):
    commands = how_to.commands(name, "$") + how_to.commands(name, "#")
    playbooks = [found for command in commands for found in re.findall(r" openfleet\.gpu\.([a-z_]+)", command)]
    assert [each for each in playbooks if not (REPOSITORY / "playbooks" / f"{each}.yml").is_file()] == []
    set_by = [found for command in commands for found in re.findall(r"-e ([a-z_]+)=", command)]
    for block in how_to.blocks(name, "yaml"):
        data = yaml.safe_load(block)
        set_by += [key for key in data if OURS.fullmatch(key)] if isinstance(data, dict) else []
    unknown = set(set_by) - VARIABLES - {"gpu_hosts", "gpu_owners"}
    assert unknown == set()


@pytest.mark.parametrize("name", NAMES)
def test_pages_have_numbered_steps(name):
    text = (how_to.PAGES / name).read_text(encoding="utf-8")
    steps = [int(number) for number in re.findall(r"^(\d+)\. ", text, re.M)]
    # If a page has several tasks, it numbers the steps of each task.
    assert steps and steps[0] == 1
    assert all(step in (1, before + 1) for before, step in zip(steps, steps[1:]))
