# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check any page in a browser.

The page must fit the screen, be readable, and contain only text and style.
"""

from __future__ import annotations

import re

#: Names as attackers may choose them to make a page act.
HOSTILE = (
    "<img src=x onerror='window.caught=1'>", "</style><script>window.caught=1</script>", "\"'><svg onload=window.caught=1>",
    "{{ 7 * 7 }}{% raw %}", "javascript:window.caught=1", "&lt;b&gt;",
)  # fmt: skip

#: A long name without a place for a line break.
LONG = "a_name_that_nobody_thought_of_when_the_page_was_made.rack17.hall3.example.org"

_CONTRASTS = """
() => {
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
    if (!node.textContent.trim() || !element.checkVisibility()) continue;
    const [ink, behind] = [light(parts(getComputedStyle(element).color)), light(ground(element))];
    found.push([(Math.max(ink, behind) + 0.05) / (Math.min(ink, behind) + 0.05), node.textContent.trim().slice(0, 40)]);
  }
  return found.sort((a, b) => a[0] - b[0]);
}
"""

_OUTSIDE = """
() => [...document.querySelectorAll("body *")].filter((one) => {
  const box = one.getBoundingClientRect();
  if (!box.width || (box.right <= innerWidth + 0.5 && box.left >= -0.5)) return false;
  for (let around = one.parentElement; around; around = around.parentElement)
    if (getComputedStyle(around).overflowX !== "visible") return false;
  return true;
}).map((one) => one.outerHTML.slice(0, 120))
"""

_CLIPPED = """
() => {
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (!node.textContent.trim() || !node.parentElement.checkVisibility()) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const text = range.getBoundingClientRect();
    for (let around = node.parentElement; around && around !== document.body; around = around.parentElement) {
      const style = getComputedStyle(around), box = around.getBoundingClientRect();
      // A box with a border or a ground of its own is drawn around its text.
      const framed = style.borderTopWidth !== "0px" || !["rgba(0, 0, 0, 0)", "transparent"].includes(style.backgroundColor);
      if (style.display === "inline" || (style.overflowX === "visible" && !framed)) continue;
      if (text.left < box.left - 1 || text.right > box.right + 1 || text.top < box.top - 1 || text.bottom > box.bottom + 1)
        found.push(node.textContent.trim().slice(0, 40) + " in " + around.outerHTML.slice(0, 80));
    }
  }
  return found;
}
"""

_ACTIVE = """
() => {
  const all = [...document.querySelectorAll("*")];
  const elements = ["script", "img", "iframe", "object", "embed", "link", "form", "base"];
  const addresses = ["src", "srcdoc", "srcset", "action", "formaction"];
  const attributes = new Set(all.flatMap((one) => one.getAttributeNames()));
  return [
    ...all.filter((one) => elements.includes(one.localName)).map((one) => one.outerHTML.slice(0, 120)),
    ...[...attributes].filter((name) => name.startsWith("on") || addresses.includes(name)),
    ...("caught" in window ? ["a name became a script"] : []),
  ];
}
"""


def contrasts(page):
    """Return each visible text's contrast with its background, lowest first.

    The contrast is as defined in WCAG 2.1.
    """
    return page.evaluate(_CONTRASTS)


def outside(page):
    """Return texts and boxes that extend beyond the screen's left or right edge.

    The function ignores content that a surrounding element clips.
    """
    return page.evaluate(_OUTSIDE)


def clipped(page):
    """Return visible texts that do not fit into their box.

    The box clips the text or has a visible edge.
    """
    return page.evaluate(_CLIPPED)


def active(page):
    """Return all elements that could load something or act."""
    return page.evaluate(_ACTIVE)


def is_dark(page):
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, re.findall(r"\d+", ground)[:3])) < 3 * 128


def shown(page, selector):
    """Return the visible texts of all elements that the selector matches."""
    found = page.locator(selector).filter(visible=True)
    return [text.strip() for text in found.all_text_contents()]


def follow(page, selector):
    """Click on the first visible match, and return the part that the link leads to."""
    page.locator(selector).filter(visible=True).first.click()
    return page.evaluate("location.hash")


def parts(page):
    """Yield the page as opened, unfolded, at each folded section, and at a host."""
    yield ""
    if page.locator("details:not([open])").count():
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        yield "unfolded"
    # Following a link folds the previous section again.
    links = page.locator(".fold h2 a, #findings .more a").filter(visible=True)
    for hash_ in links.evaluate_all("all => all.map((one) => one.hash)"):
        page.evaluate("hash => { location.hash = hash; }", hash_)
        yield hash_
    if page.locator(".map a").count():
        yield follow(page, ".map a")
