# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that documentation has a sample of each value that a plugin returns."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, Iterator, Mapping

import pytest
import yaml

PLUGINS = Path(__file__).resolve().parents[3] / "plugins"
FILES = [path for folder in ("modules", "filter") for path in sorted((PLUGINS / folder).glob("*.py"))]
#: The Python types of the documented types. YAML may read a float as an integer.
TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "dict": (dict,),
    "float": (float, int),
    "int": (int,),
    "list": (list,),
    "path": (str,),
    "raw": (object,),
    "str": (str,),
}
# If a plugin returns only Ansible's common values, such as `changed`, its block is empty.
NOTHING = ["plugins/modules/systemd_reload.py"]


def returned(path: Path) -> Mapping[str, Any]:
    """Return the RETURN block of a plugin. Raises StopIteration if it has none."""
    assigned = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.Assign)]
    block = next(node.value for node in assigned if ast.unparse(node.targets[0]) == "RETURN")
    return yaml.safe_load(ast.literal_eval(block)) or {}


def has_type(value: object, name: str) -> bool:
    """Return whether a value has a documented type. True and false are not numbers."""
    return isinstance(value, TYPES[name]) and (name in ("bool", "raw") or not isinstance(value, bool))


def problems(values: Mapping[str, Any], where: str = "", covered: bool = False) -> Iterator[str]:
    """Yield the problems of the samples of values.

    `covered` is true if a value around them has a sample.
    """
    for name, value in values.items():
        place = where + name
        parts = value.get("contains", {})
        if "sample" in value:
            yield from sample_problems(value, place)
        elif not parts and not covered:
            yield "%s: no sample" % place
        yield from problems(parts, place + ".", covered or "sample" in value)


def sample_problems(value: Mapping[str, Any], place: str) -> Iterator[str]:
    """Yield the problems of one sample."""
    sample = value["sample"]
    if sample in (None, "", [], {}):
        yield "%s: an empty sample" % place
    elif not has_type(sample, value["type"]):
        yield "%s: %r is no %s" % (place, sample, value["type"])
    elif value["type"] == "list":
        yield from (
            "%s: %r is no %s" % (place, e, value["elements"]) for e in sample if not has_type(e, value["elements"])
        )
    rows = sample if isinstance(sample, list) else [sample]
    if "contains" in value:
        yield from (
            "%s: %s is not documented" % (place, key)
            for row in rows
            for key in sorted(set(row) - set(value["contains"]))
        )


@pytest.mark.parametrize("path", FILES, ids=lambda path: "%s-%s" % (path.parent.name, path.stem))
def test_each_returned_value_has_a_sample_of_its_type(path):
    assert list(problems(returned(path))) == []


def test_plugins_document_what_they_return():
    empty = [path.relative_to(PLUGINS.parent).as_posix() for path in FILES if not returned(path)]
    assert empty == NOTHING


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"type": "str"}, "a: no sample"),
        ({"type": "str", "sample": 580.1}, "a: 580.1 is no str"),
        ({"type": "int", "sample": True}, "a: True is no int"),
        ({"type": "list", "elements": "str", "sample": []}, "a: an empty sample"),
        ({"type": "list", "elements": "str", "sample": [1]}, "a: 1 is no str"),
        ({"type": "dict", "contains": {"b": {"type": "str"}}}, "a.b: no sample"),
        ({"type": "dict", "contains": {"b": {"type": "str"}}, "sample": {"c": "x"}}, "a: c is not documented"),
    ],
)
def test_wrong_samples_are_found(value, problem):
    assert list(problems({"a": value})) == [problem]
