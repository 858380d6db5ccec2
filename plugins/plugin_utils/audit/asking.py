# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How an audit asks a server: a few queries at a time, and in parts, host by host at last, where one is too much."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Sequence, TypeVar

from ..promql import any_of
from .prometheus import Answer, Course, Prometheus, PrometheusError, RangeAnswer, Sample

_Row = TypeVar("_Row")
_Answer = TypeVar("_Answer", Answer, RangeAnswer)

#: Queries under way at once. One query takes one core of a Prometheus, which lets 20 run at a time if nothing else is said
#: (--query.max-concurrency, https://prometheus.io/docs/prometheus/latest/command-line/prometheus/): the most are left to others.
AT_ONCE = 4

#: GPUs in one query about single GPUs.
GPUS_A_QUERY = 40

#: An expression with %(where)s in its selectors, and the time it is asked of, in seconds since the epoch.
Question = tuple[str, float]


class Asking:
    """A server that is asked of one fleet.

    `selector` narrows the series, as ``cluster="a"``; `hosts` are those to go by where a query is too much for the server, and
    `notes` gets what it warns of.
    """

    def __init__(self, server: Prometheus, end_seconds: float, selector: str, notes: list[str]) -> None:
        self.server = server
        self.end_seconds = end_seconds
        self.selector = selector
        self.notes = notes
        self.hosts: list[str] = []

    def ask(self, expression: str) -> list[Sample]:
        """What holds at the end of the window. Raises PrometheusError."""
        return self._in_parts(expression, self.end_seconds, self.hosts, whole=True)

    def ask_all(self, expressions: Sequence[str]) -> list[list[Sample]]:
        """The same of several, in their order."""
        return self._at_once(self.ask, expressions)

    def ask_of(self, expression: str, uuids: Sequence[str]) -> list[Sample]:
        """The same of some GPUs only, a few dozen a query."""

        def query(where: str) -> Sequence[Sample]:
            return self._noted(self.server.query(expression.replace("%(where)s", where), self.end_seconds)).samples

        return self._of_gpus(query, uuids)

    def ask_courses(self, expression: str, span_seconds: int, step_seconds: int, uuids: Sequence[str]) -> list[Course]:
        """The courses of some GPUs over the last `span_seconds`, a few dozen GPUs a query. Raises PrometheusError."""
        start = self.end_seconds - span_seconds

        def query(where: str) -> Sequence[Course]:
            text = expression.replace("%(where)s", where)
            return self._noted(self.server.query_range(text, start, self.end_seconds, step_seconds)).courses

        return self._of_gpus(query, uuids)

    def _of_gpus(self, query: Callable[[str], Sequence[_Row]], uuids: Sequence[str]) -> list[_Row]:
        parts = [uuids[at : at + GPUS_A_QUERY] for at in range(0, len(uuids), GPUS_A_QUERY)]
        answers = self._at_once(lambda part: in_halves(query, self.selector, part), parts)
        return [row for answer in answers for row in answer]

    def ask_for_one(self, questions: Sequence[Question]) -> list[Sample | None]:
        """The only sample of each answer. Of several parts the fleet's cannot be told: what is too much is None, and noted."""
        return self._at_once(self._one, questions)

    def _at_once(self, ask, questions):
        with ThreadPoolExecutor(AT_ONCE) as pool:
            under_way = [pool.submit(ask, question) for question in questions]
            try:
                return [one.result() for one in under_way]
            except PrometheusError:
                # The others would fail as well, each after its own time.
                pool.shutdown(cancel_futures=True)
                raise

    def _one(self, question: Question) -> Sample | None:
        expression, at = question
        try:
            samples = self._in_parts(expression, at, [], whole=True)
        except PrometheusError as error:
            if not error.too_much:
                raise
            self.notes.append("The fleet's history is too much for %s, and left out." % self.server.name)
            return None
        return samples[0] if samples else None

    def _in_parts(self, expression: str, at: float, hosts: list[str], *, whole: bool) -> list[Sample]:
        matchers = [self.selector] if self.selector else []
        if not whole:
            matchers.append("host=~%s" % any_of(hosts))
        try:
            answer = self.server.query(expression.replace("%(where)s", ",".join(matchers)), at)
        except PrometheusError as error:
            if not error.too_much or len(hosts) < 2:
                raise
            half = len(hosts) // 2
            return [
                sample
                for part in (hosts[:half], hosts[half:])
                for sample in self._in_parts(expression, at, part, whole=False)
            ]
        return list(self._noted(answer).samples)

    def _noted(self, answer: _Answer) -> _Answer:
        self.notes += ["%s warns: %s" % (self.server.name, warning) for warning in answer.warnings]
        return answer


def in_halves(query: Callable[[str], Sequence[_Row]], selector: str, uuids: Sequence[str]) -> list[_Row]:
    """What a query by label matchers gives of these GPUs, asked again for half of them where it is too much.

    Raises PrometheusError.
    """
    try:
        return list(query(",".join([*([selector] if selector else []), "gpu_uuid=~%s" % any_of(uuids)])))
    except PrometheusError as error:
        if not error.too_much or len(uuids) < 2:
            raise
    half = len(uuids) // 2
    return [row for part in (uuids[:half], uuids[half:]) for row in in_halves(query, selector, part)]
