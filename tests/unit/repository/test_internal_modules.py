# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that the documentation of a module shows whether users may call it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
MODULES = sorted(path.stem for path in (ROOT / "plugins" / "modules").glob("*.py"))
#: First sentence of the description of an internal module.
MARK = "Internal: only this collection uses this module."
# Modules whose interface is not stable. Most of them need input that their role prepares, such as the text of a unit.
INTERNAL = [
    "check_variables",
    "dcgm_exporter",
    "driver_workloads",
    "gpu_simulator",
    "installed_module",
    "kubelet_info",
    "kubernetes_eviction",
    "kubernetes_objects",
    "layout_boot",
    "reclaim_tell",
    "slurm_config",
    "slurm_task_prolog",
    "systemd_reload",
    "unit_request",
    "vgpu_limiter",
]


def description(module: str) -> str:
    """Return the first line of a module's description."""
    tree = ast.parse((ROOT / "plugins" / "modules" / f"{module}.py").read_text(encoding="utf-8"))
    assigned = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    lines = yaml.safe_load(ast.literal_eval(assigned["DOCUMENTATION"]))["description"]
    return lines if isinstance(lines, str) else lines[0]


def files(*patterns: str) -> list[str]:
    """Return the texts of the matching files."""
    return [path.read_text(encoding="utf-8") for pattern in patterns for path in sorted(ROOT.glob(pattern))]


def test_internal_modules_are_marked_and_others_are_not():
    assert [module for module in MODULES if description(module) == MARK] == INTERNAL
    assert [module for module in MODULES if description(module).startswith("Internal")] == INTERNAL


def test_table_of_modules_with_defaults_has_no_internal_module():
    rows = re.findall(
        r"^\| `openfleet\.gpu\.\w+` \|.*$", (ROOT / "docs" / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    named = set(re.findall(r"`(\w+)`", "\n".join(rows)))
    assert {"layout", "reclaim"} <= named <= set(MODULES) - set(INTERNAL)


@pytest.mark.parametrize("module", INTERNAL)
def test_pages_do_not_tell_users_to_call_an_internal_module(module):
    task = re.compile(r"^\s*(- )?openfleet\.gpu\.%s:" % module, re.MULTILINE)
    pages = files("README.md", "docs/**/*.md", "roles/*/README.md", "examples/**/*.yml")
    assert len(pages) > 20
    assert not any(task.search(page) for page in pages)


@pytest.mark.parametrize("module", INTERNAL)
def test_internal_module_is_used_by_the_collection(module):
    task = re.compile(r"^\s*(- )?openfleet\.gpu\.%s:" % module, re.MULTILINE)
    used = any(map(task.search, files("playbooks/**/*.yml", "roles/*/tasks/**/*.yml", "roles/*/handlers/*.yml")))
    assert used or any(
        '"openfleet.gpu.%s"' % module in text for text in files("plugins/action/*.py", "plugins/plugin_utils/*.py")
    )
