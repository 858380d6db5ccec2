# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The HTTP API of a Prometheus-compatible server. The only file that speaks to one.

An audit asks instant queries only: what crosses the network then grows with the number of series, never with samples.
Right-sizing asks for ranges besides, of few series and so many points at most.
API: https://prometheus.io/docs/prometheus/latest/querying/api/
"""

from __future__ import annotations

import gzip
import io
import json
import math
import ssl
import threading
import time
import urllib.error
import urllib.parse
import zlib
from dataclasses import dataclass, field
from typing import Any, Mapping

from ...module_utils.errors import FleetError
from ...module_utils.foreign_text import one_line
from ...module_utils.http_opener import HTTPException, Request, basic, opener
from ..host_values import MOST_TEXT, text

#: More than any honest answer: 10,000 GPUs with seven instances each are some 40 MiB.
_MOST_BYTES = 1 << 30
_BLOCK = 1 << 16
#: Seconds in which an answer must be complete, once it has begun.
_ANSWER_SECONDS = 600

#: Characters of what a server says of an error, and how many of its warnings are told.
_SHOWN, _MOST_WARNINGS = 300, 20

#: Of one series in one answer. A server refuses more than 11,000 (its web/api/v1).
MOST_POINTS = 5000


class PrometheusError(FleetError):
    """The server did not answer a query. `where` is its address, without credentials.

    `too_much` is set where the server refused the query for its size, so that asking for less may work.
    """

    def __init__(self, where: str, problem: str, cure: str = "", *, too_much: bool = False) -> None:
        super().__init__(where, problem, cure)
        self.too_much = too_much


@dataclass(frozen=True)
class Access:
    """How to reach the server. `user` and `password` are HTTP basic authentication, `token` a bearer token."""

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    ca_file: str = ""
    verify: bool = True
    timeout_seconds: float = 30.0
    #: Further headers, as Mimir's X-Scope-OrgID.
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Sample:
    """One series of an answer and its value, which may be NaN or infinite."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Answer:
    """What a query gave. `warnings` are the server's own, as of a store that did not answer."""

    samples: tuple[Sample, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Course:
    """One series of an answer over time: value by time in seconds, only where there is one."""

    labels: Mapping[str, str]
    values: Mapping[float, float]


@dataclass(frozen=True)
class RangeAnswer:
    courses: tuple[Course, ...]
    warnings: tuple[str, ...] = ()


class Prometheus:
    """A server. `bytes_received` and `queries` count what crossed the network since the beginning."""

    def __init__(self, access: Access) -> None:
        parts = urllib.parse.urlsplit(access.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise PrometheusError(
                "prometheus.url",
                "%r is not the address of a server" % _without_credentials(access.url),
                "Write it as http://prometheus.example.org:9090 or https://….",
            )
        if parts.username or parts.password:
            raise PrometheusError(
                "prometheus.url",
                "the address carries a user or a password",
                "Give them as user and password, which are kept out of reports and messages.",
            )
        self.access = access
        self.name = urllib.parse.urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
        self.queries = 0
        self.bytes_received = 0
        # Several queries may be under way.
        self._counting = threading.Lock()
        self._opener = opener(self._tls() if parts.scheme == "https" else None)

    def _tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.access.ca_file or None)
        except (OSError, ssl.SSLError) as error:
            raise PrometheusError(
                "prometheus.ca_file",
                "%s cannot be read: %s" % (self.access.ca_file, error),
                "Name a file in PEM format.",
            ) from None
        if not self.access.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def query(self, expression: str, at_seconds: float | None = None) -> Answer:
        """An instant query; the server's own time if none is given.

        Raises PrometheusError.
        """
        form = {"query": expression, "timeout": "%ds" % max(1, math.floor(self.access.timeout_seconds))}
        if at_seconds is not None:
            form["time"] = "%.3f" % at_seconds
        data = self._ask("/api/v1/query", form)
        kind = data.get("resultType")
        result = data.get("result")
        try:
            if kind == "vector":
                samples = tuple(Sample(_labels(row["metric"]), float(row["value"][1])) for row in result)
            elif kind == "scalar":
                samples = (Sample({}, float(result[1])),)
            else:
                raise ValueError("a result of type %r" % (kind,))
        except _MALFORMED as error:
            raise self._malformed(error) from None
        return Answer(samples, _warnings(data))

    def query_range(
        self, expression: str, start_seconds: float, end_seconds: float, step_seconds: float
    ) -> RangeAnswer:
        """The expression at start, start + step, … up to end: at most MOST_POINTS times.

        Raises PrometheusError, and ValueError where that would be more, or never end.
        """
        if not step_seconds > 0 or not 0 <= (end_seconds - start_seconds) / step_seconds < MOST_POINTS:
            raise ValueError("from %r to %r in steps of %r" % (start_seconds, end_seconds, step_seconds))
        form = {
            "query": expression,
            "start": "%.3f" % start_seconds,
            "end": "%.3f" % end_seconds,
            "step": "%.3f" % step_seconds,
            "timeout": "%ds" % max(1, math.floor(self.access.timeout_seconds)),
        }
        data = self._ask("/api/v1/query_range", form)
        try:
            if data.get("resultType") != "matrix":
                raise ValueError("a result of type %r" % (data.get("resultType"),))
            courses = tuple(
                Course(_labels(row["metric"]), {float(at): float(value) for at, value in row["values"]})
                for row in data["result"]
            )
        except _MALFORMED as error:
            raise self._malformed(error) from None
        return RangeAnswer(courses, _warnings(data))

    def now(self) -> float:
        """The server's clock, in seconds since the epoch. Raises PrometheusError."""
        samples = self.query("time()").samples
        if not samples or not math.isfinite(samples[0].value):
            raise self._error("it does not say what time it is", _NOT_ONE)
        return samples[0].value

    def _ask(self, path: str, form: Mapping[str, str]) -> dict[str, Any]:
        headers = {
            "Accept": "application/json",
            "Accept-Encoding": "gzip",
            "Content-Type": "application/x-www-form-urlencoded",
            "User-Agent": "openfleet.gpu",
            **self.access.headers,
        }
        if self.access.token:
            headers["Authorization"] = "Bearer " + self.access.token
        elif self.access.user:
            headers["Authorization"] = basic(self.access.user, self.access.password)
        # POST: a query over many hosts is longer than an address may be.
        request = Request(self.name + path, urllib.parse.urlencode(form).encode(), headers)
        with self._counting:
            self.queries += 1
        try:
            # The server is told to give up first, so that its own words arrive.
            with self._opener.open(request, timeout=self.access.timeout_seconds + 2) as response:
                body = self._read(response)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error.code, _text_of(error)) from None
        except TimeoutError:
            raise self._error(
                "it did not answer within %g s" % self.access.timeout_seconds,
                "Give it more time (timeout_seconds), or ask for a shorter window.",
                too_much=True,
            ) from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise self._error("it could not be reached within %g s" % self.access.timeout_seconds, _REACH) from None
            raise self._error("it could not be reached: %s" % one_line(error.reason, _SHOWN), _REACH) from None
        except (HTTPException, OSError, EOFError, zlib.error) as error:
            raise self._error(
                "its answer broke off: %s" % one_line(error or type(error).__name__, _SHOWN), _REACH
            ) from None
        except ValueError:
            # Its text would repeat a header, and with it a secret.
            raise self._error(
                "it cannot be asked: the token or a header is none of HTTP's", "Look at prometheus.token and headers."
            ) from None
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            raise self._error("it answered with something other than JSON", _NOT_ONE) from None
        if not isinstance(found, dict) or found.get("status") != "success" or not isinstance(found.get("data"), dict):
            why = found.get("error", "no reason given") if isinstance(found, dict) else "not an object"
            raise self._error("it refused the query: %s" % one_line(why, _SHOWN), _NOT_ONE)
        return {"warnings": found.get("warnings") or (), **found["data"]}

    def _read(self, response: Any) -> bytes:
        blocks: list[bytes] = []
        size = 0
        packed = response.headers.get("Content-Encoding") == "gzip"
        deadline = time.monotonic() + _ANSWER_SECONDS
        # One read of the socket each: a server that sends a byte now and then meets no timeout of the socket.
        for block in iter(lambda: response.read1(_BLOCK), b""):
            if time.monotonic() > deadline:
                raise self._error(
                    "its answer takes longer than %d s" % _ANSWER_SECONDS, "Ask for fewer hosts.", too_much=True
                )
            size += len(block)
            with self._counting:
                self.bytes_received += len(block)
            if size > _MOST_BYTES:
                raise self._error(
                    "its answer is larger than %d bytes" % _MOST_BYTES, "Ask for fewer hosts.", too_much=True
                )
            blocks.append(block)
        body = b"".join(blocks)
        if not packed:
            return body
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
            unpacked = file.read(_MOST_BYTES + 1)
        if len(unpacked) > _MOST_BYTES:
            raise self._error("its answer is larger than %d bytes" % _MOST_BYTES, "Ask for fewer hosts.", too_much=True)
        return unpacked

    def _refused(self, code: int, text: str) -> PrometheusError:
        if code in (401, 403):
            return self._error(
                "it wants other credentials (HTTP %d)" % code,
                "Look at prometheus.user, password or token, in the vault.",
            )
        if code in (301, 302, 303, 307, 308):
            return self._error("it sends elsewhere (HTTP %d)" % code, "Give the address that it sends to.")
        if code == 404:
            return self._error("there is no API at this address (HTTP 404)", _NOT_ONE)
        # 422: the query cannot be carried out, as for too many samples; 503: it took too long. Thanos and Mimir say 413
        # and 429 for what is above their limits.
        if code in (413, 422, 429, 503):
            return self._error(
                "it could not carry out the query (HTTP %d): %s" % (code, text),
                "Ask for a shorter window or fewer hosts, or raise the server's limits (--query.max-samples).",
                too_much=True,
            )
        return self._error("it answered HTTP %d: %s" % (code, text), "Look at its log.")

    def _malformed(self, error: Exception) -> PrometheusError:
        # The text of the error repeats what the server sent.
        return self._error("its answer is not what the API promises: %s" % one_line(error, _SHOWN), _NOT_ONE)

    def _error(self, problem: str, cure: str, *, too_much: bool = False) -> PrometheusError:
        return PrometheusError(self.name, problem, cure, too_much=too_much)


#: What an answer of another form than the API's raises.
_MALFORMED = (AttributeError, KeyError, IndexError, TypeError, ValueError)
_REACH = "Look whether the address is right and the server runs, and whether this machine may reach it."
_NOT_ONE = "Look whether prometheus.url is that of a Prometheus-compatible API (ends before /api/v1)."


def _text_of(error: urllib.error.HTTPError) -> str:
    """What the server says of a refusal, in one line."""
    try:
        body = error.read(_BLOCK)
        if error.headers.get("Content-Encoding") == "gzip":
            with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
                body = file.read(_BLOCK)
        found = json.loads(body)
        said = str(found["error"])
    except (OSError, EOFError, ValueError, KeyError, TypeError, RecursionError, zlib.error, HTTPException):
        said = error.reason or "no reason given"
    return one_line(said, _SHOWN)


def _warnings(data: Mapping[str, Any]) -> tuple[str, ...]:
    given = data.get("warnings")
    return tuple(text(each) for each in given[:_MOST_WARNINGS]) if isinstance(given, (list, tuple)) else ()


def _labels(given: Mapping[str, Any]) -> dict[str, str]:
    """An exporter chooses most of them, and they come into reports and messages."""
    # Of the millions that a large fleet has nearly all are fine as they are.
    if all(str.isprintable(each) and len(each) <= MOST_TEXT for pair in given.items() for each in pair):
        return dict(given)
    return {text(name): text(value) for name, value in given.items()}


def _without_credentials(url: str) -> str:
    return url.rpartition("@")[2] if "@" in url else url
