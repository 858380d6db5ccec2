# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that the installed command has all modules that its modules import."""

from __future__ import annotations

import ast
from pathlib import PurePosixPath

from ansible_collections.openfleet.gpu.plugins.module_utils.install.build_command import read_sources

# Only the modules for leases import these files, and the command has no leases.
UNUSED = ("lease_card.py",)


def imported(path, text):
    """Yield the module below module_utils of each import at the start of a file."""
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
