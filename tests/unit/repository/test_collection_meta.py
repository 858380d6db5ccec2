# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check metadata of the collection: entry points, secret variables and addresses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit import yaml_files

REPOSITORY = Path(__file__).parents[3]
GALAXY = yaml_files.read(REPOSITORY / "galaxy.yml")
SPECS = {
    path.parents[1].name: yaml_files.read(path)["argument_specs"]
    for path in REPOSITORY.glob("roles/*/meta/argument_specs.yml")
}


@pytest.mark.parametrize(
    ("role", "entry"), [(role, entry) for role, entries in sorted(SPECS.items()) for entry in sorted(entries)]
)
def test_an_entry_point_is_described(role, entry):
    assert SPECS[role][entry]["short_description"]
    assert SPECS[role][entry]["description"]


def test_passwords_are_not_logged():
    shown = [
        name
        for entries in SPECS.values()
        for entry in entries.values()
        for name, option in entry.get("options", {}).items()
        if re.search(r"_(password|token|secret)s?$", name) and not option.get("no_log")
    ]
    assert shown == []


def test_documents_name_the_addresses_of_galaxy_yml():
    """galaxy.yml is the only source of the project's address."""
    repository = GALAXY["repository"]
    for key in ("issues", "documentation", "homepage"):
        assert GALAXY[key].startswith(repository)
    (named,) = set(re.findall(r"git\+(\S+)\.git", (REPOSITORY / "README.md").read_text(encoding="utf-8")))
    assert named == repository


@pytest.mark.parametrize("path", sorted(REPOSITORY.glob("changelogs/**/*.y*ml")), ids=lambda path: path.name)
def test_changelogs_mark_code_with_backticks(path):
    # The changelog would show markup of Ansible's documentation, such as C(code), as it is.
    assert re.findall(r"\b[CIOV]\([^)]*\)", path.read_text(encoding="utf-8")) == []
