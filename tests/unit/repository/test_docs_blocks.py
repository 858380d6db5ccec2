# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse the code blocks of the documentation that are marked yaml or json.

A block with only a part of a document is marked text.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.core

REPOSITORY = Path(__file__).parents[3]
BLOCK = re.compile(r"^( *)```([^\n`]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
PAGES = [
    *(REPOSITORY / name for name in ("README.md", "SECURITY.md")),
    *sorted(REPOSITORY.glob("docs/**/*.md")),
    *sorted(REPOSITORY.glob("roles/*/README.md")),
]


class UniqueKeys(yaml.SafeLoader):
    """Refuse duplicate keys in a mapping, which YAML forbids and PyYAML accepts."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _value in node.value]
        twice = sorted({str(key) for key in keys if keys.count(key) > 1})
        if twice:
            raise yaml.constructor.ConstructorError(None, None, "twice: %s" % ", ".join(twice), node.start_mark)
        return super().construct_mapping(node, deep)


def blocks(text, language):
    """Return (line, text) of each code block.

    The text has no indentation of the block.
    """
    for found in BLOCK.finditer(text):
        indent, name, body = found.groups()
        if name.strip() == language:
            yield text.count("\n", 0, found.start()) + 1, re.sub("^" + indent, "", body, flags=re.MULTILINE)


def shown(language):
    for page in PAGES:
        name = str(page.relative_to(REPOSITORY))
        for line, body in blocks(page.read_text(encoding="utf-8"), language):
            yield pytest.param(body, id="%s:%d" % (name, line))


@pytest.mark.parametrize("body", list(shown("yaml")))
def test_yaml_blocks_parse(body):
    documents = list(yaml.load_all(body, UniqueKeys))
    assert documents
    assert all(isinstance(document, (dict, list)) for document in documents)


@pytest.mark.parametrize("body", list(shown("json")))
def test_json_blocks_parse(body):
    json.loads(body)


def test_other_spellings_of_yaml_do_not_escape():
    pages = {page.name: BLOCK.findall(page.read_text(encoding="utf-8")) for page in PAGES}
    odd = [
        (page, name) for page, found in pages.items() for _, name, _ in found if "ya" in name.lower() or "yml" in name
    ]
    assert {name for _, name in odd} == {"yaml"}


@pytest.mark.parametrize("body", ["a: b: c", "a: 1\na: 2", "just words"])
def test_broken_blocks_are_detected(body):
    ((line, found),) = blocks("Text\n\n  ```yaml\n  %s\n  ```\n" % body.replace("\n", "\n  "), "yaml")
    assert line == 3
    with pytest.raises((yaml.YAMLError, AssertionError)):
        test_yaml_blocks_parse(found)
