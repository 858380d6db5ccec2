# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that a module documents its return keys.

Test harnesses call this for each result.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import Any, Mapping

import yaml

PLUGINS = Path(__file__).resolve().parents[1] / "plugins"
#: Keys that any module may return: the keys on Ansible's page Return Values, and the keys of diff mode and failures.
COMMON = {"changed", "deprecations", "diff", "exception", "failed", "invocation", "msg", "skipped", "warnings"}
#: Keys that the fragment `errors` documents.
FAILURE = {
    "where",
    "problem",
    "cure",
    "problems",
    "host_fault",
    "nvml",
    "outcome",
    "steps_done",
    "reboot_required",
    "busy",
}
#: Keys that a module returns to its own action plugin, which removes them from the result.
FOR_ACTION = {"reading", "sources_needed"}


def _blocks(name: str) -> dict[str, Any]:
    """Return a module's DOCUMENTATION and RETURN as data."""
    tree = ast.parse((PLUGINS / "modules" / f"{name}.py").read_text())
    assigned = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    return {block: yaml.safe_load(ast.literal_eval(assigned[block])) for block in ("DOCUMENTATION", "RETURN")}


@functools.cache
def _returned(name: str) -> frozenset[str]:
    """Return a module's documented return keys.

    Sources are its own block, its fragments' notes, and Ansible's common keys.
    """
    blocks = _blocks(name)
    known = COMMON | FOR_ACTION | set(blocks["RETURN"] or {})
    fragments = blocks["DOCUMENTATION"]["extends_documentation_fragment"]
    if "openfleet.gpu.errors" in fragments:
        known |= FAILURE
    if "openfleet.gpu.layout.part" in fragments:
        known |= _returned("layout")
    if name == "installed_module":
        known |= _returned("layout") | _returned("layout_boot")
    return frozenset(known)


def check_documented(name: str, result: Mapping[str, Any]) -> None:
    """Raise AssertionError if a result has a key that the documentation lacks."""
    unknown = sorted(set(result) - _returned(name))
    assert not unknown, "RETURN of the module %s does not name what it returned: %s" % (name, ", ".join(unknown))
