# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that CONTRIBUTING.md names only existing files, and has a complete map."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
#: A row of a table, a list item with its continuation lines, or a paragraph.
BLOCK = re.compile(r"^\|.*$|^(?:[-0-9][-. ]|\S).*(?:\n(?![-|#\n]|\d+\. ).+)*", re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")
#: A path in the repository, or a file name with a suffix. Commands and paths on hosts must not match.
PATH = re.compile(r"(?:[\w*.-]+/)+[\w*.-]*|[\w*-]+(?:\.css)?\.(?:py|yml|json|md|prom|j2|c)", re.ASCII)
FOLDERS = ("playbooks", "tools")
BASES = [ROOT, ROOT / "plugins/module_utils", ROOT / "plugins/plugin_utils"]


def named(text):
    """Yield each path in code spans, with the names before it in its block."""
    for block in BLOCK.finditer(text):
        before = []
        for word in CODE.findall(block.group()):
            if PATH.fullmatch(word):
                yield pytest.param(word, tuple(before), id=word)
                before.append(word)
            elif word in FOLDERS:
                before.append(word)


def found(word, before):
    """Return the files that a name refers to.

    The files are below the root, a plugin folder, or a folder that the block named before.
    """
    pattern = re.sub(r"[A-Z]{4,}", "*", word)
    near = {folder for each in before for path in found(each, ()) for folder in (path, *path.parents)}
    folders = [folder for folder in near if ROOT in folder.parents]
    return [path for base in [*BASES, *folders] if base.is_dir() for path in base.glob(pattern)]


PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "plugins/module_utils/techniques/README.md"]
BLOCKS = [each for page in PAGES for each in named(page.read_text("utf-8"))]


@pytest.mark.parametrize(("word", "before"), BLOCKS)
def test_paths_exist(word, before):
    assert found(word, before)


def folders_of_code():
    """Yield the plugin folders that the map of CONTRIBUTING.md must name."""
    for base in (ROOT / "plugins", ROOT / "plugins/module_utils", ROOT / "plugins/plugin_utils"):
        for folder in sorted(base.iterdir()):
            if folder.is_dir() and not folder.name.startswith("_") and folder not in BASES:
                yield pytest.param(folder, id=str(folder.relative_to(ROOT)))


@pytest.mark.parametrize("folder", list(folders_of_code()))
def test_folders_are_on_the_map(folder):
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("\n## Map\n")[2].partition("\n## ")[0]
    path = str(folder.relative_to(ROOT))
    beside = r"`%s/[\w.*]+`(?:, `[\w.*]+`)*, `%s`" % (re.escape(path.rpartition("/")[0]), folder.name)
    assert "`%s`" % path in text or re.search(beside, text)


def loose_files():
    """Yield the files outside packages that the map of CONTRIBUTING.md must name."""
    for pattern in (
        "plugins/module_utils/*.py",
        "plugins/plugin_utils/*.py",
        "playbooks/*.yml",
        "tests/*",
        "tools/*.py",
    ):
        for path in sorted(ROOT.glob(pattern)):
            if path.is_file() and path.name != "__init__.py":
                yield pytest.param(path, id=str(path.relative_to(ROOT)))


@pytest.mark.parametrize("path", list(loose_files()))
def test_loose_files_are_on_the_map(path):
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("\n## Map\n")[2].partition("\n## ")[0]
    assert re.search(r"`(?:[\w/]+/)?%s`" % re.escape(path.name), text)


def test_few_files_are_outside_packages():
    # A new file of module_utils must be put into a package.
    assert len(list((ROOT / "plugins/module_utils").glob("*.py"))) <= 12


def test_pages_name_only_existing_playbooks():
    """Check names of playbooks, also without a suffix."""
    row = re.search(r"^\| `playbooks` \|(.*)$", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)[1]
    playbooks = {path.name for path in (ROOT / "playbooks").glob("*.yml")}
    assert set(re.findall(r"\w+\.yml", row)) == playbooks
    outside_code = re.sub(r"`[^`]*`", "", row)
    assert not re.findall(r"\b(?:%s)\b" % "|".join(path[:-4] for path in playbooks), outside_code)


def test_contributing_is_one_page():
    assert len((ROOT / "CONTRIBUTING.md").read_text("utf-8").split()) <= 2000


def test_missing_path_is_detected():
    words = [each.values for each in named("1. `plugins/module_utils/models/NAME.json`, `gone.py` and `make test`.\n")]
    assert words == [
        ("plugins/module_utils/models/NAME.json", ()),
        ("gone.py", ("plugins/module_utils/models/NAME.json",)),
    ]
    assert [bool(found(*each)) for each in words] == [True, False]
