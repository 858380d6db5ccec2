# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send a mail, with TLS and a login if the server has them."""

from __future__ import annotations

import email.message
import smtplib
import ssl
from dataclasses import dataclass, field

_TIMEOUT_SECONDS = 30
#: Values of `tls`: no encryption, an upgrade of the connection (RFC 3207), and TLS from the start (RFC 8314).
PLAIN, STARTTLS, TLS = "", "starttls", "tls"
_PORTS = {PLAIN: 25, STARTTLS: 587, TLS: 465}


@dataclass(frozen=True)
class MailServer:
    """A mail server: its address (host:port), encryption and login.

    `ca_file` has the authority's certificates. If it is empty, the system's authorities apply.
    """

    address: str
    tls: str = PLAIN
    user: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""


def send(server: MailServer, sender: str, to: str, subject: str, text: str) -> None:
    """Send a mail. Raises OSError, which includes the errors of smtplib and ssl."""
    mail = email.message.EmailMessage()
    mail["Subject"] = subject
    mail["From"], mail["To"] = sender, to
    mail.set_content(text)
    host, _colon, port = server.address.partition(":")
    number = int(port or _PORTS[server.tls])
    if server.tls == PLAIN:
        with smtplib.SMTP(host, number, timeout=_TIMEOUT_SECONDS) as connection:
            connection.send_message(mail)
        return
    # Verify the certificate and its host name.
    context = ssl.create_default_context(cafile=server.ca_file or None)
    made = (
        smtplib.SMTP_SSL(host, number, timeout=_TIMEOUT_SECONDS, context=context)
        if server.tls == TLS
        else smtplib.SMTP(host, number, timeout=_TIMEOUT_SECONDS)
    )
    with made as connection:
        if server.tls == STARTTLS:
            connection.starttls(context=context)
        if server.user:
            connection.login(server.user, server.password)
        connection.send_message(mail)
