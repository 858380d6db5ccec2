# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that the installed command has all modules that its modules import."""

from __future__ import annotations

import ast
from pathlib import PurePosixPath

from ansible_collections.openfleet.gpu.plugins.module_utils.install.build_command import read_sources

# Only modules for leases import these files, and the command does not need leases.
UNUSED = ("lease_card.py",)


def imported(path, text):
    """Yield each module below module_utils that the top of a file imports."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = PurePosixPath("/", path).parents[node.level - 1]
            target = folder.joinpath(*(node.module or "").split("."))
            names = [target] if node.module else [target / each.name for each in node.names]
            yield from (str(name.relative_to("/")) for name in names)


def test_the_command_has_all_modules_that_its_modules_import():
    sources = read_sources()
    modules = {path[: -len(".py")] for path in sources} | {str(PurePosixPath(path).parent) for path in sources}
    missing = {
        (path, name) for path, text in sources.items() if path.endswith(".py") for name in imported(path, text)
        if name not in modules and PurePosixPath(path).name not in UNUSED
    }  # fmt: skip
    assert missing == set()
