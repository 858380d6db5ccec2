# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The audit's page in a headless Chromium: on a phone, light and dark, with hostile names, and of a large fleet."""

from __future__ import annotations

import dataclasses
import json
import re

import browser
import page_fleet
import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit import report_html, report_index
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import WORDS, Holder, Subject
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.report_index import Entry

pytestmark = pytest.mark.skipif(
    browser.program() is None, reason="no Chromium is installed (Debian: apt-get install chromium)"
)

SCHEMES = ("light", "dark")
WIDTHS = (320, 390, 768, 1280)

#: The contrast of every text that is seen with the ground behind it, as WCAG 2.1 counts it, the lowest first.
CONTRASTS = """
(() => {
  const parts = (text) => (text.match(/[0-9.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const found = parts(getComputedStyle(one).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found.slice(0, 3);
      if (found[3] !== 0) throw new Error("half transparent: " + one.outerHTML);
    }
    throw new Error("no ground");
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.textContent.trim() || !element.getClientRects().length) continue;
    const [ink, behind] = [light(parts(getComputedStyle(element).color)), light(ground(element))];
    found.push([(Math.max(ink, behind) + 0.05) / (Math.min(ink, behind) + 0.05), node.textContent.trim().slice(0, 40)]);
  }
  return found.sort((a, b) => a[0] - b[0]);
})()
"""

#: Texts and boxes that stand out of the screen to the right, unless something around them cuts them off.
OUTSIDE = """
[...document.querySelectorAll("body *")].filter((one) => {
  const box = one.getBoundingClientRect();
  if (!box.width || box.right <= innerWidth + 0.5) return false;
  for (let around = one.parentElement; around; around = around.parentElement)
    if (getComputedStyle(around).overflowX !== "visible") return false;
  return true;
}).map((one) => one.outerHTML.slice(0, 120))
"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser.browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture
def page(tmp_path):
    """Of an audit to a file."""

    def write(audit):
        path = tmp_path / "audit.html"
        path.write_text(report_html.to_text(audit), encoding="utf-8")
        return path

    return write


def follow(chromium, selector):
    """Click, and be where it leads."""
    chromium.tell("document.querySelector(%s).click()" % json.dumps(selector))
    return chromium.tell("new Promise((done) => requestAnimationFrame(() => done(location.hash)))")


def shown(chromium, selector):
    """The texts of what is seen of all that the selector finds."""
    return chromium.tell(
        "[...document.querySelectorAll(%s)].filter((one) => one.getClientRects().length)"
        ".map((one) => one.textContent.trim())" % json.dumps(selector)
    )


LONG = "a-host-whose-name-nobody-thought-of-when-the-page-was-made-%02d.rack-17.hall-3.example.org"


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_stands_out_on_any_screen(chromium, page, width):
    holder = (Holder("process", "pid 1 (" + "python3-with-a-long-name-and-no-space" * 5 + ")"),)
    subject = Subject("tenant", LONG % 0, "GPU-" + "0" * 36, "0", "NVIDIA " + "X" * 60, name="t" * 63)
    further = [page_fleet.well(subject, holders=holder, missing=("who" * 40,), price_per_hour=None)]
    chromium.show(page(page_fleet.audit(3, name=LONG, further=further)), width=width)
    for place in ("", "#host-0"):
        assert not place or follow(chromium, ".map a") == place
        assert chromium.tell("innerWidth") == width
        assert chromium.tell(OUTSIDE) == []
        assert chromium.tell("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_text_can_be_read_in_both_schemes(chromium, page, scheme):
    chromium.show(page(page_fleet.audit(3)), scheme=scheme)
    ground = chromium.tell("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) > 3 * 128) == (scheme == "light")
    for link in ("", ".map a"):
        assert not link or follow(chromium, link)
        contrasts = chromium.tell(CONTRASTS)
        # https://www.w3.org/TR/WCAG21/#contrast-minimum
        assert len(contrasts) > 40 and contrasts[0][0] >= 4.5, contrasts[:5]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_verdict_has_a_colour_of_its_own(chromium, page, scheme):
    chromium.show(page(page_fleet.audit(1)), scheme=scheme)
    colours = chromium.tell(
        "Object.fromEntries([...document.querySelectorAll('#fleet .gpus i')]"
        ".map((one) => [one.className, getComputedStyle(one).backgroundColor]))"
    )
    assert set(colours) == {"c-" + word for word in WORDS} and len(set(colours.values())) == len(WORDS)


def test_a_host_s_page_shows_when_its_link_is_followed_and_alone(chromium, page):
    chromium.show(page(page_fleet.audit(3)))
    assert shown(chromium, ".host") == [] and len(shown(chromium, "#fleet")) == 1
    assert follow(chromium, ".map a:nth-child(2)") == "#host-1"
    assert shown(chromium, ".host h2") == ["gpu-0001.example.org"]
    assert shown(chromium, "#fleet, header, .tiles, #findings") == []
    assert len(shown(chromium, ".host .gpu")) == 8
    assert follow(chromium, "#host-1 a") == "#fleet"
    assert shown(chromium, ".host") == [] and len(shown(chromium, "#findings")) == 1


def test_a_finding_leads_to_its_host(chromium, page):
    chromium.show(page(page_fleet.audit(3)))
    place = chromium.tell("document.querySelector('#findings td a').textContent")
    follow(chromium, "#findings td a")
    assert shown(chromium, ".host h2") == [place.split()[0]]


HOSTILE = (
    "<img src=x onerror='window.caught=1'>", "</style><script>window.caught=1</script>", "\"'><svg onload=window.caught=1>",
    "{{ 7 * 7 }}{% raw %}", "javascript:window.caught=1", "&lt;b&gt;",
)  # fmt: skip


def test_hostile_names_are_text(chromium, page):
    further = []
    for number, text in enumerate(HOSTILE):
        subject = Subject("gpu", text, text, text, text, text)
        holders = (Holder(text, text),)
        further.append(page_fleet.well(subject, **page_fleet.REST, holders=holders, missing=(text,)))
        tenant = dataclasses.replace(subject, kind="tenant", name=text)
        further.append(page_fleet.well(tenant, price_per_hour=None))
        instance = dataclasses.replace(
            subject, kind="mig_instance", mig_instance=text, mig_profile=text, host=str(number)
        )
        further.append(page_fleet.well(instance))
    made = page_fleet.audit(1, further=further)
    sources = dataclasses.replace(made.sources, prometheus=HOSTILE[1], missing=HOSTILE)
    chromium.show(page(dataclasses.replace(made, sources=sources, currency=HOSTILE[0])))
    assert chromium.tell("document.querySelectorAll('script, img, iframe, object, link, b > b, svg svg').length") == 0
    attributes = chromium.tell(
        "[...new Set([...document.querySelectorAll('*')].flatMap((one) => one.getAttributeNames()))]"
    )
    assert not [name for name in attributes if name.startswith("on") or name in ("src", "srcdoc", "action")]
    text = chromium.tell("document.body.textContent")
    titles = chromium.tell("[...document.querySelectorAll('[title]')].map((one) => one.title).join('|')")
    for name in HOSTILE:
        assert name in text and name in titles
    # Every link leads to a part of the page itself.
    assert all(href.startswith("#") for href in chromium.tell(
        "[...document.querySelectorAll('a')].map((one) => one.getAttribute('href'))"
    ))  # fmt: skip
    assert chromium.tell("typeof window.caught") == "undefined"


def test_it_loads_nothing_from_anywhere(chromium, page):
    path = page(page_fleet.audit(3))
    chromium.show(path)
    follow(chromium, ".map a")
    assert [url for url in chromium.requests if url != "about:blank"] == [path.as_uri()]


def test_a_fleet_of_a_thousand_hosts_opens(chromium, page):
    path = page(page_fleet.audit(1000))
    # A page that can still be mailed.
    assert path.stat().st_size < 12e6
    chromium.show(path)
    assert chromium.tell("document.querySelectorAll('.map a').length") == 1000
    assert chromium.tell("document.querySelectorAll('.map i').length") == 10000
    assert len(shown(chromium, "#findings tbody tr")) == 100
    assert follow(chromium, ".map a:nth-child(1000)") == "#host-999"
    assert shown(chromium, ".host h2") == ["gpu-0999.example.org"]


def test_an_audit_with_nothing_in_it_is_a_page_too(chromium, page):
    empty = dataclasses.replace(page_fleet.audit(0), findings=(), history=())
    chromium.show(page(empty), width=390)
    assert "Nothing asks for anything" in chromium.tell("document.body.textContent")
    assert chromium.tell("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_of_all_reports(chromium, tmp_path, width, scheme):
    entries = [
        Entry(
            "2026-11-%02dT060000Z" % (day + 1), page_fleet.NOW + day * 86400, "so it was",
            {word: 1000 + 37 * day * number for number, word in enumerate(WORDS)}, day, 2, 1234567.0 * (day + 1), "EUR",
        )
        for day in range(20)
    ]  # fmt: skip
    path = tmp_path / "index.html"
    path.write_text(report_index.to_text(entries), encoding="utf-8")
    chromium.show(path, width=width, scheme=scheme)
    assert chromium.tell(OUTSIDE) == []
    assert chromium.tell("document.documentElement.scrollWidth") <= width
    contrasts = chromium.tell(CONTRASTS)
    assert len(contrasts) > 200 and contrasts[0][0] >= 4.5, contrasts[:5]
    assert len(shown(chromium, "tbody tr")) == 20 and len(shown(chromium, "svg")) == 2
    assert [url for url in chromium.requests if url != "about:blank"] == [path.as_uri()]
