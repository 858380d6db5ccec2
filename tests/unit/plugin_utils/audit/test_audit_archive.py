# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check archived reports: their number, the link, file modes, and the index page."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import stat

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit import archive, report_index, write
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import (
    WORDS,
    Audit,
    Finding,
    Holding,
    Sources,
    Subject,
    Verdict,
    Window,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.report_index import Entry

DAY = 86400.0
# The time 2026-11-22 06:00:00 UTC.
NOW = 1795327200.0
NAMES = ["2026-11-22T060000Z", "2026-11-23T060000Z", "2026-11-24T060000Z", "2026-11-25T060000Z"]
FILES = {"audit.html", "audit.csv", "audit-hours.csv", "audit-owners.csv", "audit.prom", "audit.json", "summary.json"}


def audit(day, idle=1):
    verdict = Verdict("idle", "Nothing ran.", waste_per_month=100.0)
    rows = [Finding("%010x" % n, verdict, Holding(Subject("gpu", "a", "GPU-%d" % n))) for n in range(idle)]
    at = NOW + day * DAY
    return Audit(at, Window(at - DAY, at), Sources(), tuple(rows), currency="EUR")


def directories(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.is_symlink())


def test_each_report_has_a_directory_named_by_its_time(tmp_path):
    files = archive.keep(audit(0), tmp_path / "new" / "place", 3)
    place = tmp_path / "new" / "place" / NAMES[0]
    assert {path.name for path in place.iterdir()} == FILES
    assert set(files) == {place / name for name in FILES} | {tmp_path / "new" / "place" / "index.html"}
    assert all(path.is_file() for path in files)


@pytest.fixture
def no_umask():
    """Set the umask to 0, so that it does not restrict file modes."""
    former = os.umask(0)
    yield
    os.umask(former)


def modes(paths):
    return {stat.S_IMODE(path.stat().st_mode) for path in paths}


def test_reports_are_for_the_owner_and_the_group(tmp_path, no_umask):
    place = tmp_path / "new" / "place"
    for day in range(2):
        archive.keep(audit(day), place, 3)
        files = {path for path in place.rglob("*") if path.is_file() and "latest" not in path.parts}
        assert len(files) == len(FILES) * (day + 1) + 1 and modes(files) == {0o640}
        assert modes([place.parent, place, *map(place.joinpath, directories(place))]) == {0o750}
        # An earlier release, or an interrupted run, can leave such files.
        (place / "index.html").chmod(0o644)
        (place / "index.html.new").write_text("half")


def test_the_only_report_is_for_the_owner_and_the_group(tmp_path, no_umask):
    for name in FILES:
        (tmp_path / name).write_text("of an earlier release")
    tmp_path.chmod(0o755)
    assert modes(write.all_of(audit(0), tmp_path)) == {0o640}
    # An existing directory keeps its mode.
    assert modes([tmp_path]) == {0o755}


def test_two_reports_in_one_second_do_not_collide(tmp_path):
    for idle in (1, 2):
        archive.keep(audit(0, idle), tmp_path, 3)
    assert directories(tmp_path) == [NAMES[0], "2026-11-22T060001Z"]
    assert (tmp_path / "latest").readlink().name == "2026-11-22T060001Z"
    kept = [json.loads((tmp_path / name / "summary.json").read_text()) for name in directories(tmp_path)]
    assert [one["summary"]["findings"] for one in kept] == [1, 2]


def test_newest_reports_stay_and_the_link_is_the_newest(tmp_path):
    for day in range(4):
        archive.keep(audit(day), tmp_path, 2)
        assert (tmp_path / "latest").readlink().name == NAMES[day]
    assert directories(tmp_path) == NAMES[2:]
    page = (tmp_path / "index.html").read_text()
    assert re.findall(r'<td><a href="([^"]+)/audit.html"', page) == NAMES[:1:-1]
    assert not list(tmp_path.rglob(".*"))


def test_higher_limit_keeps_old_reports(tmp_path):
    for day in range(3):
        archive.keep(audit(day), tmp_path, 10)
    assert directories(tmp_path) == NAMES[:3]


def test_new_report_stays_after_the_clock_went_back(tmp_path):
    archive.keep(audit(3), tmp_path, 1)
    archive.keep(audit(0), tmp_path, 1)
    assert directories(tmp_path) == NAMES[:1] and (tmp_path / "latest").readlink().name == NAMES[0]


def test_foreign_files_stay(tmp_path):
    archive.keep(audit(0), tmp_path, 1)
    (tmp_path / NAMES[0] / "notes.txt").write_text("ours")
    for name in ("2026-11-01", "old", "2026-01-01T000000Z.saved"):
        (tmp_path / name).mkdir()
    (tmp_path / "2026-01-02T000000Z").symlink_to(tmp_path / "old")
    archive.keep(audit(1), tmp_path, 1)
    archive.keep(audit(2), tmp_path, 1)
    assert directories(tmp_path) == ["2026-01-01T000000Z.saved", "2026-11-01", NAMES[0], NAMES[2], "old"]
    assert {path.name for path in (tmp_path / NAMES[0]).iterdir()} == {*FILES, "notes.txt"}
    assert (tmp_path / "2026-01-02T000000Z").is_symlink()


def test_interrupted_report_is_not_listed_and_removed_with_the_others(tmp_path):
    half = tmp_path / "2026-11-21T060000Z"
    half.mkdir()
    (half / "audit.json.new").write_text('{"schema')
    archive.keep(audit(0), tmp_path, 2)
    assert half.name not in (tmp_path / "index.html").read_text() and half.exists()
    archive.keep(audit(1), tmp_path, 2)
    assert directories(tmp_path) == NAMES[:2]


@pytest.mark.parametrize("text", ["", "[]", '{"summary": {}}', '{"summary": null, "made_at_seconds": 1, "line": ""}'])
def test_invalid_summary_is_not_listed(tmp_path, text):
    archive.keep(audit(0), tmp_path, 5)
    (tmp_path / NAMES[0] / "summary.json").write_text(text)
    archive.keep(audit(1), tmp_path, 5)
    page = (tmp_path / "index.html").read_text()
    assert NAMES[0] not in page and NAMES[1] in page


def test_directory_instead_of_the_link_is_named_and_stays(tmp_path):
    (tmp_path / "latest").mkdir()
    (tmp_path / "latest" / "mine").touch()
    with pytest.raises(FleetError, match="it blocks the link") as error:
        archive.keep(audit(0), tmp_path, 2)
    assert error.value.where == str(tmp_path / "latest") and (tmp_path / "latest" / "mine").exists()


def test_path_that_is_not_a_directory_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FleetError, match="file"):
        archive.keep(audit(0), tmp_path / "file", 2)


def test_summary_matches_its_report(tmp_path):
    archive.keep(audit(0, idle=3), tmp_path, 2)
    told = json.loads((tmp_path / "latest" / "summary.json").read_text())
    whole = json.loads((tmp_path / "latest" / "audit.json").read_text())
    assert told["summary"] == whole["summary"] and told["made_at_seconds"] == whole["made_at_seconds"]
    assert told["schema_version"] == whole["schema_version"] and told["line"].startswith("3 findings: 3 idle")


def entry(day, waste=100.0, **words):
    counts = {**dict.fromkeys(WORDS, 0), **words}
    return Entry("day-%d" % day, NOW + day * DAY, "line %d" % day, counts, 1, 2, "EUR", reserved_per_month=waste)


def lines(page):
    """Return the points of each chart line as numbers, by section."""
    found = {}
    for name, points in re.findall(r'<polyline class="s-(\w+)" points="([^"]+)"', page):
        found.setdefault(name, []).append([tuple(map(float, pair.split(","))) for pair in points.split()])
    return found


def test_page_without_reports():
    assert "No reports yet" in report_index.to_text([])


def test_one_report_has_no_trend():
    page = report_index.to_text([entry(0, idle=2)])
    assert lines(page) == {} and page.count("day-0/audit.html") == 2


def test_trend_is_ordered_by_time_and_scaled_to_the_maximum():
    # These are days 0, 1 and 4, which are unordered and not evenly spaced.
    page = report_index.to_text([entry(4, 0.0, idle=4), entry(0, 50.0, idle=0, unhealthy=2), entry(1, 100.0, idle=2)])
    found = lines(page)
    assert [x for x, _y in found["idle"][0]] == [0.0, 160.0, 640.0]
    low, middle, high = (y for _x, y in found["idle"][0])
    assert low > middle > high and middle == pytest.approx((low + high) / 2)
    # All lines of a chart share one scale. A line of zeros is left out.
    assert [y for _x, y in found["unhealthy"][0]] == [middle, low, low]
    assert "oversized_memory" not in found
    assert [y for _x, y in found["reserved"][0]] == [middle, high, low]
    assert re.findall(r'<td><a href="([^"]+)/', page) == ["day-4", "day-1", "day-0"]


def test_report_without_a_price_is_a_gap_not_zero():
    page = report_index.to_text([entry(0), entry(1, None), entry(2), entry(3, 50.0)])
    assert [len(part) for part in lines(page)["reserved"]] == [1, 2]


def changes(*entries):
    """Return the changes that the page shows for these entries, without markup."""
    tiles = re.findall(r'<div class="tile wide">(.*?)</div>', report_index.to_text(list(entries)))
    return [re.sub(r"<b>(.*?)</b>", r"\1: ", tile) for tile in tiles]


def test_page_says_what_was_saved_since_the_first_report():
    first = dataclasses.replace(
        entry(0, 5000.0), reserved_gpus=3.5, not_assigned_gpus=1.0, not_assigned_per_month=1461.0
    )
    last = dataclasses.replace(
        entry(9, 1400.0), reserved_gpus=1.0, not_assigned_gpus=1.0, not_assigned_per_month=1461.0
    )
    assert changes(last, dataclasses.replace(entry(4), reserved_gpus=9.0), first) == [
        "3,600 EUR less: reserved and unused per month since 2026-11-22 06:00 UTC: 3.5 GPUs → 1 GPU",
        "unchanged: not assigned per month since 2026-11-22 06:00 UTC: 1 GPU → 1 GPU",
    ]
    dollars = dataclasses.replace(last, currency="USD", not_assigned_gpus=2.25)
    assert changes(first, dollars) == [
        "2.5 GPUs less: reserved and unused since 2026-11-22 06:00 UTC: 3.5 GPUs → 1 GPU",
        "1.25 GPUs more: not assigned since 2026-11-22 06:00 UTC: 1 GPU → 2.25 GPUs",
    ]
    assert changes(first) == changes(first, dataclasses.replace(last, reserved_gpus=None)) == []


def test_names_and_lines_are_escaped():
    hostile = dataclasses.replace(entry(0), line="<script>1</script>", currency="<u>")
    page = report_index.to_text([hostile, dataclasses.replace(hostile, made_at_seconds=NOW + DAY)])
    assert "<script" not in page and "<u>" not in page and "&lt;script" in page
