# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Query the server, with a few queries at once.

A query that is too large is split by hosts.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Sequence, TypeVar

from ..promql import any_of
from .prometheus import Answer, Course, Prometheus, PrometheusError, RangeAnswer, Sample

_Row = TypeVar("_Row")
_Answer = TypeVar("_Answer", Answer, RangeAnswer)

#: Number of concurrent queries. Each one uses a core of the Prometheus server. By default, Prometheus runs at most 20
#: queries at once (`--query.max-concurrency`, https://prometheus.io/docs/prometheus/latest/command-line/prometheus/).
#: Most of them must stay available to other clients.
AT_ONCE = 4

#: Maximum number of GPUs in a query that names GPUs.
GPUS_A_QUERY = 40

#: (PromQL expression with `%(where)s` in its selectors, evaluation time in seconds since the epoch).
Question = tuple[str, float]


class Asking:
    """Client for queries about one fleet.

    `selector` has label matchers, for example ``cluster="a"``. A query that is too large is split by `hosts`. The
    server's warnings are added to `notes`.
    """

    def __init__(self, server: Prometheus, end_seconds: float, selector: str, notes: list[str]) -> None:
        self.server = server
        self.end_seconds = end_seconds
        self.selector = selector
        self.notes = notes
        self.hosts: list[str] = []

    def ask(self, expression: str) -> list[Sample]:
        """Evaluate an expression at the end of the window. Raises PrometheusError."""
        return self._in_parts(expression, self.end_seconds, self.hosts, whole=True)

    def ask_all(self, expressions: Sequence[str]) -> list[list[Sample]]:
        """Evaluate several expressions, and return the answers in the same order."""
        return self._at_once(self.ask, expressions)

    def ask_of(self, expression: str, uuids: Sequence[str]) -> list[Sample]:
        """Evaluate an expression for the given GPUs, with one query per group of GPUs.

        Raises PrometheusError.
        """

        def query(where: str) -> Sequence[Sample]:
            return self._noted(self.server.query(expression.replace("%(where)s", where), self.end_seconds)).samples

        return self._of_gpus(query, uuids)

    def ask_courses(self, expression: str, span_seconds: int, step_seconds: int, uuids: Sequence[str]) -> list[Course]:
        """Return the values of the given GPUs as time series.

        The series cover the last `span_seconds`. Raises PrometheusError.
        """
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
        """Return the single sample of each answer.

        Fleet-wide queries cannot be split. If one is too large, its sample is None and a note reports it.
        """
        return self._at_once(self._one, questions)

    def _at_once(self, ask, questions):
        with ThreadPoolExecutor(AT_ONCE) as pool:
            under_way = [pool.submit(ask, question) for question in questions]
            try:
                return [one.result() for one in under_way]
            except PrometheusError:
                # Do not start the remaining queries. Each would probably fail too, but only after its timeout.
                pool.shutdown(cancel_futures=True)
                raise

    def _one(self, question: Question) -> Sample | None:
        expression, at = question
        try:
            samples = self._in_parts(expression, at, [], whole=True)
        except PrometheusError as error:
            if not error.too_much:
                raise
            self.notes.append("%s could not compute the history of the fleet, so it is omitted." % self.server.name)
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
    """Run a query for these GPUs, or for each half of them if it is too large.

    Raises PrometheusError.
    """
    try:
        return list(query(",".join([*([selector] if selector else []), "gpu_uuid=~%s" % any_of(uuids)])))
    except PrometheusError as error:
        if not error.too_much or len(uuids) < 2:
            raise
    half = len(uuids) // 2
    return [row for part in (uuids[:half], uuids[half:]) for row in in_halves(query, selector, part)]
