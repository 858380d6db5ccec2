# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Is the exporter well? What it says when it is scraped."""

from __future__ import annotations

import base64
import http.client
import re
import ssl
import sys
import time
from pathlib import Path

from exporter_install.host import journal

SAMPLE = re.compile(r"^(DCGM_FI_\w+|openfleet_gpu_info|openfleet_gpu_lost)\{", re.MULTILINE)


def pem_certificate(path: str) -> bytes:
    """The first one of a file, as the server shows it."""
    text = Path(path).read_text()
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    first = text[text.index(begin) : text.index(end) + len(end)]
    return ssl.PEM_cert_to_DER_cert(first)


def scrape(health: dict, user: str | None) -> tuple[int, str, bytes]:
    """Status, body, and the certificate that was shown. Whose it is, is compared, as its name need not be this address's."""
    if health["certificate"]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(health["address"], health["port"], timeout=20, context=context)
    else:
        connection = http.client.HTTPConnection(health["address"], health["port"], timeout=20)
    try:
        connection.connect()
        shown = connection.sock.getpeercert(binary_form=True) if health["certificate"] else b""
        headers = {}
        if user is not None:
            said = "%s:%s" % (user, health["users"][user])
            headers["Authorization"] = "Basic " + base64.b64encode(said.encode()).decode()
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace"), shown
    finally:
        connection.close()


def certificate_is_old(bundle: dict) -> bool:
    """Whether a running service still shows another one than is there: it was renewed."""
    health = bundle["health"]
    if not health or not health["certificate"]:
        return False
    try:
        return scrape(health, None)[2] != pem_certificate(health["certificate"])
    except (OSError, ValueError, http.client.HTTPException):
        return False


def problem(health: dict) -> str:
    """What a scrape shows to be wrong, or nothing."""
    where = "%s port %d" % (health["address"], health["port"])
    try:
        if health["users"]:
            status = scrape(health, None)[0]
            if status != 401:
                return "%s answers without a password with status %d, which should be 401" % (where, status)
        status, body, shown = scrape(health, sorted(health["users"])[0] if health["users"] else None)
        if health["certificate"] and shown != pem_certificate(health["certificate"]):
            return "%s shows another certificate than %s" % (where, health["certificate"])
    except (OSError, ValueError, http.client.HTTPException) as error:
        return "%s does not answer: %s" % (where, error)
    if status != 200:
        return "%s answers with status %d" % (where, status)
    if not SAMPLE.search(body):
        return "%s answers, but there is no sample of a GPU in it" % where
    return ""


def check_health(health: dict) -> None:
    deadline = time.monotonic() + health["timeout"]
    while True:
        wrong = problem(health)
        if not wrong:
            return
        if time.monotonic() > deadline:
            sys.exit("the exporter is not well: %s.%s" % (wrong, journal()))
        time.sleep(0.3)
