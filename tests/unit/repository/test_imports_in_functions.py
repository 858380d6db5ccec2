# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Imports inside functions have a recorded reason that is still true.

Such imports hide dependencies of a file. imports_in_functions.txt lists each of them. Filters are excluded: ansible-core loads
all filters of a collection for every task that uses one of them, so all of them import their code when they run.
"""

from __future__ import annotations

import ast
import sys
from functools import lru_cache
from pathlib import Path
from typing import Iterable, Iterator, NamedTuple

import pytest

PLUGINS = Path(__file__).resolve().parents[3] / "plugins"
RECORD = Path(__file__).with_name("imports_in_functions.txt")
FOLDERS = ("module_utils", "plugin_utils", "modules", "action", "callback", "lookup")
#: Minimum size of the source that a module does not compile at its start, because of the imports in functions of a file.
LEAST_BYTES = 2048


class Import(NamedTuple):
    """An import inside a function.

    `file` and `files` are paths below the plugins. `files` are the files of the collection that are imported. `module`
    is the module as written.
    """

    file: str
    function: str
    module: str
    files: frozenset[str]

    @property
    def key(self) -> str:
        return "%s:%s:%s" % (self.file, self.function, self.module)


class Imports(NamedTuple):
    """The imports of a file.

    `files` are files of the collection, and `others` are other modules. Both are imported at the top.
    """

    files: frozenset[str]
    others: frozenset[str]
    in_functions: tuple[Import, ...]


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def statements(node: ast.AST, names: tuple[str, ...] = (), late: bool = False) -> Iterator[tuple[ast.AST, str]]:
    """Yield each import with the dotted name of its function.

    The name is empty outside functions. Imports for the type check are left out.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, ".".join(names) if late else ""
        elif isinstance(child, ast.ClassDef):
            yield from statements(child, (*names, child.name), late)
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from statements(child, (*names, child.name), True)
        elif not is_for_types(child):
            yield from statements(child, names, late)


def imported_files(path: str, node: ast.AST) -> frozenset[str]:
    """Return the files of the collection that a relative import loads."""
    if not isinstance(node, ast.ImportFrom) or not node.level:
        return frozenset()
    package = path.split("/")[:-1]
    base = [*package[: len(package) - node.level + 1], *(node.module.split(".") if node.module else [])]
    names = ["/".join(base), *("/".join([*base, each.name]) for each in node.names)]
    return frozenset(
        file for name in names for file in (name + ".py", name + "/__init__.py") if (PLUGINS / file).is_file()
    )


def modules(path: str, node: ast.AST) -> list[str]:
    """Return the modules that an import names, as written.

    For a module of a package, the result includes both names.
    """
    if isinstance(node, ast.Import):
        return [each.name for each in node.names]
    assert isinstance(node, ast.ImportFrom)
    name = "." * node.level + (node.module or "")
    files = {Path(file).with_suffix("").name for file in imported_files(path, node)}
    submodules = [
        each.name for each in node.names if each.name in files and each.name != (node.module or "").split(".")[-1]
    ]
    return ["%s%s%s" % (name, "." if node.module else "", each) for each in submodules] or [name]


@lru_cache(maxsize=None)
def read(path: str) -> Imports:
    """Return the imports of a file below the plugins."""
    return parse(path, (PLUGINS / path).read_text(encoding="utf-8"))


def parse(path: str, source: str) -> Imports:
    files: set[str] = set()
    others: set[str] = set()
    late = []
    for node, function in statements(ast.parse(source)):
        if function:
            late += [Import(path, function, name, imported_files(path, node)) for name in modules(path, node)]
        else:
            files |= imported_files(path, node)
            others |= {name.split(".")[0] for name in modules(path, node) if not name.startswith(".")}
    return Imports(frozenset(files), frozenset(others), tuple(late))


@lru_cache(maxsize=None)
def loaded(starts: frozenset[str]) -> frozenset[str]:
    """Return the files that Python loads when it imports these files."""
    found: set[str] = set()
    left = set(starts)
    while left:
        path = left.pop()
        found.add(path)
        packages = {str(folder / "__init__.py") for folder in Path(path).parents}
        left |= (read(path).files | {name for name in packages if (PLUGINS / name).is_file()}) - found
    return frozenset(found)


def all_imports() -> list[Import]:
    paths = sorted(str(file.relative_to(PLUGINS)) for folder in FOLDERS for file in (PLUGINS / folder).rglob("*.py"))
    return [each for path in paths for each in read(path).in_functions]


IMPORTS = {each.key: each for each in all_imports()}
MODULES = sorted(str(file.relative_to(PLUGINS)) for file in (PLUGINS / "modules").glob("*.py"))


def recorded() -> dict[str, str]:
    """Return the reason for each import in the record, by file, function and module."""
    lines = [line for line in RECORD.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    assert lines == sorted(set(lines))
    return dict(line.rsplit(":", 1) for line in lines)


def saved_bytes(imports: Iterable[Import], module: str) -> int:
    """Return how many bytes of source a module's start does not compile.

    With the imports at the top of their files, Python would also compile this source when the module starts.
    """
    at_start = loaded(frozenset([module]))
    late = frozenset(file for each in imports if each.file in at_start for file in each.files)
    return sum((PLUGINS / file).stat().st_size for file in loaded(late) - at_start) if late else 0


def speeds_up_start(one: Import) -> bool:
    """Return whether a module starts faster without the imports of the same file.

    The imports of a file count together, because a technique has a small file for each purpose.
    """
    same_file = read(one.file).in_functions
    return any(saved_bytes([one], name) and saved_bytes(same_file, name) >= LEAST_BYTES for name in MODULES)


def is_cycle(one: Import) -> bool:
    return one.file in loaded(one.files)


def needs_other_package(one: Import) -> bool:
    """Return whether the import loads a package that may be missing."""
    others = {name for file in loaded(one.files) for name in read(file).others}
    if not one.files:
        others = {one.module.split(".")[0]}
    return bool(others - sys.stdlib_module_names - {"ansible", "ansible_collections"}) or (
        # The command gpu-layout runs without Ansible.
        one.module.startswith("ansible.") and one.file.startswith("module_utils/")
    )


def is_slow(one: Import) -> bool:
    """Return whether the import is outside the code that hosts compile."""
    return one.module in sys.stdlib_module_names or not one.file.startswith("module_utils/")


REASONS = {"start": speeds_up_start, "cycle": is_cycle, "optional": needs_other_package, "time": is_slow}


def test_imports_in_functions_are_recorded():
    # A new import needs a reason, and a removed import must be removed from the record.
    assert sorted(IMPORTS) == sorted(recorded())


@pytest.mark.parametrize("key", sorted(recorded().keys() & IMPORTS.keys()))
def test_reasons_are_true(key):
    assert REASONS[recorded()[key]](IMPORTS[key]), "move this import to the top of the file"


@pytest.mark.parametrize(
    ("source", "keys"),
    [
        ("def a():\n    from . import keeps", ["a:.keeps"]),
        ("def a():\n    from .keeps import duration as d", ["a:.keeps"]),
        ("class A:\n    def b(self):\n        def c():\n            import os, sys", ["A.b.c:os", "A.b.c:sys"]),
        ("async def a():\n    if a:\n        from ..plan.services import Asked", ["a:..plan.services"]),
        ("def a():\n    from ..plan import busy", ["a:..plan.busy"]),
        ("import os\nclass A:\n    import sys\ntry:\n    import yaml\nexcept ImportError:\n    pass", []),
        ("if TYPE_CHECKING:\n    from . import keeps", []),
    ],
)
def test_each_import_in_a_function_is_detected(source, keys):
    path = "module_utils/keep/x.py"
    assert [each.key for each in parse(path, source).in_functions] == ["%s:%s" % (path, key) for key in keys]
