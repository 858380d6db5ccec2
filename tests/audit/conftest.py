# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Provide a browser for tests of pages."""

from __future__ import annotations

import contextlib

import pytest

from tests.audit import browser


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """Return one browser for all of a process's tests."""
    if browser.program() is None:
        if browser.is_to_be_there():
            pytest.fail(
                "Chromium is not installed: make setup-test, or apt-get install --no-install-recommends chromium"
            )
        pytest.skip("no Chromium: the distribution has none but a snap; Google's Chrome would do")
    with browser.browser(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture
def show(chromium, tmp_path):
    """Return a function that opens HTML as a file, and returns the page.

    After the test, check that the page requested nothing else and wrote no messages.
    """
    with contextlib.ExitStack() as stack:
        opened = []

        def show(html, **how):
            path = tmp_path / ("page-%d.html" % len(opened))
            path.write_text(html, encoding="utf-8")
            opened.append(stack.enter_context(browser.screen(chromium, path, **how)))
            return opened[-1].page

        yield show
        assert [(one.requests, one.said) for one in opened] == [([one.address], []) for one in opened]
