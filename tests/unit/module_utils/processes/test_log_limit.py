# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the limits for journal lines of one tenant or user."""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.processes import log_limit
from ansible_collections.openfleet.gpu.plugins.module_utils.processes.log_limit import BURST, SECONDS_A_LINE, LimitedLog


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def lines():
    return []


@pytest.fixture
def log(lines, clock):
    return LimitedLog(lines.append, clock)


def test_few_lines_of_a_source_are_logged_and_the_rest_counted(log, lines, clock):
    for number in range(1000):
        log.write("a", "line %d" % number)
    assert lines == ["line %d" % number for number in range(BURST)]
    clock.now += 2 * SECONDS_A_LINE
    log.write("a", "later")
    assert lines[BURST:] == ["a: 995 more lines were left out", "later"]


def test_sources_do_not_use_up_lines_of_others(log, lines):
    for _ in range(1000):
        log.write("a", "x")
    log.write("b", "y")
    assert lines == ["x"] * BURST + ["y"]


def test_alternating_sources_do_not_reset_each_other(log, lines):
    for number in range(1000):
        log.write("ab"[number % 2], "line %d" % number)
    assert len(lines) == 2 * BURST


def test_summary_is_logged_once_without_further_lines(log, lines, clock):
    for _ in range(BURST + 7):
        log.write("a", "x")
    log.summarize()
    assert lines == ["x"] * BURST
    clock.now += SECONDS_A_LINE
    log.summarize()
    log.summarize()
    assert lines[BURST:] == ["a: 7 more lines were left out"]


def test_long_floods_are_summarized_regularly(log, lines, clock):
    for _ in range(86400):
        clock.now += 1
        log.write("a", "x")
        log.summarize()
    assert len(lines) <= 86400 / SECONDS_A_LINE + BURST + 1


def test_very_many_sources_share_the_last_bucket(log, lines, clock, monkeypatch):
    monkeypatch.setattr(log_limit, "_MOST_SOURCES", 3)
    for number in range(1000):
        log.write(str(number), "x")
    assert len(lines) == 3 + BURST
    clock.now += BURST * SECONDS_A_LINE
    log.summarize()
    assert lines[-1] == "other sources: 992 more lines were left out"
