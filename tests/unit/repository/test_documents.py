# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that links have targets, pages are listed, and named make targets exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
DOCUMENTS = sorted(
    [
        *REPOSITORY.glob("*.md"),
        *(REPOSITORY / "docs").rglob("*.md"),
        *REPOSITORY.glob("roles/*/README.md"),
        REPOSITORY / "plugins" / "module_utils" / "models" / "README.md",
        REPOSITORY / "plugins" / "module_utils" / "techniques" / "README.md",
        REPOSITORY / "tests" / "README.md",
    ]
)
INDEX = REPOSITORY / "docs" / "README.md"


def prose(path):
    """Return the text without code blocks.

    In code, brackets are no links, and a hash starts no heading.
    """
    return re.sub(r"^( *)```.*?^\1```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(path):
    """Return the anchors that GitHub and Galaxy create for headings."""
    names = set()
    for heading in re.findall(r"^#+ (.+)$", prose(path), flags=re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        names.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return names


def links(path):
    return re.findall(r"\]\(([^)\s]+)\)", prose(path))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_links_have_targets(document):
    broken = []
    for link in links(document):
        if re.match(r"[a-z]+:", link):
            continue
        name, _hash, anchor = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_readme_fits_two_screens():
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    # Prose of two screens has so many words. Lines do not count, because each sentence has its own line.
    assert len(text.split()) <= 1000
    # Before the picture, three sentences say what the project is.
    badges = re.compile(r"^\[!\[.*\n", re.MULTILINE)
    introduction = badges.sub("", text).partition("![")[0].partition("\n")[2]
    assert len(re.findall(r"\.(?:\s|$)", introduction)) == 3


def test_pages_stay_short_enough_to_read():
    """Limit all pages to 60,000 words, which take five hours to read."""
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in (REPOSITORY / "docs").glob("*.md")) <= 60_000


def test_every_page_is_listed():
    docs = REPOSITORY / "docs"
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} - {INDEX.name}
    assert pages - set(links(INDEX)) == set()


def test_demo_installs_packages_for_right_sizing():
    """Without OR-Tools, the reader's first proposal would be worse."""
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    recipe = re.search(r"^demo:.*\n((?:\t.*\n)+)", makefile, flags=re.MULTILINE)[1]
    assert recipe.index("--requirement requirements-rightsize.txt") < recipe.index("tests/lab/demo.py")
    assert "ortools" in (REPOSITORY / "requirements-rightsize.txt").read_text(encoding="utf-8")


def test_make_has_the_targets_that_documents_name():
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    named = {
        name
        for path in DOCUMENTS
        for name in re.findall(r"`make ([a-z]+(?:-[a-z]+)*)", path.read_text(encoding="utf-8"))
    }
    assert {"demo", "test", "test-fast", "test-thorough"} <= named
    listed = re.search(r"^legs :=((?:.*\\\n)*.*)", makefile, flags=re.MULTILINE)[1]
    legs = {"test-%s" % leg for leg in listed.replace("\\", "").split()}
    missing = [
        name
        for name in sorted(named - legs)
        if not re.search(r"^(?:[a-z-]+ )*%s(?: [a-z-]+)*:" % re.escape(name), makefile, flags=re.MULTILINE)
    ]
    assert missing == []
