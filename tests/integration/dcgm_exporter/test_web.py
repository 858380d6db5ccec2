# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test access to metrics with real HTTP clients.

The tests use TLS, passwords and misbehaving clients.
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import ssl
import subprocess
import sys
import urllib.error
from pathlib import Path

import bcrypt
import pytest

ROLE_FILES = Path(__file__).resolve().parents[3] / "roles" / "dcgm_exporter" / "files"
sys.path.insert(0, str(ROLE_FILES))

from openfleet_exporter.web import (
    MOST_CLIENTS,
    Passwords,
    Server,
    WebConfigError,
    guarded,
    read_config,
    tls_context,
)

OPENSSL = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3"]
PASSWORD = "a lock of größe"


@pytest.fixture
def secured(host):
    """Return a web configuration with TLS and a password, as the role writes it."""
    folder = host.folder
    subprocess.run(
        [
            *OPENSSL,
            "-keyout",
            "tls.key",
            "-out",
            "tls.crt",
            "-subj",
            "/CN=gpu",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    config = folder / "web-config"
    config.write_text(
        json.dumps(
            {
                "tls_server_config": {"cert_file": str(folder / "tls.crt"), "key_file": str(folder / "tls.key")},
                "basic_auth_users": {"prometheus": bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()},
            }
        )
    )
    host.create([{"model": "H100-80GB", "count": 1}])
    return config


def test_tls_and_a_password(secured, start):
    exporter = start(web_config=str(secured))
    status, body = exporter.get(user=f"prometheus:{PASSWORD}")
    assert status == 200 and "openfleet_gpu_info{" in body
    for wrong in (None, "prometheus:", "prometheus:another", f"somebody:{PASSWORD}", f":{PASSWORD}", "prometheus"):
        status, body = exporter.get(user=wrong)
        assert (status, "gpu" in body) == (401, False), wrong
    # The exporter refuses other authentication schemes and other paths too.
    assert exporter.get(headers={"Authorization": "Bearer x"})[0] == 401
    assert exporter.get(headers={"Authorization": "Basic !!"})[0] == 401
    assert exporter.get("/", user=f"prometheus:{PASSWORD}")[0] == 404
    assert exporter.get("/")[0] == 401


def test_plain_http_is_not_answered_with_tls(secured, start):
    exporter = start(web_config=str(secured))
    exporter.secure = False
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        exporter.get()
    exporter.secure = True
    assert exporter.get(user=f"prometheus:{PASSWORD}")[0] == 200


def test_old_tls_is_refused(secured):
    context = tls_context(read_config(secured))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_silent_client_does_not_block_others(secured, start):
    exporter = start(web_config=str(secured))
    silent = [socket.create_connection(("127.0.0.1", exporter.port)) for _ in range(5)]
    try:
        assert exporter.get(user=f"prometheus:{PASSWORD}")[0] == 200
    finally:
        for connection in silent:
            connection.close()


def test_exporter_listens_only_on_its_address(host, start):
    host.create([{"model": "H100-80GB", "count": 1}])
    exporter = start(address="127.0.0.1")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.7", exporter.port), timeout=180).close()


def test_answer_is_compressed_on_request_and_in_text_format(host, start):
    """Compress on request, and always answer in the Prometheus text format.

    Prometheus prefers OpenMetrics, but textfiles of other programs are not always valid OpenMetrics.
    """
    host.create([{"model": "H100-80GB", "count": 1}])
    exporter = start()
    request = (
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text;version=1.0.0\r\n"
        b"Accept-Encoding: gzip\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", exporter.port), timeout=180) as connection:
        connection.sendall(request)
        said = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = said.partition(b"\r\n\r\n")
    assert b"text/plain" in head and b"Content-Encoding: gzip" in head
    assert b"openfleet_gpu_info{" in gzip.decompress(body)


def test_bcrypt_runs_once_for_a_correct_password_and_always_for_a_wrong_one():
    asked = []

    def check(password, hashed):
        asked.append(password)
        return bcrypt.checkpw(password, hashed)

    passwords = Passwords({"a": bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()}, check)
    assert [passwords.right("a", "right") for _ in range(3)] == [True] * 3
    assert asked == [b"right"]
    assert [passwords.right("a", "wrong") for _ in range(2)] == [False] * 2
    assert asked == [b"right", b"wrong", b"wrong"]
    # The response for an unknown user takes as long as for a known one. The exporter also refuses an unknown user with
    # a known user's password.
    assert not passwords.right("b", "right")
    assert asked[3:] == [b"right"]
    assert not passwords.right("b", "right")


def test_without_users_access_is_open():
    assert guarded(len, Passwords({})) is len


@pytest.mark.parametrize(
    "text, says",
    [
        ("{", "cannot be read"),
        ("[]", "not a JSON object"),
        ('{"tls_server_config": {"client_ca_file": "x"}}', "unsupported setting tls_server_config.client_ca_file"),
        ('{"http_server_config": {}}', "unsupported settings: http_server_config"),
        ('{"basic_auth_users": []}', "basic_auth_users is not an object"),
    ],
)
def test_unsupported_setting_is_refused(tmp_path, text, says):
    """Refuse settings that the exporter does not implement.

    For example, client certificates that the exporter requests but does not verify would not protect the metrics.
    """
    file = tmp_path / "web-config"
    file.write_text(text)
    with pytest.raises(WebConfigError, match=says):
        read_config(file)


def test_unloadable_certificate_is_reported(tmp_path):
    with pytest.raises(WebConfigError, match="cannot be loaded"):
        tls_context({"tls_server_config": {"cert_file": str(tmp_path / "no"), "key_file": str(tmp_path / "no")}})
    with pytest.raises(WebConfigError, match="cannot be loaded"):
        tls_context({"tls_server_config": {"cert_file": os.devnull}})


def test_all_addresses_get_a_limited_number_of_threads():
    server = Server("127.0.0.1", 0, None, None)
    try:
        admitted = [server.verify_request(None, ("10.0.0.%d" % number, 1)) for number in range(100)]
        assert admitted == [True] * MOST_CLIENTS + [False] * (100 - MOST_CLIENTS)
        server._release(("10.0.0.1", 1))
        assert server.verify_request(None, ("10.0.0.99", 1)) and not server.verify_request(None, ("10.0.0.98", 1))
        assert "10.0.0.1" not in server._clients
    finally:
        server.server_close()
