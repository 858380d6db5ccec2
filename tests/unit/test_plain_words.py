# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation and messages use plain English: words that readers stumble over are not in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORDS = re.compile(
    r"\b(?:whoever|nobody|somebody|anew|but\s+for|by\s+and\s+by|(?:is|are)\s+told\s+of)\b", re.IGNORECASE
)
#: What users and contributors read: pages, playbooks, argument specs, tasks, rules, and the text and comments of plugins.
PATTERNS = (
    "*.md",
    "changelogs/fragments/*.yml",
    "docs/*.md",
    "docs/*.json",
    "playbooks/**/*.yml",
    "playbooks/**/*.j2",
    "plugins/**/*.py",
    "roles/*/README.md",
    "roles/*/defaults/main.yml",
    "roles/*/meta/argument_specs.yml",
    "roles/*/tasks/*.yml",
    "roles/*/files/**/*.py",
    "roles/gpu_monitoring/dashboards/*.py",
    "roles/gpu_monitoring/files/**/*.yml",
)
FILES = sorted({str(path.relative_to(ROOT)) for pattern in PATTERNS for path in ROOT.glob(pattern)})


def found(name):
    """The words in the file, each with its line."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return ["line %d: %s" % (text.count("\n", 0, match.start()) + 1, match.group()) for match in WORDS.finditer(text)]


@pytest.mark.parametrize("name", FILES)
def test_a_file_has_none_of_the_words(name):
    assert found(name) == []
