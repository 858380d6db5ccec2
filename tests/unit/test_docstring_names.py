# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Docstrings and comments refer only to modules, classes and members that exist."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path
from typing import Iterator

import pytest

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
# A dotted name in single backquotes, with or without a call: `planner.plan`, `Service.seen`, `holders.mark.mark()`.
_REFERENCE = re.compile(r"(?<!`)`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\(\))?`(?!`)")
# File name suffixes: `journal.json` is a file.
_SUFFIXES = {"json", "py", "yml", "yaml", "md", "c", "h", "toml", "service", "max", "prom", "cfg", "j2"}


class Names:
    """The modules of a source tree and their members, from the syntax trees."""

    def __init__(self, root: Path) -> None:
        #: Members by the name of a module, package or class. Several files may have one module name.
        self.members: dict[str, set[str]] = {}
        #: All identifiers and words of short strings in the code.
        self.words: set[str] = set()
        #: Line and text of each docstring and comment, by file.
        self.texts: dict[Path, list[tuple[int, str]]] = {}
        for path in sorted(root.rglob("*.py")):
            source = path.read_text()
            tree = ast.parse(source)
            self.texts[path.relative_to(root)] = [*_docstrings(tree), *_comments(source)]
            self._add(path.relative_to(root), tree)

    def _add(self, path: Path, tree: ast.Module) -> None:
        parts = path.parts[:-1] if path.stem == "__init__" else (*path.parts[:-1], path.stem)
        for package, name in zip(parts, parts[1:]):
            self.members.setdefault(package, set()).add(name)
        if parts:
            self.members.setdefault(parts[-1], set()).update(_defined(tree.body))
        texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self.members.setdefault(node.name, set()).update(_defined(node.body), _attributes(node), _bases(node))
            if id(node) not in texts:
                self.words.update(_words(node))

    def wrong(self) -> list[str]:
        """Return each reference to something that does not exist, with its place."""
        return [
            "%s:%d: `%s`: %s does not exist" % (path, line, reference, missing)
            for path, texts in self.texts.items()
            for line, text in texts
            for reference in _REFERENCE.findall(text)
            for missing in [self.missing(reference)]
            if missing
        ]

    def missing(self, reference: str) -> str | None:
        """Return the part of a dotted reference that does not exist, or None.

        The first name is checked if it is a module, a package or a class, or if it appears nowhere in the code.
        """
        first, *rest = reference.split(".")
        if rest[-1] in _SUFFIXES:
            return None
        if first not in self.members:
            return None if first in self.words else first
        owner = first
        for name in rest:
            if owner not in self.members:
                return None
            if name not in self._inherited(owner):
                return "%s.%s" % (owner, name)
            owner = name
        return None

    def _inherited(self, owner: str) -> set[str]:
        """Return the members of a module, package or class, with those of base classes."""
        found, queue = set(), [owner]
        seen = set(queue)
        while queue:
            members = self.members.get(queue.pop(), set())
            found |= {name for name in members if not name.startswith("<")}
            bases = {name[1:] for name in members if name.startswith("<")} - seen
            seen |= bases
            queue += bases
        return found


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements define, including those in branches."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield (alias.asname or alias.name).partition(".")[0]
        else:
            for child in ast.walk(node):
                if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                    yield child.id
                elif isinstance(child, ast.alias):
                    yield (child.asname or child.name).partition(".")[0]


def _attributes(node: ast.ClassDef) -> Iterator[str]:
    """Yield the attributes that methods of a class set."""
    for child in ast.walk(node):
        if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store):
            yield child.attr


def _bases(node: ast.ClassDef) -> Iterator[str]:
    """Yield the names of the base classes, marked with "<"."""
    for base in node.bases:
        yield "<" + ast.unparse(base).rpartition(".")[2]


def _words(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.alias):
        yield from node.name.split(".")
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 60:
        yield from re.findall(r"\w+", node.value)


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text


def _comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_references_in_docstrings_and_comments_exist():
    assert Names(PLUGINS).wrong() == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a source tree with a package of two modules."""
    package = tmp_path / "holders"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "mark.py").write_text("class Base:\n    kind = 1\n\ndef mark(host):\n    return host.gpus\n")
    return package


@pytest.mark.parametrize(
    ("reference", "missing"),
    [
        ("holders.mark.mark", None),
        ("mark.mark", None),
        ("mark.mark()", None),
        ("Holder.kind", None),
        ("Holder.gpu", None),
        ("Holder.uuid", "Holder.uuid"),
        # A variable, a file, or a value of another program.
        ("host.lost", None),
        ("journal.json", None),
        ("holders_mark.mark", "holders_mark"),
        ("mark.unmark", "mark.unmark"),
        ("mark.unmark()", "mark.unmark"),
        ("holders.marks.mark", "holders.marks"),
    ],
)
@pytest.mark.parametrize("form", ['"""See `%s`."""\n', "#: See `%s`.\nx = 1\n"])
def test_a_reference_to_something_that_does_not_exist_is_found(tree, reference, missing, form):
    (tree / "model.py").write_text(
        form % reference
        + "from .mark import Base\n\nclass Holder(Base):\n    def __init__(self, gpu):\n        self.gpu = gpu\n"
    )
    expected = ["holders/model.py:1: `%s`: %s does not exist" % (reference.rstrip("()"), missing)] if missing else []
    assert Names(tree.parent).wrong() == expected
