# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the documentation site, and open its pages in Chromium.

The build itself fails on Sphinx's warnings, such as a broken reference, and on a page's links that lead nowhere.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.audit import browser

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("OPENFLEET_DOCS_PYTHON", ".cache/venv-docs/bin/python")
REFERENCE = "reference/collections/openfleet/gpu"

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "html"
    done = subprocess.run(
        [str(ROOT / PYTHON), "tools/site/build.py", str(folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return folder


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    if browser.program() is None:
        pytest.skip("no Chromium")
    with browser.browser(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture
def show(chromium, site):
    with contextlib.ExitStack() as stack:
        yield lambda name, **how: stack.enter_context(browser.screen(chromium, site / name, **how)).page


def test_every_page_of_the_documentation_is_on_the_site(site):
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert (site / ("index.html" if name == "README.html" else name)).is_file(), page
    for role in (ROOT / "roles").iterdir():
        assert (site / REFERENCE / f"{role.name}_role.html").is_file()


def test_pages_reference_no_checkout_of_the_collection(site):
    """Links to files outside the site name the repository."""
    for page in site.rglob("*.html"):
        links = re.findall(r'href="([^"#?]+)', page.read_text(encoding="utf-8"))
        local = [link for link in links if not re.match(r"[a-z]+:", link)]
        assert [link for link in local if not (page.parent / link).exists()] == [], page


def test_no_page_shows_an_error_of_the_theme(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 150
    assert [page for page in pages if "ERROR: Adding a table of contents" in page.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize(
    "name", ["index.html", "start.html", "gpu_layout.html", "reference/collections/openfleet/gpu/layout_module.html"]
)
def test_pages_fit_the_screen(show, name, width):
    page = show(name, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_search_works_without_a_network(show):
    page = show("search.html")
    page.goto(page.url + "?q=waterline")
    page.wait_for_selector("#search-results li a")
    found = page.eval_on_selector_all("#search-results li a", "links => links.map(link => link.href)")
    assert any("vgpu-colocate" in link for link in found), found
