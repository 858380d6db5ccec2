# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the Prometheus client with servers that refuse, lie, stall or disconnect.

The tests use real sockets.
"""

from __future__ import annotations

import base64
import gzip
import http.server
import json
import math
import socket
import threading
import urllib.parse

import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.prometheus import (
    Access,
    Prometheus,
    PrometheusError,
)


class Server(http.server.ThreadingHTTPServer):
    """Answer each query with the (status, headers, body) that `answer` returns."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = lambda form: vector()
        self.seen = []

    def handle_error(self, request, client_address):
        """Ignore errors of clients that disconnect, which one of the tests causes."""

    @property
    def url(self):
        return "http://127.0.0.1:%d" % self.server_address[1]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = dict(urllib.parse.parse_qsl(body))
        self.server.seen.append((self.path, form, self.headers))
        status, headers, content = self.server.answer(form)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST

    def log_message(self, *args):
        pass


def answer(data, **more):
    return 200, {}, json.dumps({"status": "success", "data": data, **more}).encode()


def vector(*rows):
    result = [{"metric": labels, "value": [1700000000, value]} for labels, value in rows]
    return answer({"resultType": "vector", "result": result})


def refusal(status, text):
    return status, {}, json.dumps({"status": "error", "errorType": "execution", "error": text}).encode()


@pytest.fixture
def server():
    with Server() as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield found
        found.shutdown()


def client(server, **access):
    return Prometheus(Access(server.url, **{"timeout_seconds": 10, **access}))


def test_a_vector_with_its_labels_and_odd_values(server):
    server.answer = lambda form: vector(({"host": "a"}, "0.5"), ({"host": "b"}, "NaN"), ({"host": "c"}, "+Inf"))
    samples = client(server).query("x").samples
    assert [sample.labels["host"] for sample in samples] == ["a", "b", "c"]
    assert samples[0].value == 0.5 and math.isnan(samples[1].value) and samples[2].value == math.inf


def test_query_time_and_credentials_are_sent(server):
    client(server, user="audit", password="s3cret", headers={"X-Scope-OrgID": "gpu"}).query("up == 1", 1700000000.5)
    path, form, headers = server.seen[0]
    assert path == "/api/v1/query"
    assert form["query"] == "up == 1" and form["time"] == "1700000000.500"
    assert base64.b64decode(headers["Authorization"].split()[1]) == b"audit:s3cret"
    assert headers["X-Scope-OrgID"] == "gpu"


def test_bearer_token_takes_precedence_over_a_user(server):
    client(server, token="abc", user="audit", password="s3cret").query("x")
    assert server.seen[0][2]["Authorization"] == "Bearer abc"


def test_an_address_with_a_path_in_front_of_the_api(server):
    Prometheus(Access(server.url + "/prometheus/")).query("x")
    assert server.seen[0][0] == "/prometheus/api/v1/query"


def test_compressed_answer_counts_by_its_transferred_size(server):
    body = vector(*(({"host": "h%d" % n}, "1") for n in range(500)))[2]
    packed = gzip.compress(body)
    server.answer = lambda form: (200, {"Content-Encoding": "gzip"}, packed)
    found = client(server)
    assert len(found.query("x").samples) == 500
    assert found.bytes_received == len(packed) and found.queries == 1


def test_the_server_s_own_warnings_are_kept(server):
    server.answer = lambda form: answer({"resultType": "vector", "result": []}, warnings=["a store did not answer"])
    assert client(server).query("x").warnings == ("a store did not answer",)


def matrix(*rows):
    return answer({"resultType": "matrix", "result": [{"metric": labels, "values": values} for labels, values in rows]})


def test_range_has_gaps_where_the_server_has_no_values(server):
    server.answer = lambda form: matrix(({"host": "a"}, [[600, "1"], [1200, "NaN"]]), ({"host": "b"}, []))
    found = client(server).query_range("x", 600, 1200, 300)
    assert [dict(course.labels) for course in found.courses] == [{"host": "a"}, {"host": "b"}]
    assert set(found.courses[0].values) == {600.0, 1200.0} and found.courses[0].values[600.0] == 1.0
    assert math.isnan(found.courses[0].values[1200.0]) and found.courses[1].values == {}
    path, form, _headers = server.seen[0]
    assert path == "/api/v1/query_range"
    assert (form["query"], form["start"], form["end"], form["step"]) == ("x", "600.000", "1200.000", "300.000")


@pytest.mark.parametrize(
    ("end", "step"), [(1e9, 300), (600, 0), (600, -1), (-1, 300), (600, math.nan), (math.nan, 300)]
)
def test_range_of_too_many_points_is_not_queried(server, end, step):
    with pytest.raises(ValueError, match="steps of"):
        client(server).query_range("x", 0, end, step)
    assert not server.seen


@pytest.mark.parametrize(
    "data",
    [
        {"resultType": "vector", "result": []},
        {"resultType": "matrix", "result": [{"metric": {}}]},
        {"resultType": "matrix", "result": [{"metric": {}, "values": [[1]]}]},
        {"resultType": "matrix", "result": [{"metric": {}, "values": [[1, "many"]]}]},
    ],
)
def test_invalid_range_is_an_error(server, data):
    server.answer = lambda form: answer(data)
    with pytest.raises(PrometheusError, match="Prometheus-compatible"):
        client(server).query_range("x", 0, 600, 300)


def test_the_server_s_clock(server):
    server.answer = lambda form: answer({"resultType": "scalar", "result": [1, "1700000001.25"]})
    assert client(server).now() == 1700000001.25


@pytest.mark.parametrize(
    "content",
    [
        b"<html>Grafana</html>",
        b"[]",
        b'{"status": "success"}',
        b'{"status": "success", "data": {"resultType": "matrix", "result": []}}',
        b'{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}}]}}',
        b'{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "value": [1, "many"]}]}}',
        b'{"status": "success", "data": {"resultType": "vector", "result": null}}',
    ],
)
def test_invalid_api_answer_is_an_error(server, content):
    server.answer = lambda form: (200, {}, content)
    with pytest.raises(PrometheusError, match="Prometheus-compatible"):
        client(server).query("x")


@pytest.mark.parametrize(
    ("status", "said", "too_much"),
    [
        (401, "credentials", False),
        (403, "credentials", False),
        (404, "no API at this URL", False),
        (307, "redirects", False),
        (422, "loads too many samples", True),
        (503, "loads too many samples", True),
        (429, "loads too many samples", True),
        (500, "HTTP 500: query loads too many samples", False),
    ],
)
def test_refusal_has_a_fix(server, status, said, too_much):
    server.answer = lambda form: refusal(status, "query loads\ntoo many samples")
    with pytest.raises(PrometheusError, match=said) as error:
        client(server, password="s3cret", user="u").query("x")
    assert error.value.where == server.url and error.value.cure
    assert error.value.too_much is too_much
    assert "s3cret" not in str(error.value)


def test_password_is_not_sent_to_another_server(server):
    with Server() as other:
        threading.Thread(target=other.serve_forever, args=(0.02,), daemon=True).start()
        server.answer = lambda form: (302, {"Location": other.url + "/api/v1/query"}, b"")
        with pytest.raises(PrometheusError, match="redirects"):
            client(server, user="u", password="p").query("x")
        assert other.seen == []
        other.shutdown()


def test_stalling_server_times_out(server):
    release = threading.Event()
    server.answer = lambda form: (release.wait(60), vector())[1]
    with pytest.raises(PrometheusError, match="did not answer within") as error:
        # The client adds 2 s to the timeout that it asks of the server.
        client(server, timeout_seconds=-1.5).query("x")
    release.set()
    assert error.value.too_much


def test_incomplete_answer_is_an_error(server):
    server.answer = lambda form: (200, {"Content-Length": "1000"}, b'{"status"')
    with pytest.raises(PrometheusError):
        client(server).query("x")


def test_incomplete_compressed_answer_is_an_error(server):
    packed = gzip.compress(vector(({"host": "a"}, "1"))[2])
    server.answer = lambda form: (200, {"Content-Encoding": "gzip"}, packed[:-12])
    with pytest.raises(PrometheusError, match="was interrupted"):
        client(server).query("x")


def test_refused_connection_is_an_error():
    with socket.socket() as taken:
        # The socket is bound, so no other process can get the port, but it does not listen.
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(PrometheusError, match="could not be reached"):
            Prometheus(Access("http://127.0.0.1:%d" % taken.getsockname()[1])).query("x")


@pytest.mark.parametrize("url", ["prometheus:9090", "ftp://a/", "http://", ""])
def test_invalid_address_is_an_error(url):
    with pytest.raises(PrometheusError, match="not the URL of a server"):
        Prometheus(Access(url))


def test_address_with_a_password_is_refused_without_showing_it():
    with pytest.raises(PrometheusError, match="contains a user") as error:
        Prometheus(Access("http://audit:s3cret@prometheus.example.org"))
    assert "s3cret" not in str(error.value)


def test_secrets_do_not_show():
    assert "s3cret" not in repr(Access("http://a", user="u", password="s3cret", token="s3cret"))


def test_invalid_ca_file_is_an_error(tmp_path):
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(PrometheusError, match="ca_file"):
        Prometheus(Access("https://prometheus.example.org", ca_file=str(tmp_path / "ca.pem")))


def test_token_invalid_in_headers_is_not_shown():
    with pytest.raises(PrometheusError, match="not allowed in HTTP") as error:
        Prometheus(Access("http://127.0.0.1:9", token="s3cr3t\n")).query("1")
    assert "s3cr3t" not in str(error.value)


FORGED = "x\r\n\x1b[2Jgpu-7: right\u2028" + "y" * 5000
HOSTILE = {
    "a value": vector(({"host": "a"}, FORGED)),
    "a type": answer({"resultType": FORGED, "result": []}),
    "a refusal": (200, {}, json.dumps({"status": "error", "error": FORGED}).encode()),
    "an error": refusal(422, FORGED),
    "labels of another form": answer({"resultType": "vector", "result": [{"metric": ["a"], "value": [1, "1"]}]}),
    "a label of another form": answer({"resultType": "vector", "result": [{"metric": {"a": 1}, "value": [1, "1"]}]}),
    "rows of another form": answer({"resultType": "vector", "result": 7}),
    "deep": (200, {}, b"[" * 100_000),
    "a deep error": (400, {}, b"[" * 60_000),
    "a packed error": (400, {"Content-Encoding": "gzip"}, gzip.compress(b"x" * (64 << 20))),
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_texts_of_a_hostile_server_are_one_short_line(server, hostile):
    """Print label values on one short line.

    Exporters choose the label values, and messages appear in reports and mails.
    """
    server.answer = lambda form: hostile
    with pytest.raises(PrometheusError) as raised:
        client(server).query("x")
    assert str(raised.value).isprintable() and len(str(raised.value)) < 700


def test_labels_and_warnings_are_printable_and_short(server):
    server.answer = lambda form: answer(
        {"resultType": "vector", "result": [{"metric": {FORGED: FORGED, "host": "a"}, "value": [1, "1"]}]},
        warnings=[FORGED, {"a": FORGED}],
    )
    found = client(server).query("x")
    (sample,) = found.samples
    texts = [*sample.labels, *sample.labels.values(), *found.warnings]
    assert len(texts) == 6 and all(text.isprintable() and len(text) <= 1000 for text in texts)


@pytest.mark.parametrize("warnings", [7, "x" * 5000, {"a": "b"}])
def test_malformed_warnings_are_ignored(server, warnings):
    server.answer = lambda form: answer({"resultType": "vector", "result": []}, warnings=warnings)
    assert client(server).query("x").warnings == ()
