# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Extract text that people read from a source file."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Iterator

#: A block or line comment of C, or a string literal.
C_TEXT = re.compile(r"/\*(?P<block>.*?)\*/|//(?P<line>[^\n]*)|\"(?P<string>(?:\\.|[^\"\\\n])*)\"", re.DOTALL)
#: Characters before the text in a comment line.
MARKER = re.compile(r"^[ \t]*(?:#+:?|//+|\*)[ \t]?", re.MULTILINE)
HASH_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*")
Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Text:
    """A text with the number of its first line.

    The kind is `comment`, `docstring`, `function docstring`, `string` or `page`.
    """

    kind: str
    line: int
    body: str


def extract(name: str, source: str) -> list[Text]:
    """Return a file's texts. The file's suffix decides which texts these are."""
    if name.endswith(".py") or source.startswith("#!/usr/bin/env python3"):
        return list(_python(source))
    if name.endswith((".c", ".h")):
        return list(_c(source))
    if name.endswith((".yml", ".yaml")):
        return [Text("string", 1, MARKER.sub("", source)), *_hash_comments(source.splitlines(), {})]
    if name.endswith((".md", ".json")):
        return [Text("page", 1, source)]
    return [Text("string", 1, source), *_hash_comments(source.splitlines(), {})]


def _python(source: str) -> Iterator[Text]:
    """Yield comments, docstrings and strings that contain a space."""
    tree = ast.parse(source)
    spans: dict[int, list[tuple[int, int]]] = {}
    parts: set[int] = set()
    docstrings: dict[int, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, DEFINITIONS):
            text = _docstring(node)
            if text is not None:
                docstrings[id(text)] = "function docstring" if "Function" in type(node).__name__ else "docstring"
        elif isinstance(node, ast.JoinedStr):
            parts.update(map(id, node.values))
            _add_span(spans, node)
            body = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
            if " " in body:
                yield Text("string", node.lineno, body)
        elif isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
            if id(node) in parts:
                continue
            _add_span(spans, node)
            if isinstance(node.value, str) and (id(node) in docstrings or " " in node.value):
                yield Text(docstrings.get(id(node), "string"), node.lineno, node.value)
    yield from _hash_comments(source.split("\n"), spans)


def _docstring(node: Definition) -> ast.Constant | None:
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return first.value
    return None


def _add_span(spans: dict[int, list[tuple[int, int]]], node: ast.expr) -> None:
    """Record which columns (in bytes) of each line belong to a string."""
    last, last_column = node.end_lineno or node.lineno, node.end_col_offset or 0
    for line in range(node.lineno, last + 1):
        start = node.col_offset if line == node.lineno else 0
        end = last_column if line == last else 1 << 30
        spans.setdefault(line, []).append((start, end))


def _hash_comments(lines: list[str], spans: dict[int, list[tuple[int, int]]]) -> Iterator[Text]:
    """Yield the comments that start with `#` outside strings.

    Comments on consecutive lines are one text.
    """
    start = 0
    block: list[str] = []
    for number, line in enumerate(lines, 1):
        comment = _comment(line, spans.get(number, [])) if "#" in line else None
        alone = comment is not None and not line[: len(line) - len(comment)].strip()
        if block and not alone:
            yield Text("comment", start, "\n".join(block))
            block = []
        if comment is None:
            continue
        text = MARKER.sub("", comment)
        if alone:
            start = start if block else number
            block.append(text)
        else:
            yield Text("comment", number, text)
    if block:
        yield Text("comment", start, "\n".join(block))


def _comment(line: str, spans: list[tuple[int, int]]) -> str | None:
    for match in HASH_COMMENT.finditer(line):
        column = len(line[: match.start()].encode()) if spans else 0
        if not any(start <= column < end for start, end in spans):
            return match.group()
        # A string before the comment may contain a `#`.
        for other in re.finditer("#", line[match.start() + 1 :]):
            at = match.start() + 1 + other.start()
            column = len(line[:at].encode())
            if not any(start <= column < end for start, end in spans):
                return line[at:]
    return None


def _c(source: str) -> Iterator[Text]:
    """Yield comments and strings that contain a space.

    Line comments on consecutive lines are one text.
    """
    block: list[str] = []
    start, last = 0, -1
    line, position = 1, 0
    for match in C_TEXT.finditer(source):
        line += source.count("\n", position, match.start())
        position = match.start()
        if match["line"] is not None:
            if block and line != last + 1:
                yield Text("comment", start, "\n".join(block))
                block = []
            start = start if block else line
            block.append(match["line"].strip())
            last = line
        elif match["block"] is not None:
            yield Text("comment", line, MARKER.sub("", match["block"]))
        elif " " in match["string"]:
            yield Text("string", line, match["string"])
    if block:
        yield Text("comment", start, "\n".join(block))
