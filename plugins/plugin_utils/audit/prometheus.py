# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Client of the HTTP API of a Prometheus-compatible server.

The collection has no other Prometheus client.

An audit mostly uses instant queries. Their network traffic grows with the number of series, not with the number of samples.
Range queries have a limited number of series and points.
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

#: Maximum size of a response in bytes. The response for 10,000 GPUs with seven instances each has about 40 MiB.
_MOST_BYTES = 1 << 30
_BLOCK = 1 << 16
#: Maximum time for receiving a response, in seconds.
_ANSWER_SECONDS = 600

#: Limits for text from the server: length of an error message, and number of warnings.
_SHOWN, _MOST_WARNINGS = 300, 20

#: Maximum number of points per series in a response. Prometheus refuses more than 11,000 (web/api/v1 in its source).
MOST_POINTS = 5000


class PrometheusError(FleetError):
    """The server did not answer a query.

    `where` is its address without credentials. `too_much` is true if the query was too large, so that a smaller query
    may succeed.
    """

    def __init__(self, where: str, problem: str, cure: str = "", *, too_much: bool = False) -> None:
        super().__init__(where, problem, cure)
        self.too_much = too_much


@dataclass(frozen=True)
class Access:
    """Address and credentials of the server.

    `user` and `password` are for HTTP basic authentication, `token` is a bearer token.
    """

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    ca_file: str = ""
    verify: bool = True
    timeout_seconds: float = 30.0
    #: Additional headers, for example Mimir's X-Scope-OrgID.
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Sample:
    """One series of a response, with its value.

    The value may be NaN or infinite.
    """

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Answer:
    """Result of an instant query.

    `warnings` are messages of the server, for example about a store that did not answer.
    """

    samples: tuple[Sample, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Course:
    """One series of a range query: values by Unix time in seconds.

    Times without a sample are left out.
    """

    labels: Mapping[str, str]
    values: Mapping[float, float]


@dataclass(frozen=True)
class RangeAnswer:
    """Result of a range query."""

    courses: tuple[Course, ...]
    warnings: tuple[str, ...] = ()


class Prometheus:
    """A server.

    `bytes_received` and `queries` count the traffic so far.
    """

    def __init__(self, access: Access) -> None:
        parts = urllib.parse.urlsplit(access.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise PrometheusError(
                "prometheus.url",
                "%r is not the URL of a server" % _without_credentials(access.url),
                "Write it as http://prometheus.example.org:9090 or https://….",
            )
        if parts.username or parts.password:
            raise PrometheusError(
                "prometheus.url",
                "the URL contains a user or a password",
                "Set user and password instead. They are not shown in reports and messages.",
            )
        self.access = access
        self.name = urllib.parse.urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
        self.queries = 0
        self.bytes_received = 0
        # Protects the counters against concurrent queries.
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
        """Run an instant query, by default at the server's current time.

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
        """Run a range query at start, start + step, … up to end.

        Raises PrometheusError. Raises ValueError for an invalid step, or for more than MOST_POINTS points.
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
        """Return the server's time in seconds since the epoch. Raises PrometheusError."""
        samples = self.query("time()").samples
        if not samples or not math.isfinite(samples[0].value):
            raise self._error("it does not report its time", _NOT_ONE)
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
        # Use POST: a query about many hosts exceeds the maximum length of a URL.
        request = Request(self.name + path, urllib.parse.urlencode(form).encode(), headers)
        with self._counting:
            self.queries += 1
        try:
            # Wait longer than the server does, so that its own timeout message arrives.
            with self._opener.open(request, timeout=self.access.timeout_seconds + 2) as response:
                body = self._read(response)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error.code, _text_of(error)) from None
        except TimeoutError:
            raise self._error(
                "it did not answer within %g s" % self.access.timeout_seconds,
                "Increase timeout_seconds, or use a shorter window.",
                too_much=True,
            ) from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise self._error("it could not be reached within %g s" % self.access.timeout_seconds, _REACH) from None
            raise self._error("it could not be reached: %s" % one_line(error.reason, _SHOWN), _REACH) from None
        except (HTTPException, OSError, EOFError, zlib.error) as error:
            raise self._error(
                "its answer was interrupted: %s" % one_line(error or type(error).__name__, _SHOWN), _REACH
            ) from None
        except ValueError:
            # Do not show the error: it repeats a header, which may be secret.
            raise self._error(
                "the request is invalid: the token or a header is not allowed in HTTP",
                "Check prometheus.token and headers.",
            ) from None
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            raise self._error("its answer is not JSON", _NOT_ONE) from None
        if not isinstance(found, dict) or found.get("status") != "success" or not isinstance(found.get("data"), dict):
            why = found.get("error", "no reason given") if isinstance(found, dict) else "not an object"
            raise self._error("it refused the query: %s" % one_line(why, _SHOWN), _NOT_ONE)
        return {"warnings": found.get("warnings") or (), **found["data"]}

    def _read(self, response: Any) -> bytes:
        blocks: list[bytes] = []
        size = 0
        packed = response.headers.get("Content-Encoding") == "gzip"
        deadline = time.monotonic() + _ANSWER_SECONDS
        # Check the deadline after each read, because a server that sends single bytes never triggers the socket's
        # timeout.
        for block in iter(lambda: response.read1(_BLOCK), b""):
            if time.monotonic() > deadline:
                raise self._error(
                    "its answer takes longer than %d s" % _ANSWER_SECONDS, "Query fewer hosts.", too_much=True
                )
            size += len(block)
            with self._counting:
                self.bytes_received += len(block)
            if size > _MOST_BYTES:
                raise self._error(
                    "its answer is larger than %d bytes" % _MOST_BYTES, "Query fewer hosts.", too_much=True
                )
            blocks.append(block)
        body = b"".join(blocks)
        if not packed:
            return body
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
            unpacked = file.read(_MOST_BYTES + 1)
        if len(unpacked) > _MOST_BYTES:
            raise self._error("its answer is larger than %d bytes" % _MOST_BYTES, "Query fewer hosts.", too_much=True)
        return unpacked

    def _refused(self, code: int, text: str) -> PrometheusError:
        if code in (401, 403):
            return self._error(
                "it rejected the credentials (HTTP %d)" % code,
                "Check prometheus.user, password or token in the vault.",
            )
        if code in (301, 302, 303, 307, 308):
            return self._error("it redirects (HTTP %d)" % code, "Use the URL that it redirects to.")
        if code == 404:
            return self._error("no API at this URL (HTTP 404)", _NOT_ONE)
        # 422: the query failed, for example with too many samples. 503: it took too long. 413 and 429: it exceeded a
        # limit of Thanos or Mimir.
        if code in (413, 422, 429, 503):
            return self._error(
                "the query failed (HTTP %d): %s" % (code, text),
                "Use a shorter window or fewer hosts, or increase the server's limits (--query.max-samples).",
                too_much=True,
            )
        return self._error("it answered HTTP %d: %s" % (code, text), "See its log.")

    def _malformed(self, error: Exception) -> PrometheusError:
        # The error's text contains data from the server, so make it printable.
        return self._error("its answer does not have the format of the API: %s" % one_line(error, _SHOWN), _NOT_ONE)

    def _error(self, problem: str, cure: str, *, too_much: bool = False) -> PrometheusError:
        return PrometheusError(self.name, problem, cure, too_much=too_much)


#: Errors for a response that does not have the format of the API.
_MALFORMED = (AttributeError, KeyError, IndexError, TypeError, ValueError)
_REACH = "Check the URL, that the server runs, and that this machine can reach it."
_NOT_ONE = "Check that prometheus.url is a Prometheus-compatible API (the part before /api/v1)."


def _text_of(error: urllib.error.HTTPError) -> str:
    """Return the server's error message in one line."""
    try:
        body = error.read(_BLOCK)
        if error.headers.get("Content-Encoding") == "gzip":
            with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
                body = file.read(_BLOCK)
        found = json.loads(body)
        message = str(found["error"])
    except (OSError, EOFError, ValueError, KeyError, TypeError, RecursionError, zlib.error, HTTPException):
        message = error.reason or "no reason given"
    return one_line(message, _SHOWN)


def _warnings(data: Mapping[str, Any]) -> tuple[str, ...]:
    given = data.get("warnings")
    return tuple(text(each) for each in given[:_MOST_WARNINGS]) if isinstance(given, (list, tuple)) else ()


def _labels(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels with printable names and values.

    Exporters choose the labels, which may have any characters. Reports and messages show them.
    """
    # This is faster, because a large fleet has millions of labels, and nearly all are printable.
    if all(str.isprintable(each) and len(each) <= MOST_TEXT for pair in given.items() for each in pair):
        return dict(given)
    return {text(name): text(value) for name, value in given.items()}


def _without_credentials(url: str) -> str:
    return url.rpartition("@")[2] if "@" in url else url
