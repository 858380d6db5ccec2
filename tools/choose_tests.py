# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose the unit tests for changed files, by imports and by names."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import Iterable, Mapping

PLUGINS = "ansible_collections.openfleet.gpu."
UNIT = "tests/unit"
#: Tests that check all pages.
OF_PAGES = ("test_documents", "test_docs_blocks")


def choose(root: Path, names: Iterable[str]) -> list[str]:
    """Return the unit tests for the files. The most specific test comes first.

    A test belongs to a Python file if the test or one of its helpers imports the file. A test belongs to another file
    if the test contains the file's path or role. If no test imports a module, the tests that import another module of
    the same package are chosen.
    """
    tests, reached = _unit_tests(root)
    points: dict[str, float] = {}
    for name in names:
        for path in _tests_of(root, name, tests, reached):
            # The fewer modules a test imports, the more specific it is.
            close = 1 / (1 + len(reached[path])) + shares_words(path.stem, name)
            test = str(path.relative_to(root))
            points[test] = points.get(test, 0) + close
    return sorted(points, key=lambda test: (-points[test], test))


@functools.cache
def _unit_tests(root: Path) -> tuple[dict[Path, str], dict[Path, set[str]]]:
    """Return the source and the imported modules of each unit test."""
    sources = {path: path.read_text("utf-8") for path in sorted((root / UNIT).rglob("*.py"))}
    tests = {path: text for path, text in sources.items() if path.name.startswith("test_")}
    imports = {path: imported(text) for path, text in sources.items()}
    return tests, {path: _with_helpers(root, path, imports) for path in tests}


def _tests_of(root: Path, name: str, tests: Mapping[Path, str], reached: Mapping[Path, set[str]]) -> list[Path]:
    path = root / name
    if path in tests:
        return [path]
    named = [test for test, text in tests.items() if any(word in text for word in mentions(name))]
    if name.endswith(".md"):
        return sorted({*named, *(test for test in tests if test.stem in OF_PAGES)})
    if not name.endswith(".py"):
        folder = path.parent.name
        return named or [test for test, text in tests.items() if f"/{folder}" in text or f'"{folder}"' in text]
    module = module_name(name)
    importing = [test for test, modules in reached.items() if module in modules]
    package = module.rpartition(".")[0] if path.stem != "__init__" else module
    if not importing and module.startswith(PLUGINS):
        importing = [
            test for test, modules in reached.items() if any(each.startswith(package + ".") for each in modules)
        ]
    return [*importing, *(test for test in named if test not in importing)]


def module_name(name: str) -> str:
    """Return the module name that tests use to import the file."""
    parts = Path(name).with_suffix("").parts
    if parts[0] == "plugins":
        return PLUGINS + ".".join(part for part in parts if part != "__init__")
    if parts[0] == "tests":
        return ".".join(parts)
    return parts[-1]


def imported(source: str) -> set[str]:
    """Return the modules that the source imports, also inside functions.

    `from a import b` yields both `a` and `a.b`. Raises SyntaxError if it is not valid Python.
    """
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
            modules.update(f"{node.module}.{each.name}" for each in node.names)
    return modules


def _with_helpers(root: Path, path: Path, imports: Mapping[Path, set[str]]) -> set[str]:
    """Return the modules that the test and its helpers import."""
    found: set[str] = set()
    waiting = [path]
    while waiting:
        modules = imports.get(waiting.pop(), set())
        waiting += [root / (each.replace(".", "/") + ".py") for each in modules - found]
        found |= modules
    return found


def mentions(name: str) -> list[str]:
    """Return texts in a test that show that it tests the file.

    These are the path, the quoted name, and the role or scenario of the file.
    """
    parts = Path(name).parts
    words = [name, f'"{parts[-1]}"', f"'{parts[-1]}'"]
    if parts[0] in ("roles", "molecule") and len(parts) > 2:
        words += [f"{parts[0]}/{parts[1]}", f'"{parts[1]}"']
    generic = {"main.yml", "README.md", "__init__.py", "plan.yml", "argument_specs.yml"}
    return [name, *words[3:]] if parts[-1] in generic else words


def shares_words(stem: str, name: str) -> int:
    """Return how many words the names of the test and the file share."""
    words = set(stem.removeprefix("test_").split("_"))
    return len(words & {word for part in Path(name).with_suffix("").parts for word in part.split("_")})
