# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that a host's hostile names cannot select other series.

In a real Prometheus, each name must find only its own series.
"""

from __future__ import annotations

import time

import pytest

np = pytest.importorskip("numpy")

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.asking import Asking
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import (
    Finding,
    Holding,
    Subject,
    Verdict,
    Window,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.prometheus import Access, Prometheus, PrometheusError
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.model import WHOLE
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.model import Occupant, Wish
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.series import histories
from tests.audit.fleet_history import GIB, STEP, serve

HOSTILE = [
    'a"} or {__name__=~".+',
    'b",host=~".*',
    "c\\",
    'd\\"',
    ".*",
    "e|victim",
    "f\nvictim",
    "g\t\r\x01\x7f",
    "h\u0085\u2028\u202e",
    "i%(where)s%s{{ 1 }}$host",
    "j`victim`'",
    "[a-z]+",
    "k 日本 é",
]
NAMES = [*HOSTILE, "victim"]


def history(_start, first, last):
    """Yield OpenMetrics lines.

    Each name has a host with one GPU of the same name. Each GPU uses as many GiB as its name's position in NAMES.
    """
    for name in ("gpu:memory_used_bytes:max5m", "gpu:info"):
        yield "# TYPE %s gauge\n" % name
        for number, text in enumerate(NAMES):
            text = text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
            for at in range(first, last + 1, STEP):
                yield '%s{host="%s",gpu_uuid="%s"} %s %d\n' % (name, text, text, number * GIB, at)
    yield "# EOF\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serve(history, 1, tmp_path_factory.mktemp("hostile")) as url:
        yield Prometheus(Access(url))


class OnlyHosts:
    """A server that cannot answer queries over the whole fleet."""

    def __init__(self, server):
        self.server, self.name = server, server.name

    def query(self, expression, at_seconds=None):
        if "host=" not in expression:
            raise PrometheusError(self.name, "too much", too_much=True)
        return self.server.query(expression, at_seconds)


def test_an_audit_in_parts_finds_the_hosts_asked_for(server):
    notes = []
    asking = Asking(OnlyHosts(server), time.time() - 600, "", notes)
    asking.hosts = HOSTILE
    # Compare values, because returned names may have escaped control characters.
    assert sorted(one.value / GIB for one in asking.ask("gpu:info{%(where)s}")) == list(range(len(HOSTILE)))
    assert notes == []


def test_right_sizing_reads_the_gpus_asked_for(server):
    def occupant(name):
        finding = Finding("", Verdict("idle", ""), Holding(Subject("gpu", name, name, "0")))
        return Occupant("of " + name, (name, 0), name, WHOLE, None, finding, Wish(), "")

    read = []

    class Counts:
        name = server.name

        def query_range(self, *arguments):
            answer = server.query_range(*arguments)
            read.extend(max(course.values.values()) / GIB for course in answer.courses)
            return answer

    now = time.time()
    found, _grid, notes = histories(Counts(), [occupant(name) for name in HOSTILE], Window(now - 3000, now - 600))
    assert sorted(read) == list(range(len(HOSTILE))) and notes == []
    for number, name in enumerate(HOSTILE):
        if name.isprintable():
            assert np.nanmax(found["of " + name]["memory"]) == number * GIB
