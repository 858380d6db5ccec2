# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send mails with TLS and a login, and web hooks in Slack's format."""

from __future__ import annotations

import base64
import http.server
import json
import socketserver
import ssl
import threading

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.tell import Message, Notice, NotifyError, send
from tests.how_to import blocks
from tests.lab.certificates import Authority

MESSAGE = Message("GPU audit: 1 finding", "gpu-1 gpu 0: idle. <!channel> *bold* a_b\n", {"summary": {}})


class Smtp(socketserver.StreamRequestHandler):
    """A mail server that records the commands, and whether each one came over TLS."""

    def handle(self):
        if self.server.tls == "tls":
            self.upgrade()
        self.answer("220 test")
        while line := self.rfile.readline().decode().strip():
            self.server.seen.append((line, isinstance(self.connection, ssl.SSLSocket)))
            word = line.split()[0].upper()
            if word == "EHLO":
                offers = [] if isinstance(self.connection, ssl.SSLSocket) else ["STARTTLS"]
                lines = ["test", *offers, "AUTH PLAIN"]
                for number, text in enumerate(lines):
                    self.answer("250%s%s" % ("-" if number < len(lines) - 1 else " ", text))
            elif word == "STARTTLS":
                self.answer("220 go")
                self.upgrade()
            elif word == "AUTH":
                good = line.split()[-1] == base64.b64encode(b"\0audit\0s3cr3t").decode()
                self.answer("235 ok" if good else "535 no")
            elif word == "DATA":
                self.answer("354 go")
                text = b""
                while (part := self.rfile.readline()) != b".\r\n":
                    text += part
                self.server.mails.append(text.decode())
                self.answer("250 ok")
            elif word == "QUIT":
                self.answer("221 bye")
                return
            else:
                self.answer("250 ok")

    def answer(self, text):
        self.wfile.write(text.encode() + b"\r\n")

    def upgrade(self):
        self.connection = self.server.context.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        # A client that does not accept the certificate ends the connection.
        self.seen.append(("error", False))


@pytest.fixture
def smtp(tmp_path):
    """Return a function that starts a mail server with its own certificate authority."""
    authority = Authority(tmp_path / "ca")
    path = authority.issue("mail", ["localhost"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, path.with_suffix(".key"))
    servers = []

    def start(tls):
        server = Server(("127.0.0.1", 0), Smtp)
        server.tls, server.context, server.seen, server.mails = tls, context, [], []
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return server, {
            "to": "ops@example.org",
            "server": "localhost:%d" % server.server_address[1],
            "tls": tls,
            "user": "audit",
            "password": "s3cr3t",
            "ca_file": str(authority.certificate),
        }

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("tls", ["starttls", "tls"])
def test_login_and_mail_are_encrypted(smtp, tls):
    server, given = smtp(tls)
    assert send(Notice.of(given), MESSAGE) == "ops@example.org"
    (mail,) = server.mails
    assert "Subject: GPU audit: 1 finding" in mail and "gpu-1 gpu 0: idle." in mail
    private = [
        encrypted for line, encrypted in server.seen if line.split()[0].upper() in ("AUTH", "MAIL", "RCPT", "DATA")
    ]
    assert private == [True] * 4


@pytest.mark.parametrize("tls", ["starttls", "tls"])
def test_unknown_authority_is_refused_before_the_login(smtp, tls):
    server, given = smtp(tls)
    with pytest.raises(NotifyError, match="SSLCertVerificationError") as error:
        send(Notice.of({**given, "ca_file": ""}), MESSAGE)
    assert "s3cr3t" not in str(error.value)
    assert server.mails == [] and not any(line.startswith("AUTH") for line, _encrypted in server.seen)


def test_wrong_password_is_an_error_without_the_password(smtp):
    server, given = smtp("starttls")
    with pytest.raises(NotifyError, match="535") as error:
        send(Notice.of({**given, "password": "wr0ng"}), MESSAGE)
    assert "wr0ng" not in str(error.value) and server.mails == []


def test_mail_without_tls_needs_no_login(smtp):
    server, given = smtp("")
    send(Notice.of({"to": given["to"], "server": given["server"]}), MESSAGE)
    assert len(server.mails) == 1 and not any(line.startswith("AUTH") for line, _encrypted in server.seen)


@pytest.mark.parametrize(
    "given",
    [
        {"tls": "ssl"},
        {"format": "teams"},
        {"user": "audit", "tls": "tls"},
        {"user": "audit", "password": "s3cr3t"},
        {"password": "s3cr3t", "tls": "tls"},
    ],
)
def test_invalid_settings_are_refused_without_the_password(given):
    with pytest.raises(NotifyError) as error:
        Notice.of({"to": "ops@example.org", **given})
    assert "s3cr3t" not in str(error.value) and error.value.cure


def test_receiver_is_printed_without_its_password():
    notice = Notice.of({"to": "ops@example.org", "tls": "tls", "user": "audit", "password": "s3cr3t"})
    assert "s3cr3t" not in repr(notice)


class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args):
        pass


def test_slack_gets_only_text_without_formatting_from_names():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        server.seen = []
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        send(Notice.of({"url": "http://127.0.0.1:%d/a" % server.server_address[1], "format": "slack"}), MESSAGE)
        server.shutdown()
    (body,) = server.seen
    assert list(body) == ["text"] and body["text"].startswith("*GPU audit: 1 finding*\n")
    rest = body["text"].partition("\n")[2]
    assert "gpu-1 gpu 0: idle." in rest and not set("<>*_~`") & set(rest)


def test_receivers_of_the_how_to_get_the_summary(smtp):
    """Notify the receivers of the how-to page.

    The test replaces only their addresses and secrets.
    """
    mail, slack = yaml.safe_load(blocks("weekly-audit.md", "yaml")[1])["gpu_audit_notify"]
    server, here = smtp("starttls")
    assert (
        send(Notice.of({**mail, **{name: here[name] for name in ("server", "password", "ca_file")}}), MESSAGE)
        == mail["to"]
    )
    (text,) = server.mails
    assert f"From: {mail['sender']}" in text and f"To: {mail['to']}" in text
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook) as hook:
        hook.seen = []
        threading.Thread(target=hook.serve_forever, args=(0.02,), daemon=True).start()
        send(Notice.of({**slack, "url": "http://127.0.0.1:%d/a" % hook.server_address[1]}), MESSAGE)
        hook.shutdown()
    assert [list(body) for body in hook.seen] == [["text"]]
