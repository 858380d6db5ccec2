# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the role container_toolkit: its defaults, documentation and module."""

from __future__ import annotations

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.doc_fragments import reload
from ansible_collections.openfleet.gpu.plugins.modules import container_toolkit
from tests.unit.module_utils.toolkit.toolkit_hosts import ROLE

pytestmark = pytest.mark.core


def test_the_modules_documentation_is_its_argument_spec():
    documented = yaml.safe_load(container_toolkit.DOCUMENTATION)["options"]
    documented.update(yaml.safe_load(reload.ModuleDocFragment.DOCUMENTATION)["options"])
    spec = container_toolkit.argspec()
    assert set(documented) == set(spec)
    for name, option in spec.items():
        for key in ("type", "default", "required", "choices", "elements"):
            assert documented[name].get(key) == option.get(key), (name, key)


def test_the_roles_defaults_are_those_of_its_argument_specs():
    defaults = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
    specs = yaml.safe_load((ROLE / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    for entry_point in specs.values():
        assert {name: option["default"] for name, option in entry_point["options"].items()} == defaults


def test_role_passes_every_option_to_the_module():
    _facts, block = yaml.safe_load((ROLE / "tasks" / "main.yml").read_text())
    # The role itself sets the default of the module's state directory.
    options = set(container_toolkit.argspec()) - {"state_directory"}
    assert set(block["module_defaults"]["openfleet.gpu.container_toolkit"]) == options
