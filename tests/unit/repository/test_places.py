# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that the folders of tests/unit mirror the repository's folders."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

UNIT = Path(__file__).resolve().parents[1]
ROOT = UNIT.parents[1]
#: One folder has files that tests read, and the other has tests of the whole repository.
OWN = ("data", "repository")
#: Folders outside plugins that have unit tests.
OUTSIDE = ("playbooks", "roles", "tests", "tools")


def test_each_folder_has_the_name_of_the_tested_folder():
    folders = {path.parent.relative_to(UNIT) for path in UNIT.rglob("test_*.py")}
    inside = {folder for folder in folders if folder.parts and folder.parts[0] not in (*OWN, *OUTSIDE)}
    assert [str(folder) for folder in sorted(inside) if not (ROOT / "plugins" / folder).is_dir()] == []
    assert not list(UNIT.glob("test_*.py")), "move the file to the folder of the code that it tests"


def test_names_of_unit_tests_are_unique():
    names = Counter(path.name for path in UNIT.rglob("test_*.py"))
    assert [name for name, number in names.items() if number > 1] == []
