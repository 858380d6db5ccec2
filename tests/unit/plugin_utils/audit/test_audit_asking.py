# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Split queries to a server by time, and combine their results."""

from __future__ import annotations

import math
import threading
import time

import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit import asking
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.asking import Asking
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.lasting import Piece, lasting
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.prometheus import Answer, PrometheusError, Sample

KEY = ("a", "GPU-1", "", "")
STEP = 300


class Server:
    """Answer each query with the query itself.

    A query in `refuses` is too large, or fails.
    """

    name = "http://server"

    def __init__(self, refuses=lambda expression: None):
        self.refuses = refuses
        self.asked = []
        self.lock = threading.Lock()
        self.under_way = self.most = 0

    def query(self, expression, at_seconds=None):
        with self.lock:
            self.asked.append((expression, at_seconds))
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        try:
            error = self.refuses(expression)
            if error:
                raise error
            return Answer((Sample({"expression": expression}, 1.0),), ("one store is away",))
        finally:
            with self.lock:
                self.under_way -= 1


def asking_of(server, selector=""):
    return Asking(server, 1000.0, selector, [])


def texts(samples):
    return [sample.labels["expression"] for sample in samples]


def test_answers_keep_the_order_of_queries():
    server = Server()
    questions = ["gpu:%d{%%(where)s}" % number for number in range(20)]
    answers = asking_of(server, 'cluster="a"').ask_all(questions)
    assert [texts(one) for one in answers] == [['gpu:%d{cluster="a"}' % number] for number in range(20)]
    assert {at for _expression, at in server.asked} == {1000.0}


def test_concurrent_queries_are_limited():
    gate = threading.Barrier(asking.AT_ONCE, timeout=60)

    def waits(_expression):
        gate.wait()

    server = Server(waits)
    asking_of(server).ask_all(["gpu:info"] * (2 * asking.AT_ONCE))
    assert server.most == asking.AT_ONCE


def test_too_large_query_is_split_in_halves():
    def refuses(expression):
        return (
            PrometheusError("server", "too much", too_much=True)
            if expression.count("|") or "host" not in expression
            else None
        )

    server = Server(refuses)
    one = asking_of(server)
    one.hosts = ["a", "b.example", "c"]
    assert texts(one.ask("gpu:info{%(where)s}")) == [
        'gpu:info{host=~"%s"}' % name for name in ("a", "b\\\\.example", "c")
    ]
    assert one.notes and all(note == "http://server warns: one store is away" for note in one.notes)


def test_too_large_query_for_one_host_is_an_error_and_ends_others():
    def refuses(_expression):
        time.sleep(0.05)
        return PrometheusError("server", "too much", too_much=True)

    server = Server(refuses)
    with pytest.raises(PrometheusError):
        asking_of(server).ask_all(["gpu:info"] * 1000)
    assert len(server.asked) < 1000


def test_fleet_wide_value_of_a_split_query_is_unknown():
    server = Server(
        lambda expression: PrometheusError("server", "too much", too_much=True) if "all" in expression else None
    )
    one = asking_of(server)
    one.hosts = ["a", "b"]
    first, second = one.ask_for_one([("all", 10.0), ("some", 20.0)])
    assert first is None and second.value == 1.0
    assert "http://server could not compute the history of the fleet, so it is omitted." in one.notes
    assert ("some", 20.0) in server.asked


def pieces(*figures, samples=None):
    """Return the results of three spans of time.

    These are the last hour, the two hours before it, and three more hours before these.
    """
    spans = [(0, 3600), (3600, 3 * 3600), (3 * 3600, 6 * 3600)]
    made = []
    for index, ((newest, oldest), figure) in enumerate(zip(spans, figures)):
        count = (oldest - newest) / STEP if samples is None else samples[index]
        made.append(Piece(newest, oldest, {} if figure is None else {KEY: figure}, {KEY: count} if count else {}))
    return made


@pytest.mark.parametrize(
    "figures, samples, hours",
    [
        ((0, 0, 0), None, 6),
        ((0, 0, 0.5), None, 3),
        ((0.5, 0, 0), None, None),
        ((0, math.nan, 0), None, 1),
        # At most one sample in ten may be missing.
        ((0, 0, 0), (12, 24, 29), 6),
        ((0, 0, 0), (12, 24, 27), 3),
        # A gap of one hour is more than a tenth of three hours and of six hours. So the total duration is unknown.
        ((None, 0, 0), (0, 24, 36), None),
        ((0, None, 0), (12, 0, 36), 1),
        ((0, 0.5, 0), (12, 24, 36), 1),
    ],
)
def test_duration_of_a_condition_is_certain(figures, samples, hours):
    found = lasting(pieces(*figures, samples=samples), lambda value: 0 <= value < 0.01, STEP)
    assert found == ({KEY: hours * 3600} if hours else {})


#: The ends of the parts into which a window of two weeks is split, in hours before its end.
CUTS = [0, 1, 3, 6, 12, 24, 72, 168, 336]


@pytest.mark.parametrize(
    ("gap", "hours"),
    [
        # For data that is missing up to this time before the end, the current state is still known. After a longer gap,
        # it is unknown.
        ((0, 0.25), 336),
        ((0, 0.5), None),
        ((0, 6), None),
        ((0, 33), None),
        # The server was down for one hour, two hours ago.
        ((2, 3), 336),
        # Even in two weeks, a gap of more than a day is too long.
        ((1, 33), 1),
        ((30, 33), 336),
    ],
)
def test_gap_hides_no_start(gap, hours):
    made = []
    for newest, oldest in zip(CUTS, CUTS[1:]):
        missing = max(0.0, min(oldest, gap[1]) - max(newest, gap[0]))
        count = round((oldest - newest - missing) * 3600 / STEP)
        made.append(Piece(newest * 3600, oldest * 3600, {KEY: 0.0} if count else {}, {KEY: count} if count else {}))
    assert lasting(made, lambda value: value == 0, STEP) == ({KEY: hours * 3600} if hours else {})
