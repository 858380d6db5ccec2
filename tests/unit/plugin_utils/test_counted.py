# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that reports use a noun in the singular or plural as its number requires."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.counted import counted

PLUGINS = Path(__file__).resolve().parents[3] / "plugins"
FILES = [
    *(path for part in ("audit", "fleet", "rightsize", "sizing") for path in (PLUGINS / "plugin_utils" / part).glob("*.py")),
    PLUGINS / "filter" / "fleet_report.py",
    PLUGINS / "callback" / "fleet_summary.py",
]  # fmt: skip
#: A noun in the plural, after a number that may be 1.
PLURAL = re.compile(
    r"%d (?:of %d )?(?:more )?(?:GPUs|hosts|findings|reports|instances|workloads|queries|samples|cards|days)\b"
)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [((0, "GPU"), "0 GPUs"), ((1, "GPU"), "1 GPU"), ((2, "GPU"), "2 GPUs"), ((1, "query", "queries"), "1 query"),
     ((3, "query", "queries"), "3 queries")],
)  # fmt: skip
def test_nouns_match_their_number(arguments, text):
    assert counted(*arguments) == text


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PLUGINS)))
def test_no_text_has_a_plural_for_any_number(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert [found for text in texts for found in PLURAL.findall(text)] == []
