# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test features of the right-sizing page in a headless Chromium."""

from __future__ import annotations

import re

import pytest

from tests.audit import page_proposal
from tests.audit.page_checks import shown


def rows(page, host):
    """Return the workloads before and after by GPU, from a host's card."""
    card = page.locator("section", has=page.locator("h2", has_text=host))
    return {
        row.locator("> span").first.text_content(): [
            sorted(part.locator(".part").locator("b, small:only-child").all_text_contents())
            for part in row.locator(".parts").all()
        ]
        for row in card.locator(".gpu").all()
    }


def test_each_host_is_shown_before_and_after(show):
    page = show(page_proposal.usual())
    assert rows(page, "train-01") == {
        "gpu 0": [["chat"], ["free"]],
        "gpu 1": [["search"], ["free"]],
        "gpu 5": [["free"], ["chat", "search"]],
        # The page folds these rows, because they do not change.
        "gpu 2": [["train"]],
        "gpu 3": [["jupyter"]],
        "gpu 4": [["train-01-gpu4"]],
    }
    assert "gpu 2" not in shown(page, ".gpu > span")
    page.locator("summary", has_text="3 GPUs unchanged").click()
    assert "gpu 2" in shown(page, ".gpu > span")


def test_steps_have_their_commands_in_order(show):
    page = show(page_proposal.usual())
    steps = shown(page, "#steps li")
    of_host = [text.partition("\n")[0] for text in steps if "parts-01" in text]
    assert [text.split()[0] for text in of_host] == ["Stop", "Apply", "Give"]
    assert "--limit parts-01" in "".join(shown(page, "#steps pre"))


def test_what_frees_gpus_and_what_is_risked_is_told_apart(show):
    page = show(page_proposal.usual())
    assert [text for text in shown(page, "h2") if "frees" in text] == [
        "batch-01 frees gpu 1 · 730 EUR per month",
        "parts-01 frees gpu 1 · 1,461 EUR per month",
        "train-01 frees gpu 0, 1 · 1,461 EUR per month",
    ]
    tiles = page.locator(".tile").evaluate_all("all => all.map((one) => getComputedStyle(one).borderLeftColor)")
    # The tiles are two for gains, and one each for moved, resized, kept and destroyed.
    assert len(tiles) == 6 and len(set(tiles)) == 5 and tiles[0] == tiles[1]


def test_headings_are_plain_and_small_numbers_have_singular_nouns(show):
    page = show(page_proposal.usual())
    headings = shown(page, "h2")
    assert {"Warnings", "Changed workloads", "Idle workloads", "Unchanged workloads", "Verdicts"} <= set(headings)
    assert not re.search(r"\b1 (GPUs|instances|workloads|hosts)\b", page.locator("body").inner_text())


def test_the_plan_is_folded_away_and_there(show):
    page = show(page_proposal.usual())
    assert shown(page, "details pre") == []
    page.locator("summary", has_text="Plan: ").last.click()
    assert shown(page, "details pre") == ["gpu 5: enable MIG mode, create 2g.20gb@4, create 1g.20gb@6"]


def test_what_may_be_stopped_and_what_may_not(show):
    page = show(page_proposal.usual())
    found = dict(zip(shown(page, "#reclaim td:first-child b"), shown(page, "#reclaim [data-name='can be stopped']")))
    assert found["jupyter.service"] == "yes" and found["user@1000.service"].startswith("no: ")


@pytest.mark.thorough
def test_of_many_hosts_each_is_folded_away_behind_its_name(show):
    page = show(page_proposal.large())
    assert len(shown(page, "section h2")) > 1000 and shown(page, ".gpu") == []
    page.locator("summary", has_text="train-01-333").click()
    assert len(shown(page, ".gpu")) == 6


def test_tables_say_how_much_they_leave_out(show):
    page = show(page_proposal.large())
    for part, count in (("#notes", 334), ("#workloads", 5 * 334), ("#reclaim", 2 * 334), ("#staying > p", 334)):
        (text,) = shown(page, part if part.endswith("p") else part + " > .soft")
        assert text == "Showing 200 of %d. All are in rightsize.json." % count
    assert len(shown(page, "#workloads tbody tr")) == 200
