# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that docstrings and comments name only things that exist."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path
from typing import Iterator

import pytest

ROOT = Path(__file__).resolve().parents[3]
#: Folders and files whose code defines names. Docstrings of tests may also name what tests define.
SOURCES = ("plugins", "roles", "playbooks", "molecule", "tools", "meta", "inventories", "Makefile", "pyproject.toml")
_DOTTED = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+"
_WORD = r"_?[a-z][a-z0-9]*_\w*[^\W_]"
# A dotted name or a word with an underscore in single backquotes, with or without a call: `planner.plan`, `run_tool()`.
_QUOTED = re.compile(r"(?<!`)`(%s|%s)(?:\([^`()]*\))?`(?!`)" % (_DOTTED, _WORD))
# `run()`, run(), or a module in parentheses: (holders_sockets).
_CALL = re.compile(r"(?<![\w.`'\"%%-])(?:([A-Za-z_]\w*)\(\)|\((%s)\))(?![\w'\"])" % _WORD)
# errors.py, tests/apart.py, roles/gpu_layout/tasks/main.yml
_FILE = re.compile(r"(?<![\w./~*%{}$<>-])((?:[\w.-]+/)*[\w-]+\.(?:py|yml|j2))(?![\w*/-])")
# Suffixes of file names: `journal.json` is a file.
_SUFFIXES = {"json", "py", "yml", "yaml", "md", "c", "h", "toml", "service", "max", "prom", "cfg", "j2", "txt", "conf"}
#: Placeholders are upper case: bench_GROUP.py.
_PLACEHOLDER = re.compile("[A-Z]{4}")
#: These are functions of the kernel, of io_uring and of the C library.
EXCEPTIONS = {"symbol_get", "io_uring_close_ring_fd", "pthread_exit"}


class Names:
    """The modules of source folders and their members, from the syntax trees."""

    def __init__(self, root: Path, *folders: str) -> None:
        self._root = root
        #: Members by the name of a module, package or class. Several files may have one module name.
        self.members: dict[str, set[str]] = {}
        #: All identifiers and words of short strings in the code, and all words of other files.
        self.words: set[str] = set()
        #: Paths relative to the root, paths in strings of the code, and all their suffixes: `holders/mark.py`, `mark.py`.
        self.files: set[str] = set()
        #: Line and text of each docstring and comment, by file.
        self.texts: dict[Path, list[tuple[int, str]]] = {}
        for folder in folders:
            self.read(folder)

    def read(self, folder: str) -> None:
        """Add the names in a folder or file below the root."""
        for path in _text_files(self._root / folder):
            name = path.relative_to(self._root)
            self.files.update(_ends(str(name)))
            self.words.update(name.with_suffix("").parts)
            text = path.read_text("utf-8", "replace")
            if path.suffix != ".py":
                if path.suffix != ".md":
                    self.words.update(re.findall(r"\w+", text))
                    self.files.update(end for found in _FILE.findall(text) for end in _ends(found))
                continue
            tree = ast.parse(text)
            self.texts[name] = [*_docstrings(tree), *_comments(text)]
            self._add(name, tree)

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
                self.files.update(end for found in _files(node) for end in _ends(found))

    def wrong(self, folder: str = "") -> list[str]:
        """Return each wrong reference in a folder, with file and line."""
        return [
            "%s:%d: `%s`: %s does not exist" % (path, line, reference, missing)
            for path, texts in self.texts.items()
            if str(path).startswith(folder)
            for line, text in texts
            for reference, missing in self.missing_in(text)
        ]

    def missing_in(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield each wrong reference in a text, and the part of it that does not exist."""
        references = [(name, self.missing(name)) for name in _QUOTED.findall(text)]
        for names in _CALL.findall(text):
            references += [(name, None if self.exists(name) else name) for name in names if name]
        references += [(name, None if name in self.files else name) for name in _FILE.findall(text)]
        yield from ((name, missing) for name, missing in references if missing and not _PLACEHOLDER.search(name))

    def exists(self, name: str) -> bool:
        """Return whether a name is a module, or appears in code."""
        return name in self.members or name in self.words or name in EXCEPTIONS

    def missing(self, reference: str) -> str | None:
        """Return the part of a dotted reference that does not exist, or None.

        The first name is checked if it is a module, a package or a class, or if it appears nowhere in the code.
        """
        first, *rest = reference.split(".")
        if rest and rest[-1] in _SUFFIXES:
            return None
        if first not in self.members:
            return None if self.exists(first) else first
        owner = first
        for name in rest:
            if owner not in self.members:
                return None
            if name not in self._inherited(owner):
                return "%s.%s" % (owner, name)
            owner = name
        return None

    def _inherited(self, owner: str) -> set[str]:
        """Return the members of a module, package or class, with inherited members."""
        found, queue = set(), [owner]
        seen = set(queue)
        while queue:
            members = self.members.get(queue.pop(), set())
            found |= {name for name in members if not name.startswith("<")}
            bases = {name[1:] for name in members if name.startswith("<")} - seen
            seen |= bases
            queue += bases
        return found


def _text_files(place: Path) -> Iterator[Path]:
    for path in [place] if place.is_file() else sorted(place.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and b"\0" not in path.read_bytes()[:4096]:
            yield path


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
    """Yield the names of the base classes, each with a leading "<"."""
    for base in node.bases:
        yield "<" + ast.unparse(base).rpartition(".")[2]


def _words(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.arg, ast.keyword)):
        yield node.arg or ""
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.alias):
        yield from node.name.split(".")
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 60:
        yield from re.findall(r"\w+", node.value)


def _ends(path: str) -> Iterator[str]:
    parts = path.split("/")
    yield from ("/".join(parts[number:]) for number in range(len(parts)))


def _files(node: ast.AST) -> Iterator[str]:
    """Yield the file names in a string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from re.findall(r"[\w./-]+\.\w+", node.value)


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


@pytest.mark.slow
def test_references_in_docstrings_and_comments_exist():
    names = Names(ROOT, *SOURCES)
    wrong = names.wrong("plugins")
    names.read("tests")
    assert wrong + names.wrong("tests") == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Write a source tree with a package of two modules."""
    package = tmp_path / "holders"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "mark.py").write_text("class Base:\n    kind = 1\n\ndef mark_all(host):\n    return host.gpus\n")
    (tmp_path / "main.yml").write_text("gpu_layout: []  # read by tasks/plan.yml\n")
    return package


@pytest.mark.parametrize(
    ("reference", "missing"),
    [
        ("`holders.mark.mark_all`", None),
        ("`mark.mark_all`", None),
        ("`mark.mark_all()`", None),
        ("`mark_all(host)` and mark_all()", None),
        ("`Holder.kind`", None),
        ("`Holder.gpu`", None),
        ("`gpu_layout` of main.yml and holders/mark.py, and bench_GROUP.py", None),
        # These are a variable, a file, and a value of another program.
        ("`host.lost`", None),
        ("`journal.json`", None),
        ("/proc/PID/maps, os.path.join(a, b) and `nvidia-smi -q`", None),
        ("`Holder.uuid`", "Holder.uuid"),
        ("`holders_mark.mark`", "holders_mark"),
        ("`holders.marks.mark`", "holders.marks"),
        ("`mark.unmark`", "mark.unmark"),
        ("`mark.unmark()`", "mark.unmark"),
        ("`unmark_all(host)`", "unmark_all"),
        ("`holders_sockets`", "holders_sockets"),
        ("None if it cannot be determined (holders_sockets).", "holders_sockets"),
        ("Call unmark() first.", "unmark"),
        ("As in sockets.py", "sockets.py"),
        ("As in `drain/mark.py`.", "drain/mark.py"),
        ("As in (holders/tasks/main.yml)", "holders/tasks/main.yml"),
    ],
)
@pytest.mark.parametrize("form", ['"""See %s"""\n', "#: See %s\nx = 1\n"])
def test_a_reference_to_something_that_does_not_exist_is_found(tree, reference, missing, form):
    (tree / "model.py").write_text(
        form % reference
        + "from .mark import Base\n\nclass Holder(Base):\n    def __init__(self, gpu):\n        self.gpu = gpu\n"
    )
    wrong = Names(tree.parent, "").wrong()
    assert [line.rpartition(": ")[2] for line in wrong] == ([missing + " does not exist"] if missing else [])
    assert all(line.startswith("holders/model.py:1: ") for line in wrong)
