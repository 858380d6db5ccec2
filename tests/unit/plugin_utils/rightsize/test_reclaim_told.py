# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Notify receivers of idle holders by mail and web hook, from the controller.

The mail server is a real one.
"""

from __future__ import annotations

import http.server
import json
import threading

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.tell import Notice, NotifyError
from ansible_collections.openfleet.gpu.plugins.plugin_utils.host_values import HostValueError
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize import reclaim_told
from tests.audit.mailbox import mailbox

__all__ = ["mailbox"]


class Hook(http.server.BaseHTTPRequestHandler):
    said: list[dict]

    def do_POST(self):
        self.said.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_words):
        """Log nothing."""


@pytest.fixture
def hook():
    said: list[dict] = []
    handler = type("OfThisTest", (Hook,), {"said": said})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield "http://127.0.0.1:%d/secret" % server.server_port, said
        server.shutdown()


def row(name, user="", kind="unit", **more):
    return {
        "kind": kind, "name": name, "runtime": "", "gpus": ["GPU-0"], "places": ["gpu 0 (GPU-0)"], "holders": [], "user": user,
        "idle_since": 1.7e9, "stop_after": 1.8e9, "jupyter": False, "keep": name, "told": [], "untold": [], **more,
    }  # fmt: skip


def result(noticed=(), stopped=()):
    return reclaim_told.result_of("ada", {"noticed": list(noticed), "stopped": list(stopped), "spared": []})


def tell(said, notices, owners=(), keep_url=""):
    return reclaim_told.tell("ada", said, [Notice.of(one, personal=True) for one in notices], list(owners), keep_url)


def names(rows):
    return [one["name"] for one in rows]


def test_fixed_address_gets_one_mail_per_stage(mailbox):
    said = result([row("a.service", "alice"), row("b.service", "bob")], [row("c.service", "carol")])
    told, untold, confirmed = tell(said, [{"to": "gpu@example.org", "server": mailbox.server}])
    assert (told, untold, names(confirmed)) == (["gpu@example.org"] * 2, [], ["a.service", "b.service"])
    (_first, noticed), (_second, stopped) = mailbox.mails
    assert noticed["Subject"] == "GPU host ada: 2 idle holders of GPUs will be stopped"
    assert "gpu-layout keep a.service 3d" in noticed.get_content() and "b.service on ada" in noticed.get_content()
    assert stopped["Subject"] == "GPU host ada: c.service stopped"
    assert "systemctl start c.service" in stopped.get_content()


def test_each_owner_gets_only_own_findings(mailbox):
    said = result([row("a.service", "alice"), row("b.service", "bob"), row("a2.service", "alice")])
    told, untold, confirmed = tell(said, [{"to": "{user}@example.org", "server": mailbox.server}])
    assert told == ["alice@example.org", "bob@example.org"] and untold == [] and len(confirmed) == 3
    (to_alice, mail), (to_bob, other) = mailbox.mails
    assert (to_alice, to_bob) == (["alice@example.org"], ["bob@example.org"])
    assert (
        "a.service" in mail.get_content()
        and "a2.service" in mail.get_content()
        and "b.service" not in mail.get_content()
    )
    assert mail["To"] == "alice@example.org" and "b.service" in other.get_content()


def test_owners_of_the_inventory_take_precedence(mailbox):
    said = result([row("a.service", "svc"), row("lab", kind="container", runtime="docker"), row("c.service", "carol")])
    owners = reclaim_told.owners(
        [{"match": "a", "user": "alice"}, {"match": "la*", "user": "bob"}, {"match": "a*", "user": "x"}]
    )
    told, _untold, _confirmed = tell(said, [{"to": "{user}@example.org", "server": mailbox.server}], owners)
    assert told == ["alice@example.org", "bob@example.org", "carol@example.org"]


@pytest.mark.parametrize("user", ["", "a@evil.org,b", "alice\r\nBcc: x@evil.org", "-f", "Alice Smith <a@b>", "a" * 33])
def test_invalid_account_gets_no_mail_and_no_counting_notice(mailbox, user):
    said = result([row("a.service", user), row("b.service", "bob")])
    told, untold, confirmed = tell(said, [{"to": "{user}@example.org", "server": mailbox.server}])
    assert told == ["bob@example.org"] and len(untold) == 1 and "a.service" in untold[0]
    assert names(confirmed) == ["b.service"]
    assert [to for to, _mail in mailbox.mails] == [["bob@example.org"]]


def test_refused_receiver_does_not_block_others(mailbox, hook):
    url, heard = hook
    said = result([row("a.service", "nobody"), row("b.service", "bob")])
    told, untold, confirmed = tell(
        said, [{"to": "{user}@example.org", "server": mailbox.server}, {"url": "http://127.0.0.1:9/x"}]
    )
    assert told == ["bob@example.org"] and names(confirmed) == ["b.service"]
    assert "no such user" in untold[0] and "http://127.0.0.1/…" in untold[1] and "/x" not in untold[1]
    _told, _untold, confirmed = tell(said, [{"to": "{user}@example.org", "server": mailbox.server}, {"url": url}])
    assert names(confirmed) == ["a.service", "b.service"] and len(heard) == 1


def test_a_web_hook_gets_text_and_items(hook):
    url, heard = hook
    told, untold, confirmed = tell(result([row("a.service")]), [{"url": url}], keep_url="https://x/{host}/{name}")
    assert (told, untold) == (["http://127.0.0.1/…"], [])
    assert confirmed == [{"kind": "unit", "name": "a.service", "runtime": "", "gpus": ["GPU-0"]}]
    (said,) = heard
    assert said["reclaim"]["host"] == "ada" and said["reclaim"]["stage"] == "noticed"
    assert names(said["reclaim"]["items"]) == ["a.service"] and "Or open: https://x/ada/a.service" in said["text"]


def test_nothing_is_sent_without_findings(mailbox):
    assert tell(result(), [{"to": "gpu@example.org", "server": mailbox.server}]) == ([], [], [])
    assert mailbox.mails == []


def test_receivers_of_the_audit_are_the_default(mailbox):
    audits = [{"url": "https://x/1"}, {"to": "gpu@example.org"}]
    assert [one.url or one.to for one in reclaim_told.ways(None, audits).controller] == [
        "https://x/1",
        "gpu@example.org",
    ]
    found = reclaim_told.ways(["wall", "mail", {"to": "{user}@example.org"}, "home"], audits)
    assert [one.to for one in found.controller] == ["gpu@example.org", "{user}@example.org"]
    assert found.host == ("wall", "home")
    assert reclaim_told.ways([], audits) == reclaim_told.Ways((), ())


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["pigeon"], r"gpu_rightsize_reclaim_tell\[0\]: 'pigeon' is not a known notification method"),
        (["wall", "webhook"], r"gpu_rightsize_reclaim_tell\[1\]: gpu_audit_notify has no webhook"),
        ([{"url": "x"}], "URL of the web hook is invalid"),
        ([{}], "exactly one of url and to is required"),
    ],
)
def test_invalid_receivers_are_named(given, problem):
    with pytest.raises(FleetError, match=problem):
        reclaim_told.ways(given, [])


def test_an_audit_has_no_single_user():
    with pytest.raises(NotifyError, match="an audit is not about one user"):
        Notice.of({"to": "{user}@example.org"})


@pytest.mark.parametrize(("text", "seconds"), [("24h", 86400.0), ("0", 0.0), ("0h", 0.0), ("2d", 172800.0)])
def test_time_of_a_notice(text, seconds):
    assert reclaim_told.notice_seconds(text) == seconds


def test_invalid_time_of_a_notice_is_named():
    with pytest.raises(FleetError, match="gpu_rightsize_reclaim_notice: 'soon' is not a duration"):
        reclaim_told.notice_seconds("soon")


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"noticed": "x", "stopped": []},
        {"noticed": [{"kind": "unit"}], "stopped": []},
        {"noticed": [row("x", stop_after="soon")], "stopped": []},
        {"noticed": [row("x")] * 1000, "stopped": []},
    ],
)
def test_result_of_a_host_is_validated(said):
    with pytest.raises(HostValueError, match="ada: "):
        reclaim_told.result_of("ada", said)
