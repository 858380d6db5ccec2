# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that every file of the plugins can be imported, with all imported names."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

PLUGINS = Path(__file__).resolve().parents[3] / "plugins"
COLLECTIONS = PLUGINS.parent / "collections"
NAME = "ansible_collections.openfleet.gpu.plugins"
FOLDERS = ("module_utils", "plugin_utils", "modules", "action", "filter", "callback", "lookup")
FILES = sorted(path.relative_to(PLUGINS) for folder in FOLDERS for path in (PLUGINS / folder).rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=str)
def test_files_can_be_imported(path):
    name = ".".join(path.with_suffix("").parts).replace(".__init__", "")
    importlib.import_module("ansible_collections.openfleet.gpu.plugins." + name)


def taken_from_plugins() -> list[tuple[str, str, str]]:
    """Return (file, module, name) of each plugin name that others import.

    The others are tools and scenarios.
    """
    root, found = PLUGINS.parent, []
    for path in sorted(path for folder in ("tools", "molecule") for path in (root / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(NAME):
                found += [(str(path.relative_to(root)), node.module, each.name) for each in node.names]
    return found


def test_imports_of_tools_and_scenarios_exist():
    missing = []
    for path, module, name in taken_from_plugins():
        if not hasattr(importlib.import_module(module), name):
            try:
                importlib.import_module("%s.%s" % (module, name))
            except ModuleNotFoundError:
                missing.append((path, module, name))
    assert missing == []


def imported_names(path: Path) -> set[str]:
    """Return the first part of each module name that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.slow
def test_helpers_of_tests_are_imported_by_their_path():
    """Refuse bare names, because a module with two names is loaded twice.

    Scenarios are an exception: they import helpers in their own folder by name, because the installed program is named
    `molecule`.
    """
    root = PLUGINS.parent
    tests = list((root / "tests").rglob("*.py"))
    helpers = {path.stem for path in tests} - {"conftest", "__init__"}
    bare = {path: imported_names(path) & helpers for path in [root / "conftest.py", *tests]}
    for path in (root / "molecule").rglob("*.py"):
        bare[path] = {name for name in imported_names(path) & helpers if not path.with_name(name + ".py").exists()}
    assert {str(path.relative_to(root)): names for path, names in bare.items() if names} == {}


def imports(path: Path) -> set[Path]:
    """Return the plugin files that a file imports, also within functions.

    Ansible sends these files to the host with a module.
    """
    package, found = path.parts[:-1], set()
    for node in ast.walk(ast.parse((PLUGINS / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = Path(*package[: len(package) - node.level + 1], *(node.module or "").split("."))
            for name in (base, *(base / each.name for each in node.names)):
                found |= {
                    file for file in (name.with_suffix(".py"), name / "__init__.py") if (PLUGINS / file).is_file()
                }
    return found


def carried(module: str) -> set[str]:
    """Return the collection's files in a module's payload, below module_utils.

    The result leaves out the `__init__.py` files of packages.
    """
    found, left = set(), {Path("modules", module + ".py")}
    while left:
        found |= left
        left = {file for path in left for file in imports(path)} - found
    return {str(file.relative_to("module_utils")) for file in found if file.parts[0] == "module_utils"} - {
        str(file.relative_to("module_utils")) for file in found if file.name == "__init__.py"
    }


@pytest.mark.parametrize(("module", "most"), [("gpu_info", 42), ("layout_export", 64)])
def test_reading_modules_have_few_imports(module, most):
    files = carried(module)
    assert len(files) <= most, sorted(files)
    changing = {"apply.py", "apply_plan.py", "converge.py", "host.py", "plan.py", "service.py", "technique.py"}
    assert not {file for file in files if Path(file).name in changing}


@pytest.mark.parametrize(
    ("module", "unneeded"),
    [
        ("installed_module", {"install/archive.py", "install/build_command.py"}),
        ("driver", {"model.py", "vendors/nvidia/nvml/session.py"}),
        ("dcgm_exporter", {"packages/apt.py", "packages/dnf.py", "packages/manager.py", "packages/model.py"}),
        ("container_toolkit", {"model.py"}),
    ],
)
def test_modules_of_each_run_carry_no_unneeded_files(module, unneeded):
    """Check modules that site.yml sends to each host in each run."""
    assert not carried(module) & unneeded


LOADED = """
import sys
from ansible_collections.openfleet.gpu.plugins.modules import %s
files = {name for name, each in sys.modules.items() if not hasattr(each, "__path__")}
print(*(name for name in files if ".openfleet.gpu.plugins.module_utils." in name))
"""


@pytest.mark.parametrize(("module", "most"), [("gpu_info", 33), ("layout", 70)])
def test_modules_import_rarely_needed_code_lazily(module, most):
    """Each file in a payload is compiled in each run.

    Code for changes, recovery, export or schedulers is imported where it is used.
    """
    code = LOADED % module
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, cwd=str(COLLECTIONS)
    )
    loaded = {name.partition("module_utils.")[2] for name in done.stdout.split()}
    assert len(loaded) <= most, sorted(loaded)
    rare = {"cdi.follow", "cdi.nvidia_ctk", "holders.slurm", "processes.command_line_programs", "processes.peer"}
    rare |= {"change.apply_plan", "change.recovery", "change.plan_file"}
    rooms = {
        "techniques.%s.%s" % (key, room)
        for key in ("mps", "vgpu")
        for room in ("parse", "apply", "host", "plan", "export")
    }
    if module == "layout":
        rooms |= {
            "techniques.%s.%s" % (key, room) for key in ("mps", "vgpu") for room in ("service", "observe", "steps")
        }
        rare |= {"change.host_change", "change.terminate", "holders.kubelet", "holders.mps", "holders.mps_control"}
        rooms |= {"vendors.nvidia.mig.%s" % room for room in ("plan", "fit", "steps")}
    assert not loaded & (rare | rooms)
