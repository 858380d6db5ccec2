# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the modules' documentation with their argument specs. Check examples."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.doc_fragments import errors as errors_fragment
from ansible_collections.openfleet.gpu.plugins.doc_fragments import install as install_fragment
from ansible_collections.openfleet.gpu.plugins.doc_fragments import installed_code as installed_code_fragment
from ansible_collections.openfleet.gpu.plugins.doc_fragments import reload as reload_fragment
from ansible_collections.openfleet.gpu.plugins.doc_fragments.layout import ModuleDocFragment
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import parse_layout
from ansible_collections.openfleet.gpu.plugins.modules import audit, bundle, layout, mig, mps, time_slicing
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import WORDS
from ansible_collections.openfleet.gpu.plugins.plugin_utils.bundle.wants import PARTS

pytestmark = pytest.mark.core

PLUGINS = Path(__file__).parents[3] / "plugins"
META = PLUGINS.parent / "meta" / "runtime.yml"
MODULES = [
    importlib.import_module("ansible_collections.openfleet.gpu.plugins.modules." + path.stem)
    for path in sorted(PLUGINS.glob("modules/*.py"))
]
#: These options can be set by module_defaults for a group of modules.
OF_LAYOUTS = {"layout", "on_busy", "busy_timeout", "grace_period", "lock_timeout", "state_directory"}
OF_AUDITS = {
    "prometheus", "window", "selector", "hosts", "hosts_asked", "prices", "currency", "thresholds", "exempt", "holidays"
}  # fmt: skip
FRAGMENTS = {
    "errors": errors_fragment.ModuleDocFragment,
    "install": install_fragment.ModuleDocFragment,
    "installed_code": installed_code_fragment.ModuleDocFragment,
    "layout": ModuleDocFragment,
    "reload": reload_fragment.ModuleDocFragment,
}
SHARED = {"layout": OF_LAYOUTS, "state": {"state_directory"}, "audit": OF_AUDITS}


def documented_options(module):
    """Return a module's options, including those of its documentation fragments."""
    documentation = yaml.safe_load(module.DOCUMENTATION)
    found = dict(documentation.get("options", {}))
    for name in documentation.get("extends_documentation_fragment", []):
        if name.startswith("openfleet.gpu."):
            file, _, part = name.removeprefix("openfleet.gpu.").partition(".")
            fragment = FRAGMENTS[file]
            found.update(yaml.safe_load(getattr(fragment, part.upper() or "DOCUMENTATION"))["options"])
    return found


def name_of(module):
    return module.__name__.rpartition(".")[2]


@pytest.mark.parametrize("module", [module for module in MODULES if hasattr(module, "argspec")], ids=name_of)
def test_options_are_those_of_the_argument_spec(module):
    documented = documented_options(module)
    spec = module.argspec()
    assert set(documented) == set(spec)
    for name, option in spec.items():
        for key in ("type", "default", "required"):
            assert documented[name].get(key) == option.get(key), (name, key)


def test_choices_defined_in_code_match_the_documentation():
    """Compare choices in the code with the documentation.

    Actions on the controller read their options from the documentation.
    """
    assert documented_options(audit)["fail_on"]["choices"] == [*WORDS, "unanswered"]
    parts = documented_options(bundle)["parts"]
    assert parts["choices"] == parts["default"] == list(PARTS)


@pytest.mark.parametrize("module", [layout, mig, mps, time_slicing])
def test_the_layouts_of_the_examples_are_valid(module):
    name = "openfleet.gpu." + yaml.safe_load(module.DOCUMENTATION)["module"]
    layouts = [task[name]["layout"] for task in yaml.safe_load(module.EXAMPLES)]
    given = [layout for layout in layouts if isinstance(layout, list)]
    assert given
    for one in given:
        parse_layout(one)


@pytest.mark.parametrize("path", sorted(PLUGINS.glob("modules/*.py")), ids=lambda path: path.stem)
def test_modules_document_the_parts_of_errors(path):
    """Check that modules with the runner document its errors by a fragment.

    The runner is module_utils/runner.py.
    """
    text = path.read_text(encoding="utf-8")
    assert ("  - openfleet.gpu.errors\n" in text) == ("    run(module, " in text)


@pytest.mark.parametrize("group", sorted(SHARED))
def test_groups_have_the_modules_that_accept_their_defaults(group):
    groups = yaml.safe_load(META.read_text(encoding="utf-8"))["action_groups"]
    assert set(groups) == set(SHARED)
    assert set(groups[group]) == {
        name_of(module) for module in MODULES if SHARED[group] <= set(documented_options(module))
    }


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_a_module_names_its_groups(module):
    documentation = yaml.safe_load(module.DOCUMENTATION)
    attributes = dict(documentation.get("attributes") or {})
    if "openfleet.gpu.layout" in documentation.get("extends_documentation_fragment", []):
        attributes.update(yaml.safe_load(ModuleDocFragment.DOCUMENTATION)["attributes"])
    named = attributes.get("action_group", {}).get("membership", [])
    groups = yaml.safe_load(META.read_text(encoding="utf-8"))["action_groups"]
    expected = sorted("openfleet.gpu." + group for group, members in groups.items() if name_of(module) in members)
    assert sorted([named] if isinstance(named, str) else named) == expected


def test_each_module_has_an_action():
    """The action escapes control characters in texts from a host."""
    modules, actions = ({path.stem for path in (PLUGINS / folder).glob("*.py")} for folder in ("modules", "action"))
    routes = yaml.safe_load(META.read_text(encoding="utf-8"))["plugin_routing"]["modules"]
    assert all(route == {"action_plugin": "openfleet.gpu.gpu_info"} for route in routes.values())
    assert not set(routes) & actions
    assert modules == actions | set(routes)
