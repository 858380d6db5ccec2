# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check in the syntax trees that each mechanism is implemented only once.

A second implementation could follow different rules.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

#: Each test walks the syntax trees of all plugins.
pytestmark = pytest.mark.slow
PLUGINS = Path(__file__).resolve().parents[3] / "plugins"


@functools.cache
def trees():
    """Return (path below the plugins, syntax tree) of each plugin file."""
    return tuple(
        (str(path.relative_to(PLUGINS)), ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted(PLUGINS.rglob("*.py"))
    )


def renames(node: ast.AST) -> bool:
    """Return whether a call renames a file, through os or pathlib.

    Path.replace is recognized by its single argument, because str.replace has two.
    """
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    name, owner = node.func.attr, node.func.value
    if isinstance(owner, ast.Name) and owner.id == "os":
        return name in ("rename", "renames", "replace")
    return name == "rename" or (name == "replace" and len(node.args) == 1 and not node.keywords)


def imported(tree: ast.AST) -> set[str]:
    """Return the modules outside the collection that a file imports anywhere."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {node.module or "", *("%s.%s" % (node.module, each.name) for each in node.names)}
    return found


def importers(*modules: str) -> set[str]:
    return {path for path, tree in trees() if imported(tree) & set(modules)}


#: These files rename something that they did not write, or that is no file.
RENAMES = {
    "module_utils/durable.py": "the writer itself",
    "module_utils/change/trial.py": "a layout that was set aside",
    "module_utils/install/exporter/installation.py": "a folder of packages",
    "module_utils/techniques/mps/host.py": "the folder of a daemon",
    "module_utils/techniques/vgpu/agent.py": "a socket",
    "plugin_utils/bundle/fetch.py": "a download that is resumed",
}


def test_one_function_writes_files_atomically():
    assert {path for path, tree in trees() if any(map(renames, ast.walk(tree)))} == set(RENAMES)


def test_one_runner_runs_commands():
    assert importers("subprocess", "pty", "popen2") == {"module_utils/processes/command.py"}
    calls = {"system", "popen", "posix_spawn", "posix_spawnp", "spawnv", "spawnve", "spawnvp", "spawnvpe", "execvp"}
    for path, tree in trees():
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is(node.value, "os")}
        assert not used & calls, path


#: These files run a package manager.
PACKAGE_MANAGERS = {
    "module_utils/packages/apt.py": "the engine for all vendors",
    "module_utils/packages/dnf.py": "the engine for all vendors",
    "module_utils/packages/dnf_changes.py": "changes of the engine and of the exporter",
    "module_utils/packages/family.py": "names of the package managers",
    "module_utils/processes/command.py": "their time limits",
    "module_utils/driver/repack.py": "a package file that no source offers any more",
    "module_utils/install/exporter/managers.py": "packages that a site may lock and share with other programs",
}
PACKAGE_TOOLS = {"apt-get", "apt-mark", "apt-cache", "dpkg", "dpkg-query", "dpkg-deb", "dnf", "rpm"}


def test_one_engine_runs_package_managers():
    def runs(node: ast.AST) -> bool:
        words = node.elts if isinstance(node, (ast.List, ast.Tuple)) else []
        return len(words) > 1 and isinstance(words[0], ast.Constant) and words[0].value in PACKAGE_TOOLS

    found = {path for path, tree in trees() if path.startswith("module_utils") and any(map(runs, ast.walk(tree)))}
    assert found == set(PACKAGE_MANAGERS)


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def test_one_opener_sends_requests():
    own = "module_utils/http_opener.py"
    # open_url of Ansible uses the controller's settings for proxies and certificates.
    assert importers("urllib.request", "http.client") == {own, "plugin_utils/bundle/fetch.py"}
    assert importers("ansible.module_utils.urls", "requests", "urllib3") == {"plugin_utils/bundle/fetch.py"}


def taken(tree: ast.AST, module: str) -> set[str]:
    """Return the names imported from a module of the collection.

    `module` is the end of the module's path.
    """
    return {
        each.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and ("." + (node.module or "")).endswith("." + module)
        for each in node.names
    }


def test_one_session_calls_the_driver_with_time_limits():
    """A hanging call elsewhere would block a run, its pipes and the host's lock."""
    direct = {path for path, tree in trees() if {"Session"} & (taken(tree, "nvml.session") | taken(tree, "session"))}
    assert direct == {
        "module_utils/vendors/nvidia/nvml/bounded_session.py",
        # This file runs within bounded.bounded, which limits its total time.
        "module_utils/hardware/asking.py",
    }
    assert {path for path, tree in trees() if "Calls" in taken(tree, "calls")} == {
        "module_utils/vendors/nvidia/nvml/session.py"
    }


def test_one_template_is_the_base_of_all_pages():
    pages = {path.name for path in PLUGINS.rglob("*.j2") if "<!doctype" in path.read_text(encoding="utf-8").lower()}
    assert pages == {"shell.html.j2"}


def test_one_parser_reads_the_files_of_slurm():
    """Check that one parser numbers the devices of a node."""
    words = {"multiplefiles", "autodetect", "include"}

    def names(node: ast.AST) -> bool:
        text = node.value.lower() if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        # A text counts if it is a key or a pattern for lines. Messages and documentation have more words.
        return text in words or (any(word in text for word in words) and "\\s" in text)

    found = {path for path, tree in trees() if "slurm" in path and any(map(names, ast.walk(tree)))}
    assert found == {
        "module_utils/slurm/conf.py",
        # These two read keys of a line that is already parsed.
        "module_utils/slurm/config.py",
        "module_utils/slurm/task_devices.py",
    }
    patterns = {"(\\w+)=(\\S+)", "([A-Za-z]+)=(\\S+)"}
    for path, tree in trees():
        if "slurm" in path:
            assert not patterns & {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}, path
