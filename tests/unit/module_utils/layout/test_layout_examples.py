# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check layouts in documents and inventories with the parser, schema and models."""

from __future__ import annotations

import json
import re
from configparser import ConfigParser
from pathlib import Path
from textwrap import dedent

import jsonschema
import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.filter.plan_without_driver import plan_without_driver
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import LayoutError
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import SHARINGS, parse_layout
from tests.unit import yaml_files

REPOSITORY = Path(__file__).parents[4]
VALIDATOR = jsonschema.Draft202012Validator(
    json.loads((REPOSITORY / "docs" / "gpu_layout.schema.json").read_text(encoding="utf-8"))
)
EXAMPLE = REPOSITORY / "inventories" / "example"
REFERENCE = (REPOSITORY / "docs" / "gpu_layout.md").read_text(encoding="utf-8")
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
SITE = (REPOSITORY / "docs" / "site.md").read_text(encoding="utf-8")
COMMAND = (REPOSITORY / "docs" / "gpu-layout-command.md").read_text(encoding="utf-8")


def blocks(text, language):
    """Return the code blocks of a language, also those in numbered steps."""
    found = re.findall(r"^( *)```%s\n(.*?)^\1```$" % language, text, flags=re.MULTILINE | re.DOTALL)
    return [dedent(block) for _indent, block in found]


def layouts_shown():
    for name, text in (("gpu_layout.md", REFERENCE), ("README.md", README)):
        for number, block in enumerate(blocks(text, "yaml")):
            variables = yaml.load(block, yaml_files.LOADER)
            if "gpu_layout" in variables:
                yield pytest.param(variables, id="%s block %d" % (name, number))
    for path in sorted((REPOSITORY / "inventories").glob("*/*_vars/**/*.yml")):
        variables = yaml_files.read(path) or {}
        if "gpu_layout" in variables:
            yield pytest.param(variables, id=str(path.relative_to(REPOSITORY)))


@pytest.mark.parametrize("variables", list(layouts_shown()))
def test_layouts_shown_are_valid(variables):
    assert len(parse_layout(variables["gpu_layout"]).entries) == len(variables["gpu_layout"])
    VALIDATOR.validate(variables)


def test_the_reference_shows_every_sharing():
    shown = {entry["sharing"] for block in blocks(REFERENCE, "yaml") for entry in yaml.safe_load(block)["gpu_layout"]}
    assert shown == set(SHARINGS)


def test_shown_messages_are_the_real_ones():
    with pytest.raises(LayoutError) as caught:
        parse_layout(
            [
                {"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "1g.10gb", "count": "2"}]},
                {"gpus": [2], "sharing": "exlusive"},
            ]
        )
    assert str(caught.value) + "\n" in blocks(REFERENCE, "text")


def test_example_fits_on_its_gpus():
    group = yaml_files.read(EXAMPLE / "group_vars" / "gpu_h100.yml")
    answer = plan_without_driver(group["gpu_layout"], ["H100-80GB"] * 8)
    assert answer["checked"] and answer["problems"] == []
    assert len(answer["plan"]) == 8 + 1, "a line for each GPU, and one for the MPS daemon"


def variables():
    """Yield each inventory variable of the roles (argument_specs) and of site.yml."""
    for path in sorted(REPOSITORY.glob("roles/*/meta/argument_specs.yml")):
        for entry_point in yaml_files.read(path)["argument_specs"].values():
            yield from entry_point.get("options", {})
    yield from ("gpu_site_waves", "gpu_report_dir")


@pytest.mark.parametrize("variable", sorted(set(variables())))
def test_the_example_explains_every_variable(variable):
    lines = [line for path in EXAMPLE.glob("*_vars/*.yml") for line in path.read_text(encoding="utf-8").splitlines()]
    assert any(re.match(r"(# )?%s:" % variable, line) for line in lines)


def test_readme_shows_an_inventory_and_its_plan():
    hosts, variables = (yaml.safe_load(block) for block in blocks(README, "yaml"))
    assert list(hosts["gpu_hosts"]["hosts"]), "site.yml runs on the group gpu_hosts"
    answer = plan_without_driver(variables["gpu_layout"], ["H100-80GB"] * 8)
    assert answer["problems"] == []
    (shown,) = blocks(README, "text")
    assert shown.splitlines()
    # The driver decides on which GPU a daemon runs, so the GPU is removed from the lines.
    assert {re.sub(r" on gpu \d+$| \(GPU-[0-9a-f]{8}\)", "", line) for line in shown.splitlines()} == set(
        answer["plan"]
    )


def test_minimal_inventory_equals_the_readmes():
    minimal = REPOSITORY / "inventories" / "minimal"
    there = {str(path.relative_to(minimal)): path.read_text(encoding="utf-8") for path in minimal.rglob("*.*")}
    shown = {}
    for block in blocks(README, "yaml"):
        name, _newline, text = block.partition("\n")
        shown[name.removeprefix("# ")] = yaml.safe_load(text)
    assert {name: yaml.safe_load(text) for name, text in there.items() if name.endswith(".yml")} == shown
    (settings,) = blocks(README, "ini")
    assert set(there) == {*shown, "ansible.cfg"}
    assert _settings(there["ansible.cfg"]) == _settings(settings)


def _settings(text):
    parser = ConfigParser(interpolation=None)
    parser.read_string(text)
    return {name: dict(parser[name]) for name in parser.sections()}


def test_shown_plans_and_problems_are_the_real_ones():
    shown = "".join(blocks(SITE, "text"))
    layout = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "2g.20gb", "count": 2}]}]
    (plan,) = plan_without_driver(layout, ["H100-80GB"])["plan"]
    assert plan + "\n" in shown

    layout[0]["mig"] = [{"profile": "3g.40gb", "count": 3}]
    (problem,) = plan_without_driver(layout, ["H100-80GB"])["problems"]
    assert "H100-80GB: %s\n" % problem.partition("): ")[2] in "".join(blocks(COMMAND, "console"))
