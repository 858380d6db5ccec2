# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a real mail server that keeps the mails it receives."""

from __future__ import annotations

import email
import email.policy
from email.message import EmailMessage

import pytest
from aiosmtpd.controller import Controller


class Mailbox:
    """Keep mails as (receivers, mail).

    The server accepts mail for every address except `refused`.
    """

    refused = "nobody@example.org"

    def __init__(self) -> None:
        self.mails: list[tuple[list[str], EmailMessage]] = []
        self.server = ""

    async def handle_RCPT(self, _server, _session, envelope, address, _options):
        if address == self.refused:
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server, _session, envelope):
        mail = email.message_from_bytes(envelope.content, policy=email.policy.default)
        self.mails.append((envelope.rcpt_tos, mail))
        return "250 OK"


class Server(Controller):
    """A mail server on a port that the kernel chooses."""

    def _trigger_server(self):
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


@pytest.fixture
def mailbox():
    """Return a running server's mailbox.

    Its `server` is the address.
    """
    box = Mailbox()
    server = Server(box, hostname="127.0.0.1", port=0, ready_timeout=120)
    server.start()
    box.server = "127.0.0.1:%d" % server.port
    yield box
    server.stop()
