# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Audit a fleet with leases with a real Prometheus, and write the page of leases."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from pathlib import Path

import jsonschema
import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit import write
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.make import Order, make
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.prometheus import Access
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.report_html import when
from tests.audit.fleet_history import CLEAR, NOBODY, Device, prometheus, steady, until

ROOT = Path(__file__).parents[2]
SCHEMA = jsonschema.Draft202012Validator(json.loads((ROOT / "docs" / "audit.schema.json").read_text()))
HOURS = 30
SOON, LATE, PAST = (time.time() + 3600 * hours for hours in (2, 20, -1))
#: A user can choose neither the account's name nor the size, but an exporter can report any text.
HOSTILE = "<script>alert(1)</script>"


def of_lease(number, account, size, end, gpu, **labels):
    own = {"lease": number, "account": account, "size": size, "entry": "gpu_layout[1]", "gpu_index": gpu, **labels}
    return "gpu:lease_end_timestamp_seconds", own, steady(end)


def of_account(name, account, value):
    return "gpu:lease_" + name, {"account": account, "entry": "gpu_layout[1]"}, steady(value)


LEASES = (
    *(("gpu:lease_pool_gpus", {"entry": "gpu_layout[1]", "gpu_uuid": each}, steady(0.75)) for each in ("u1", "u2")),
    *(of_lease("7", "alice", "18GiB and 30 %", LATE, gpu, job=job) for gpu in ("10", "9") for job in ("a", "b")),
    of_lease("8", "bob", "1g.10gb", SOON, "9"),
    of_lease("9", "carol", "2g.20gb", PAST, "10"),
    of_lease("11", HOSTILE, "1g.10gb", LATE + 60, "9"),
    ("gpu:lease_end_timestamp_seconds", {"lease": "3", "account": "dave", "size": "7g.80gb"}, until(20, steady(LATE))),
    of_account("gpus", "alice", 0.6),
    of_account("gpus", "bob", 0.15),
    of_account("waiting_gpus", "erin", 2.5),
    ("gpu:lease_waiting", {"account": "erin"}, steady(3)),
    ("gpu:lease_waiting", {"account": "alice"}, steady(0)),
)
FLEET = [Device("h1", 9, series=NOBODY, labelled=CLEAR, of_host=LEASES)]


@pytest.fixture(scope="module")
def audit(tmp_path_factory):
    with prometheus(FLEET, HOURS, tmp_path_factory.mktemp("leases")) as url:
        yield make(Order(3600.0 * (HOURS - 1), Access(url)), time.time())


def rows(page, name):
    """Return the texts of each row's cells in a section."""
    section = re.search(r'<section class="card" id="%s">(.*?)</section>' % name, page, re.S).group(1)
    body = re.search(r"<tbody>(.*?)</tbody>", section, re.S).group(1)
    cells = (re.findall(r"<td[^>]*>(.*?)</td>", row) for row in body.split("</tr>") if "<td" in row)
    return [[re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", cell)).strip() for cell in row] for row in cells]


def test_page_has_who_has_what_until_when(audit, tmp_path):
    assert tmp_path / "leases.html" in write.all_of(audit, tmp_path)
    page = (tmp_path / "leases.html").read_text()
    assert rows(page, "leases") == [
        ["carol lease 9", "2g.20gb", "h1 gpu 10 gpu_layout[1]", "%s overdue" % when(PAST)],
        ["bob lease 8", "1g.10gb", "h1 gpu 9 gpu_layout[1]", when(SOON)],
        ["alice lease 7", "18GiB and 30 %", "h1 gpu 9, 10 gpu_layout[1]", when(LATE)],
        [
            "&lt;script&gt;alert(1)&lt;/script&gt; lease 11", "1g.10gb", "h1 gpu 9 gpu_layout[1]", when(LATE + 60),
        ],
    ]  # fmt: skip
    assert rows(page, "waiting") == [["erin", "h1", "3"]]
    assert rows(page, "entries") == [["h1 gpu_layout[1]", "1.50", "0.75", "2.50"]]
    assert "4 leases on 1 entry, 3 waiting requests." in page and "<script" not in page
    assert 'href="leases.html"' in (tmp_path / "audit.html").read_text()
    data = json.loads((tmp_path / "audit.json").read_text())
    SCHEMA.validate(data)
    assert [each["number"] for each in data["leases"]["leases"]] == ["9", "8", "7", "11"]


def test_report_without_leases_removes_the_old_page(audit, tmp_path):
    write.all_of(audit, tmp_path)
    assert tmp_path / "leases.html" not in write.all_of(dataclasses.replace(audit, leases=None), tmp_path)
    assert not (tmp_path / "leases.html").exists()
    assert "leases.html" not in (tmp_path / "audit.html").read_text()
