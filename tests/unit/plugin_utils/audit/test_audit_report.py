# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test audits without a server, their reports and receivers, and refused options."""

from __future__ import annotations

import csv
import dataclasses
import http.server
import io
import json
import socket
import threading

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit import options, report_csv, report_html, report_json
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.holdings import HostState, Price
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.make import AuditError, Order, make
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import Verdict
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.prometheus import Access
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.tell import Notice, NotifyError, tell, text_of
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.write_line import line

HOLDER = {"kind": "container", "who": "=cmd|' /C calc'!A0 of alice", "watches": False}
GPU = {
    "uuid": "GPU-1", "index": 0, "name": "NVIDIA H100 80GB HBM3", "memory_total_bytes": 85899345920,
    "processes": [], "holders": [HOLDER], "mig": {"instances": []},
}  # fmt: skip


@pytest.fixture
def audit():
    order = Order(
        3600.0, hosts={"a": HostState([GPU])}, hosts_asked=["a", "b"], prices=[Price("H100*", 2.5)], currency="EUR"
    )
    return make(order, 1700000000.0)


def test_without_a_server_nothing_is_idle_and_the_reason_is_given(audit):
    (found,) = audit.findings
    assert found.verdict.word == "no_data" and found.holding.holders[0].kind == "container"
    assert any("no GPU is reported idle" in text for text in audit.sources.missing)
    assert any("1 of 2 hosts did not answer (b)" in text for text in audit.sources.missing)


def test_audit_needs_a_server_or_hosts():
    with pytest.raises(AuditError, match="nothing to audit"):
        make(Order(3600.0, hosts_asked=["a"]), 0.0)


def test_unreachable_server_leaves_the_state_of_hosts():
    access = Access("http://127.0.0.1:9/", timeout_seconds=5)
    found = make(Order(3600.0, access=access, hosts={"a": HostState([GPU])}, hosts_asked=["a"]), 0.0)
    assert len(found.findings) == 1 and "could not be reached" in found.sources.missing[0]


def test_exempt_holders_are_not_reported():
    assert make(Order(3600.0, hosts={"a": HostState([GPU])}, exempt=["GPU-1"]), 0.0).findings == ()


def test_json_report_is_read_as_the_previous_audit(audit, tmp_path):
    path = tmp_path / "audit.json"
    path.write_text(report_json.to_text(audit))
    former = report_json.read_former(path)
    assert set(former) == {audit.findings[0].id}
    assert former[audit.findings[0].id].first_found_seconds == 1700000000.0
    assert json.loads(path.read_text())["summary"]["words"]["no_data"] == 1


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 99, "findings": []}', '{"schema_version": 1}'])
def test_invalid_previous_report_is_an_error(text, tmp_path):
    (tmp_path / "audit.json").write_text(text)
    with pytest.raises(FleetError, match=r"audit\.json"):
        report_json.read_former(tmp_path / "audit.json")


def test_csv_has_one_row_per_finding_and_no_formulas(audit):
    (row,) = csv.DictReader(io.StringIO(report_csv.to_text(audit)))
    assert row["host"] == "a" and row["verdict"] == "no_data" and row["memory_total_gib"] == "80.00"
    assert row["memory_max_gib"] == "" and row["holders"].startswith("container =cmd")
    assert not any(cell[:1] in "=+-@" for cell in row.values() if cell)


def cell_of(audit, name):
    """Rename a finding. Return its name in the CSV table, and the text of the table."""
    (found,) = audit.findings
    subject = dataclasses.replace(found.holding.subject, name=name)
    holding = dataclasses.replace(found.holding, subject=subject)
    text = report_csv.to_text(dataclasses.replace(audit, findings=(dataclasses.replace(found, holding=holding),)))
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    return row["name"], text


BEFORE = ["", " ", "   ", "\n", "\r\n", "\t", "\0", "\x0b", "\x85", "\xa0", "\u200b", "\ufeff", "x\n"]
#: Full-width forms of these characters, a small form and a superscript form.
FORMS = ["\uff1d", "\uff0b", "\uff0d", "\uff20", "\ufe63", "\u207a"]


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("starter", ["=", "+", "-", "@", *FORMS])
def test_no_csv_cell_starts_a_formula(audit, before, starter):
    cell, text = cell_of(audit, "%s%s1+1" % (before, starter))
    # The cell keeps leading blanks, and escapes other invisible characters.
    assert cell == "'%s%s1+1" % (before, starter) if not before.strip(" ") else cell[0] in "\\x"
    assert cell.isprintable() and len(text.splitlines()) == 2


def test_no_csv_cell_is_split(audit):
    for name in ("a;=1+1", 'a";=1+1', "a\t=1+1", "a,=1+1"):
        cell, text = cell_of(audit, name)
        assert cell in (name, "a\\x09=1+1")
        assert '"%s"' % cell.replace('"', '""') in text


def test_csv_cell_without_formula_is_unchanged(audit):
    for name in ("train.py --lr=1", "a = b", "é", "'quoted'", "1-2"):
        assert cell_of(audit, name)[0] == name


def test_csv_has_unseen_findings(audit):
    (found,) = audit.findings
    idle = dataclasses.replace(found, id="0123456789", verdict=Verdict("idle", "It was.", waste_per_month=12.5))
    told = dataclasses.replace(
        audit,
        unseen=(dataclasses.replace(idle, state="unseen"),),
        gone=(dataclasses.replace(idle, id="9876543210", state="gone"),),
    )
    rows = [
        (row["id"], row["state"], row["verdict"], row["waste_per_month"])
        for row in csv.DictReader(io.StringIO(report_csv.to_text(told)))
    ]
    assert rows == [
        (found.id, "new", "no_data", "0.00"),
        ("0123456789", "unseen", "idle", "12.50"),
        ("9876543210", "gone", "idle", "12.50"),
    ]


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["a.example.org", "b.example.org"], ["a", "b"]),
        (["a.x.example.org", "a.y.example.org"], ["a.x", "a.y"]),
        (["a.example.org", "b"], ["a.example.org", "b"]),
        (["org", "b.org"], ["org", "b.org"]),
        (["a", "b"], ["a", "b"]),
        (["a.example.org"], ["a.example.org"]),
        ([], []),
    ],
)
def test_map_omits_the_common_domain(names, shown):
    assert report_html.short_names(names) == shown


def test_summary_line(audit):
    assert line(audit) == "no findings; 0 new, 0 gone; without findings: 1 no data"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["idle"], "1 finding: 1 idle; 1 new, 0 gone"),
        (
            ["idle", "standby", "free", "right", "right"],
            "2 findings: 1 idle, 1 standby; 2 new, 0 gone; without findings: 1 free, 2 right",
        ),
    ],
)
def test_summary_line_counts_only_findings(audit, words, text):
    (found,) = audit.findings
    rows = [dataclasses.replace(found, verdict=Verdict(word, "Why.")) for word in words]
    several = dataclasses.replace(audit, findings=tuple(rows))
    assert line(several).startswith(text)
    data = report_json.summary(several)
    assert (data["findings"], data["new"], data["new_findings"]) == (len(rows), len(rows), int(text[0]))


@pytest.mark.parametrize(
    ("text", "expected"), [("14d", 1209600.0), ("36h", 129600.0), ("1.5 h", 5400.0), ("2w", 1209600.0)]
)
def test_durations(text, expected):
    assert options.seconds(text) == expected


@pytest.mark.parametrize("text", ["", "14", "0d", "-1d", "14 days", "1y"])
def test_invalid_durations_are_refused(text):
    with pytest.raises(FleetError, match="window"):
        options.seconds(text)


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"idle": 3}, "thresholds.idle"),
        ({"idle_hours": "long"}, "thresholds.idle_hours"),
        ({"idle_hours": -1}, "thresholds.idle_hours"),
        ({"idle_hours": float("nan")}, "thresholds.idle_hours"),
        ({"idle_hours": 0}, "thresholds.idle_hours"),
        ({"idle_hours": 0.9}, "thresholds.idle_hours"),
        ({"saturated_ratio": 90}, "thresholds.saturated_ratio"),
        ({"saturated_ratio": True}, "thresholds.saturated_ratio"),
    ],
)
def test_implausible_thresholds_are_refused(given, where):
    with pytest.raises(FleetError) as error:
        options.thresholds(given)
    assert error.value.where == where and error.value.cure


def test_shortest_idle_time_is_an_hour():
    assert options.thresholds({"idle_hours": 1}).idle_hours == 1.0


def test_access():
    assert options.access({}) is None
    assert options.access({"url": "http://a", "password": None, "timeout_seconds": "5"}).timeout_seconds == 5.0
    for wrong in (
        {"adress": "http://a"},
        {"url": "http://a", "timeout_seconds": 0},
        {"url": "http://a", "verify": "no"},
        {"url": "http://a", "headers": ["X-Scope-OrgID"]},
        {"url": "http://a", "headers": {"X Scope": "a"}},
    ):
        with pytest.raises(FleetError, match=r"prometheus\."):
            options.access(wrong)


SECRET = "s3cr3t"


def test_secret_can_end_with_a_line_break():
    found = options.access({"url": "http://a", "token": SECRET + "\n", "password": SECRET + "\r\n"})
    assert (found.token, found.password) == (SECRET, SECRET)


@pytest.mark.parametrize(
    "given",
    [
        {"token": SECRET + "\nX-More: 1"},
        {"token": SECRET + "ü"},
        {"token": [SECRET]},
        {"password": SECRET + "\0"},
        {"headers": {"X-Scope-OrgID": SECRET + "\r\nX: 1"}},
    ],
)
def test_secret_invalid_in_headers_is_refused_and_not_shown(given):
    with pytest.raises(FleetError, match=r"prometheus\.") as error:
        options.access({"url": "http://a", **given})
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    "row", [{"model": "H100*"}, "H100", {"model": "H100*", "price": "dear"}, {"model": "*", "price": -1}]
)
def test_invalid_price_is_named_with_its_place(row):
    with pytest.raises(FleetError) as error:
        options.prices([{"model": "*", "price": 1}, row])
    assert error.value.where.startswith("prices[1]")


class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.server.status)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.end_headers()

    def do_GET(self):
        # If the client followed the redirect, the POST request would arrive here as a GET request.
        self.server.seen.append(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def hook():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        server.seen, server.status, server.location = [], 200, ""
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def test_a_web_hook_gets_the_summary(hook, audit):
    told = tell(Notice.of({"url": "http://127.0.0.1:%d/secret" % hook.server_address[1]}), audit)
    assert hook.seen[0]["summary"]["findings"] == 1 and hook.seen[0]["text"].startswith(line(audit))
    assert "Missing data:" in hook.seen[0]["text"]
    assert "secret" not in told


@pytest.mark.parametrize(
    "name", ["<!channel>", "@everyone", "<https://evil.example|log in>", "[log in](https://evil.example)", "![](//a)"]
)
def test_names_in_web_hooks_have_no_chat_markup(hook, audit, name):
    """Escape the markup of chats in web hooks.

    Markup differs between chats. Mails have no markup.
    """
    (found,) = audit.findings
    verdict = dataclasses.replace(found.verdict, word="held_idle", reason="held by %s" % name)
    audit = dataclasses.replace(audit, findings=(dataclasses.replace(found, verdict=verdict, state="new"),))
    assert name in text_of(audit)
    tell(Notice.of({"url": "http://127.0.0.1:%d/secret" % hook.server_address[1]}), audit)
    text = hook.seen[0]["text"]
    assert "held by " in text and name not in text
    assert not set("<>@[]") & set(text)


def test_refusing_web_hook_is_an_error(hook, audit):
    hook.status = 500
    with pytest.raises(NotifyError, match="HTTP 500") as error:
        tell(Notice.of({"url": "http://127.0.0.1:%d/secret" % hook.server_address[1]}), audit)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 307, 308])
def test_web_hook_redirects_are_not_followed(hook, audit, status):
    hook.status = status
    hook.location = "http://127.0.0.1:%d/elsewhere" % hook.server_address[1]
    with pytest.raises(NotifyError, match=r"http://127\.0\.0\.1/…: .*HTTP %d" % status) as error:
        tell(Notice.of({"url": "http://127.0.0.1:%d/s3cr3t?key=s3cr3t" % hook.server_address[1]}), audit)
    assert "s3cr3t" not in str(error.value) and "redirects (HTTP" in str(error.value)
    # The hook must be called exactly once.
    assert len(hook.seen) == 1 and hook.seen[0]["summary"]


def test_missing_mail_server_is_an_error(audit):
    with pytest.raises(NotifyError, match="the notification was not sent"):
        tell(Notice.of({"to": "gpu@example.org", "server": "127.0.0.1:9"}), audit)


@pytest.mark.parametrize("given", [{}, {"url": "https://a", "to": "b"}, {"url": "ftp://a"}, {"mail": "a"}])
def test_invalid_receivers_are_refused(given):
    with pytest.raises(NotifyError):
        Notice.of(given)


@pytest.mark.parametrize("url", ["hooks.example.org/s3cr3t", "https://hooks.example.org/s3 cr3t", "ftp://a/s3cr3t"])
def test_invalid_address_is_not_shown(url):
    with pytest.raises(NotifyError, match="URL of the web hook is invalid") as error:
        Notice.of({"url": url})
    assert "cr3t" not in str(error.value)


def test_web_hook_without_http_is_an_error(audit):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer():
            with listening.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(b"220 mail.example.org\r\n")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(NotifyError, match="the notification was not sent: BadStatusLine"):
            tell(Notice.of({"url": "http://127.0.0.1:%d/s3cr3t" % listening.getsockname()[1]}), audit)
