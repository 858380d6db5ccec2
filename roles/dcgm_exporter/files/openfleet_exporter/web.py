# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve metrics over HTTP, optionally with TLS and passwords.

The configuration is exporter-toolkit's web configuration, as JSON. Supported settings are tls_server_config (cert_file,
key_file) and basic_auth_users. Other settings are rejected.
https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
import socket
import socketserver
import ssl
import threading
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Set
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import bcrypt

#: Seconds until an idle connection is closed.
CLIENT_TIMEOUT = 30
#: Maximum number of concurrent clients, in total and per address, because each client has a thread.
MOST_CLIENTS, MOST_OF_ADDRESS = 64, 8
KNOWN = {"tls_server_config": {"cert_file", "key_file"}, "basic_auth_users": None}


class WebConfigError(Exception):
    """The web configuration cannot be used."""


def read_config(path: Optional[Path]) -> Dict[str, Any]:
    if path is None:
        return {}
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise WebConfigError("%s cannot be read as JSON: %s" % (path, error)) from error
    if not isinstance(config, dict):
        raise WebConfigError("%s is not a JSON object" % path)
    for key, inner in KNOWN.items():
        value = config.get(key, {})
        if not isinstance(value, dict):
            raise WebConfigError("%s: %s is not an object" % (path, key))
        for name in value if inner is not None else ():
            if name not in inner:
                raise WebConfigError("%s: unsupported setting %s.%s" % (path, key, name))
    unknown = set(config) - set(KNOWN)
    if unknown:
        raise WebConfigError("%s: unsupported settings: %s" % (path, ", ".join(sorted(unknown))))
    return config


def tls_context(config: Dict[str, Any]) -> Optional[ssl.SSLContext]:
    tls = config.get("tls_server_config")
    if not tls:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls["cert_file"], tls["key_file"])
    except (KeyError, OSError) as error:
        raise WebConfigError("tls_server_config: the certificate and its key cannot be loaded: %r" % error) from error
    return context


class Passwords:
    """Checks passwords. Caches keyed hashes of correct passwords in memory.

    The cache is needed because bcrypt is slow on purpose.
    """

    def __init__(self, hashes: Dict[str, str], check: Callable[[bytes, bytes], bool] = bcrypt.checkpw) -> None:
        self.hashes = {user: value.encode() for user, value in hashes.items()}
        self.check = check
        self.lock = threading.Lock()
        self._key = secrets.token_bytes(32)
        self._right: Set[bytes] = set()
        # For unknown users, so that their check takes as long as that of a wrong password.
        self._dummy_hash = next(iter(self.hashes.values()), b"")

    def right(self, user: str, password: str) -> bool:
        digest = hmac.new(self._key, ("%d:%s:%s" % (len(user), user, password)).encode(), hashlib.sha256).digest()
        if digest in self._right:
            return True
        # Check one password at a time, so that guessing cannot use all cores.
        with self.lock:
            try:
                right = self.check(password.encode()[:72], self.hashes.get(user, self._dummy_hash))
            except ValueError:
                return False
            if right and user in self.hashes:
                self._right.add(digest)
                return True
        return False


def guarded(application: Callable, passwords: Optional[Passwords]) -> Callable:
    """Protect the application with a password check."""
    if passwords is None or not passwords.hashes:
        return application

    def guard(environ: Dict[str, Any], start_response: Callable) -> Any:
        scheme, _unused, credentials = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() == "basic":
            try:
                user, colon, password = base64.b64decode(credentials, validate=True).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError):
                user = colon = password = ""
            if colon and passwords.right(user, password):
                return application(environ, start_response)
        headers = [("Content-Type", "text/plain"), ("WWW-Authenticate", "Basic")]
        start_response("401 Unauthorized", headers)
        return [b"Unauthorized\n"]

    return guard


def metrics_only(application: Callable) -> Callable:
    """Serve only /metrics, in the text format.

    OpenMetrics is not offered, because text files may be invalid OpenMetrics.
    """

    def serve(environ: Dict[str, Any], start_response: Callable) -> Any:
        if environ.get("PATH_INFO") != "/metrics":
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"The metrics are at /metrics\n"]
        environ.pop("HTTP_ACCEPT", None)
        try:
            return application(environ, start_response)
        except Exception as error:
            print("cannot read the metrics: %r" % error, flush=True)
            start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b"Cannot read the metrics. See the exporter's log.\n"]

    return serve


class Handler(WSGIRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        """Do not log requests."""


class Server(socketserver.ThreadingMixIn, WSGIServer):
    """Serves each client in a thread, so that no client delays another.

    The thread also does the TLS handshake.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: str, port: int, application: Callable, context: Optional[ssl.SSLContext]) -> None:
        family, *_others, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        self.address_family = family
        self.context = context
        self._clients: Counter = Counter()
        self._counting = threading.Lock()
        super().__init__(where, Handler)
        self.set_app(application)

    def server_bind(self) -> None:
        # Skip the base class, which looks up the host name and can take long.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]
        self.setup_environ()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Reject clients beyond the limits before they get a thread."""
        with self._counting:
            if self._clients[client_address[0]] >= MOST_OF_ADDRESS or sum(self._clients.values()) >= MOST_CLIENTS:
                return False
            self._clients[client_address[0]] += 1
            return True

    def process_request(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request(request, client_address)
        except BaseException:
            # No thread was started that would release the slot.
            self._release(client_address)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._release(client_address)

    def _release(self, client_address: Any) -> None:
        with self._counting:
            self._clients[client_address[0]] -= 1
            # Remove addresses that have no clients.
            self._clients += Counter()

    def finish_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(CLIENT_TIMEOUT)
        if self.context is None:
            super().finish_request(request, client_address)
            return
        try:
            secured = self.context.wrap_socket(request, server_side=True)
        except (OSError, ssl.SSLError):
            return  # not TLS, or disconnected
        try:
            super().finish_request(secured, client_address)
        finally:
            self.shutdown_request(secured)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors that clients cause, such as disconnects."""
