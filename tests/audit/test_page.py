# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test every page in a headless Chromium.

The tests show pages on a phone and on paper, in light and dark, with hostile names, and for a large fleet. The fixture
`show` checks that a page requests nothing else and writes nothing to the console.
"""

from __future__ import annotations

import pytest

from tests.audit import page_fleet, page_index, page_layout, page_proposal
from tests.audit.page_checks import HOSTILE, LONG, active, clipped, contrasts, follow, is_dark, outside, parts, shown
from tests.thorough import sample

PAGES = {"audit": page_fleet, "index": page_index, "layout": page_layout, "rightsize": page_proposal}
#: The narrowest phone and a usual screen. The thorough run also uses widths between them.
WIDTHS = sample((320, 390, 768, 1280), 3)

pytestmark = pytest.mark.parametrize("made", PAGES.values(), ids=PAGES)


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_stands_out_on_any_screen(show, made, width):
    page = show(made.stretched(LONG), width=width)
    for _part in parts(page):
        assert page.evaluate("innerWidth") == width
        assert outside(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [390, 1280])
def test_no_label_is_clipped(show, made, width):
    for html in (made.usual(), made.stretched(LONG)):
        page = show(html, width=width)
        for _part in parts(page):
            assert clipped(page) == []


@pytest.mark.parametrize(
    ("scheme", "media"),
    [pytest.param("light", "screen", marks=pytest.mark.thorough), ("dark", "screen"), ("dark", "print")],
)
def test_every_text_can_be_read_in_both_schemes_and_on_paper(show, made, scheme, media):
    page = show(made.usual(), scheme=scheme, media=media)
    # Paper is always white.
    assert is_dark(page) == ((scheme, media) == ("dark", "screen"))
    for _part in parts(page):
        found = contrasts(page)
        # Minimum contrast: https://www.w3.org/TR/WCAG21/#contrast-minimum
        assert len(found) > 40 and found[0][0] >= 4.5, found[:5]


# A4 and Letter without margins of one centimetre, in CSS pixels.
@pytest.mark.parametrize("width", [718, pytest.param(740, marks=pytest.mark.thorough)])
def test_on_paper_nothing_is_cut_off_or_folded_away(show, made, width):
    page = show(made.stretched(LONG), width=width, media="print")
    assert outside(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("pre, .host").count() == len(shown(page, "pre, .host"))


def test_hostile_names_are_text(show, made):
    page = show(made.hostile(HOSTILE))
    assert active(page) == []
    text = page.locator("body").text_content()
    assert [name for name in HOSTILE if name not in text] == []
    # Every link leads to a part of the page, or to a report in the same folder.
    links = page.locator("a").evaluate_all("all => all.map((one) => one.href)")
    here = page.evaluate("location.href").partition("#")[0]
    folder = here.rpartition("/")[0] + "/"
    assert all(link.startswith((here + "#", folder)) for link in links)


def test_a_large_fleet_opens(show, made):
    html = made.large()
    # The page is small enough for a mail.
    assert len(html.encode()) < 12e6
    page = show(html)
    assert len(shown(page, "h1")) == 1 and active(page) == []
    if made is page_fleet:
        each_of_a_thousand_hosts_has_its_place(page)


def each_of_a_thousand_hosts_has_its_place(page):
    assert page.locator(".map a").count() == 1000
    assert page.locator(".map i").count() == 1000 * page_fleet.devices_of_a_host()
    assert len(shown(page, "#findings tbody tr[id]")) == 100
    assert follow(page, ".map a:nth-child(1000)") == "#host-999"
    assert shown(page, ".host h2") == ["gpu-0999.example.org"]


def test_one_with_nothing_in_it_is_a_page_too(show, made):
    page = show(made.empty(), width=390)
    assert len(shown(page, "h1")) == 1 and outside(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
