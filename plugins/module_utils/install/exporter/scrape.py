# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check with a scrape that the exporter works.

Before the request, two checks must pass: the server proves in a TLS handshake that it has the certificate's key, and
the kernel confirms that the peer is a process of the exporter's unit (peer.py). So another process on the port receives
neither the password nor headers.
"""

from __future__ import annotations

import re
import ssl
import time
from pathlib import Path
from typing import Any

from ...holders.peer_owner import UnitOwner
from ...http_opener import FAILURES, Check, CheckedConnection, CheckedTlsConnection, basic
from ...printable import printable
from ...processes.peer import PeerError, check
from .host import UNIT, journal, refuse

# Maximum size of the metrics in bytes. A host with 16 GPUs and all MIG instances has about 1 MiB.
MOST_BYTES = 1 << 26
SAMPLE = re.compile(r"^(DCGM_FI_\w+|openfleet_gpu_info|openfleet_gpu_lost)\{", re.MULTILINE)
# Name of the container in the Docker unit and the quadlet.
CONTAINER = "dcgm-exporter"
SECONDS = 20


class OtherCertificateError(Exception):
    """The server presents a certificate that is not the configured one."""


def pem_certificate(path: str) -> bytes:
    """Return the first certificate in a file, in DER format."""
    text = Path(path).read_text()
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    first = text[text.index(begin) : text.index(end) + len(end)]
    return ssl.PEM_cert_to_DER_cert(first)


def connection_to(health: dict, check_first: Check) -> CheckedConnection | CheckedTlsConnection:
    if not health["certificate"]:
        return CheckedConnection(health["address"], health["port"], timeout=SECONDS, check=check_first)
    # Compare the whole certificate, so that the name in it may differ from the address.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return CheckedTlsConnection(health["address"], health["port"], timeout=SECONDS, context=context, check=check_first)


def scrape(health: dict, user: str | None) -> tuple[int, str]:
    """Return the status and body of the response.

    Raises OtherCertificateError or PeerError before anything is sent.
    """

    def check_first(socket: Any) -> None:
        if health["certificate"] and socket.getpeercert(binary_form=True) != pem_certificate(health["certificate"]):
            raise OtherCertificateError
        check(socket, UnitOwner(UNIT, health["engine"], CONTAINER))

    headers = {}
    if user is not None:
        headers["Authorization"] = basic(user, health["users"][user])
    connection = connection_to(health, check_first)
    try:
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(MOST_BYTES).decode(errors="replace")
    finally:
        connection.close()


def certificate_is_old(bundle: dict) -> bool:
    """Return whether the running service presents an outdated certificate.

    This is the case after the certificate file was renewed.
    """
    health = bundle["health"]
    if not health or not health["certificate"]:
        return False
    shown = []
    connection = connection_to(health, lambda socket: shown.append(socket.getpeercert(binary_form=True)))
    try:
        connection.connect()
        return shown != [pem_certificate(health["certificate"])]
    except FAILURES:
        return False
    finally:
        connection.close()


def problem(health: dict) -> str:
    """Return the problem that a scrape finds, or ""."""
    where = "%s port %d" % (health["address"], health["port"])
    try:
        if health["users"]:
            status = scrape(health, None)[0]
            if status != 401:
                return "%s answers without a password with status %d, which should be 401" % (where, status)
        status, body = scrape(health, sorted(health["users"])[0] if health["users"] else None)
    except OtherCertificateError:
        return "%s shows another certificate than %s; the password was not sent" % (where, health["certificate"])
    except PeerError as error:
        return (
            "%s: %s; the password was not sent. End the process that has the port, or set another dcgm_exporter_port; see: "
            "systemctl status %s" % (where, error, UNIT)
        )
    except FAILURES as error:
        return "%s does not answer: %s" % (where, printable(str(error)[:200]))
    if status != 200:
        return "%s answers with status %d" % (where, status)
    if not SAMPLE.search(body):
        return "%s answers, but without samples of a GPU" % where
    return ""


def check_health(health: dict) -> None:
    deadline = time.monotonic() + health["timeout"]
    while True:
        wrong = problem(health)
        if not wrong:
            return
        if time.monotonic() > deadline:
            refuse("the exporter does not work: %s.%s" % (wrong, journal()))
        time.sleep(0.3)
