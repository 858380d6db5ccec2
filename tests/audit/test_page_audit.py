# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test features of the audit page and the report index, and the page checks.

The pages are opened in a headless Chromium.
"""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.ledger import CLASS_OF
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import WORDS
from tests.audit import browser, page_fleet, page_index
from tests.audit.page_checks import HOSTILE, active, contrasts, follow, outside, shown

COLOURS = """
(all) => Object.fromEntries(all.map((one) => [
  one.className.match(/[cw]-([a-z_]+)/)[1], getComputedStyle(one)[one.localName === "i" ? "backgroundColor" : "borderLeftColor"]
]))
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_verdict_has_a_colour_of_its_own_everywhere(show, scheme):
    page = show(page_fleet.usual(), scheme=scheme)
    cells = page.locator("#fleet .gpus i").evaluate_all(COLOURS)
    assert set(cells) == set(WORDS) and len(set(cells.values())) == len(WORDS)
    assert page.locator("#fleet .key i").evaluate_all(COLOURS) == cells
    assert page.locator(".tile[class*=w-]").evaluate_all(COLOURS) == cells
    assert page.locator(".badge").evaluate_all(COLOURS) == cells


def test_a_host_s_page_shows_when_its_link_is_followed_and_alone(show):
    page = show(page_fleet.usual())
    assert shown(page, ".host") == [] and len(shown(page, "#fleet")) == 1
    assert follow(page, ".map a:nth-child(2)") == "#host-1"
    assert shown(page, ".host h2") == ["gpu-0001.example.org"]
    assert shown(page, "#fleet, header, #take, .tiles, #findings") == []
    assert len(shown(page, ".host .gpu")) == page_fleet.gpus_of_a_host()
    assert follow(page, "#host-1 a") == "#fleet"
    assert shown(page, ".host") == [] and len(shown(page, "#findings")) == 1


def test_a_finding_leads_to_its_host(show):
    page = show(page_fleet.usual())
    place = shown(page, "#findings td a")[0]
    follow(page, "#findings td a")
    assert shown(page, ".host h2") == [place.split()[0]]


def test_headlines_say_what_to_take_back(show):
    page = show(page_fleet.usual())
    # On each of three hosts, bob's container has no process on one GPU. Alice's unit works elsewhere on the host.
    stop, ask, resize, free = (" ".join(text.split()) for text in shown(page, ".sum"))
    assert stop == "Stop now: 3 of 24 GPUs, 5,259 of 42,072 EUR per month"
    assert ask.startswith("Ask about ") and resize.startswith("Resize to free up to ") and free.endswith(" EUR).")


def test_first_table_has_what_a_message_to_an_owner_needs(show):
    page = show(page_fleet.usual())
    rows = page.locator("#take tbody").first.locator("tr:not(.action, .advice)")
    assert [" ".join(text.split()) for text in rows.all_inner_texts()] == [
        "bob team notebooks #notebooks container jupyter-bob gpu-%04d gpu 1 "
        "no process, no work for at least 14 days (limit 5.5 days) 1 GPU 1,753 EUR" % number
        for number in range(3)
    ]
    reasons = dict(zip(shown(page, "#take td.why"), shown(page, "#take td.owner")))
    # Alice's unit works on other GPUs of its host, so a stop would end its work.
    (spared,) = {text for text, owner in reasons.items() if owner == "alice" and "it works on other GPUs" in text}
    assert "ending it frees all " in spared


def test_findings_name_owners_in_the_order_of_the_first_table(show):
    page = show(page_fleet.usual())
    owners = shown(page, "#findings td[data-name='held by'] b")
    assert owners[:3] == ["bob"] * 3 and {"alice", "llm"} <= set(owners)


def test_gpus_of_the_map_have_numbers(show):
    page = show(page_fleet.usual())
    numbers = [str(number) for number in range(page_fleet.gpus_of_a_host())]
    assert shown(page, ".map a:first-child .gpus small") == numbers


def test_phone_shows_every_stop_with_its_reason_in_the_first_screen(show):
    page = show(page_fleet.usual(), width=390)
    reasons = page.locator("#take tbody").first.locator("td.why")
    boxes = [reason.bounding_box() for reason in reasons.all()]
    assert len(boxes) == 3 and all(box["y"] + box["height"] < 800 for box in boxes)
    # A row shows its owner, GPUs and cost on one line.
    cells = [page.locator("#take td.%s" % name).nth(1).bounding_box() for name in ("number", "money")]
    cells.append(page.locator("#take td.owner").first.bounding_box())
    assert len({round(cell["y"] + cell["height"] / 2) for cell in cells}) == 1


def test_phone_shows_headings_of_what_is_not_a_finding(show):
    wide, page = show(page_fleet.usual()), show(page_fleet.usual(), width=390)
    headings = shown(wide, ".fold h2")
    assert headings == ["Findings by verdict", "GPUs by class", "Use by owner", "Verdicts"]
    assert shown(page, ".fold") and shown(page, ".fold > :not(h2)") == [] and shown(page, ".fold h2") == headings
    for heading in headings:
        page.locator(".fold h2 a", has_text=heading).click()
        section = page.evaluate("location.hash")
        assert shown(page, section + " > *") == shown(wide, section + " > *")
    # Verdicts without a part take no space.
    follow(page, "#verdicts h2 a")
    assert shown(page, ".tile.none") == []
    # Nothing is folded on a wide screen, so a link that shows more has no use there.
    findings, more = "#findings tr[id]", "#findings .more a"
    assert shown(wide, more) == []
    assert shown(page, findings) == shown(wide, findings)[:8]
    (text,) = shown(page, more)
    assert text == "Show %d more findings" % (len(shown(wide, findings)) - 8)
    assert follow(page, more) == "#findings"
    assert shown(page, findings) == shown(wide, findings) and shown(page, more) == []


def test_a_link_to_a_finding_shows_it_on_a_phone(show):
    page = show(page_fleet.usual(), width=390)
    last = page.locator("#findings tr[id]").last
    assert not last.is_visible()
    page.evaluate("hash => { location.hash = hash }", last.get_attribute("id"))
    last.wait_for(state="visible")


def test_names_are_told_in_full_where_there_is_little_room(show):
    page = show(page_fleet.hostile(HOSTILE))
    titles = page.locator("[title]").evaluate_all("all => all.map((one) => one.title).join('|')")
    assert [name for name in HOSTILE if name not in titles] == []


def test_nothing_found_is_said(show):
    assert "No findings." in show(page_fleet.empty()).locator("body").text_content()


@pytest.mark.parametrize("made", [page_fleet, page_index])
def test_the_legend_explains_every_verdict(show, made):
    page = show(made.usual())
    assert shown(page, "#legend dt") == [word.replace("_", " ") for word in WORDS]
    assert [text.rpartition(" class is ")[2] for text in shown(page, "#legend dd")] == [
        CLASS_OF[word].replace("_", " ") + "." for word in WORDS
    ]
    assert all(text.endswith(".") for text in shown(page, "#legend dd")) and len(shown(page, "#legend dd")) == len(
        WORDS
    )
    assert page.locator("#legend .badge").evaluate_all(COLOURS).keys() == set(WORDS)


def test_every_part_of_the_page_has_a_date(show):
    page = show(page_fleet.usual())
    assert "2023-11-14 22:13 UTC" in page.locator("header").inner_text()
    follow(page, ".map a")
    assert "2023-11-14 22:13 UTC" in page.locator("body").inner_text()


def test_figures_are_named_as_statistics(show):
    text = show(page_fleet.usual()).locator(".host").first.text_content()
    assert "mean 0\u00a0%, median 0\u00a0%, p95 0\u00a0%, p99 0\u00a0%, max 0\u00a0%" in text
    assert "median 50.0\u00a0GiB, p95 60.0\u00a0GiB, max 64.0\u00a0GiB of 80.0\u00a0GiB" in text


def test_reasons_are_not_contradicted(show):
    page = show(page_fleet.usual())
    follow(page, ".map a")
    for row in page.locator(".host:target tbody tr:not(.gpu)").all():
        text = row.text_content()
        if "Kernels use tensor cores" in text:
            assert not [word for word in ("stalled", "idle", "no data", "free", "unhealthy") if word in text], text


def test_efficiency_of_partly_measured_hours_names_them(show):
    page = show(page_fleet.usual())
    # The use of tenants, of unhealthy GPUs and of GPUs with wrong metrics says nothing about their workloads.
    (alice,) = (
        row for row in page.locator("#owners tbody tr").all_text_contents() if "alice" in row and "unit" not in row
    )
    held = audit_hours("alice")
    assert "of %s hours measured" % held in alice


def audit_hours(user):
    (one,) = (total for total in page_fleet.audit(3).owners.users if total.name == user)
    assert 0 < one.measured_gpu_hours < one.held_gpu_hours
    return f"{one.held_gpu_hours:,.2f}".rstrip("0").rstrip(".")


def test_the_page_of_all_reports_has_a_row_for_each_and_its_trend(show):
    page = show(page_index.usual())
    assert len(shown(page, "tbody tr")) == 20 and len(shown(page, "svg")) == 3
    # The latest report is first.
    assert page.locator("tbody a").first.get_attribute("href") == "report-19/audit.html"
    assert page.locator("header a").get_attribute("href") == "report-19/audit.html"


WRONG = """<!doctype html><html><head><title>x</title></head>
<body style="margin: 0; background: #fff"><p style="color: #999">grey</p><p style="width: 120vw">wide</p>
<img src="gone.png" alt=""><script>console.log("loud")</script></body></html>"""


def test_the_checks_find_what_is_wrong(chromium, tmp_path):
    path = tmp_path / "wrong.html"
    path.write_text(WRONG)
    with browser.screen(chromium, path, width=1280) as found:
        # The relative luminance of #999 is 0.319, so the contrast is (1 + 0.05) / (0.319 + 0.05).
        (lowest, text), *_others = contrasts(found.page)
        assert text == "grey" and lowest == pytest.approx(2.85, abs=0.01)
        assert ["wide" in one for one in outside(found.page)] == [True]
        assert len([one for one in active(found.page) if one.startswith(("<img", "<script", "src"))]) == 3
        assert found.requests == [path.as_uri(), (tmp_path / "gone.png").as_uri()]
        assert "loud" in found.said and len(found.said) == 2
