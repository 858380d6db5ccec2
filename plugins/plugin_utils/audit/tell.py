# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send a message by mail, or to a web hook that takes JSON: of an audit, or of idle holders. It fits one screen."""

from __future__ import annotations

import email.message
import json
import re
import smtplib
import urllib.error
import urllib.parse
from dataclasses import dataclass, fields, replace
from typing import Any, Mapping

from ...module_utils.errors import FleetError
from ...module_utils.http_opener import FAILURES, HTTPException, Request, opener
from .model import Audit
from .report_json import summary
from .write_line import line

_TIMEOUT_SECONDS = 30
_SHOWN = 20
#: What chats act on: mentions (<!channel>, @everyone), links with a text of their own (<url|text>, [text](url)), and images.
_MARKUP = str.maketrans({"<": "\u2039", ">": "\u203a", "@": "\uff20", "[": "(", "]": ")"})
#: In an address, the account that a message is about.
USER = "{user}"
_ACCOUNT = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")


class NotifyError(FleetError):
    """A notification was not sent. The report is written."""


@dataclass(frozen=True)
class Notice:
    """Either `url` (a web hook), or `to` with the `server` (host:port) that takes mail `sender` sends."""

    url: str = ""
    to: str = ""
    sender: str = "gpu-audit@localhost"
    server: str = "localhost:25"

    @classmethod
    def of(cls, given: Mapping[str, Any], personal: bool = False) -> Notice:
        """Raises NotifyError. `personal`: ``{user}`` in `to` stands for whom the message is about."""
        known = {field.name for field in fields(cls)}
        for name in given:
            if name not in known:
                raise NotifyError("notify.%s" % name, "there is no such key", "It has: %s." % ", ".join(sorted(known)))
        notice = cls(**{name: str(value).strip() for name, value in given.items()})
        if bool(notice.url) == bool(notice.to):
            raise NotifyError("notify", "it needs either url or to", "Write {url: https://…} or {to: gpu@example.org}.")
        # Not repeated in what is said: it often is a secret.
        if notice.url and not re.fullmatch(r"https?://[!-~]+", notice.url):
            raise NotifyError("notify.url", "it is not the address of a web hook", "Write https://…, without blanks.")
        if USER in notice.to and not personal:
            cure = "Write an address without it; gpu_rightsize_reclaim_tell may have one with it."
            raise NotifyError("notify.to", "an audit is about no single user, so %s has no value" % USER, cure)
        return notice

    @property
    def is_personal(self) -> bool:
        """Whether each user gets a message about what is theirs."""
        return USER in self.to

    def to_user(self, user: str) -> Notice:
        """Return the way to one user. Raises NotifyError for a name that no account has."""
        if not _ACCOUNT.fullmatch(user):
            raise NotifyError("notify.to", "%r is no name of an account" % user[:80], "See who runs what is idle.")
        return replace(self, to=self.to.replace(USER, user))


@dataclass(frozen=True)
class Message:
    """What is said: `data` goes to web hooks besides the text."""

    subject: str
    text: str
    data: Mapping[str, Any]


def tell(notice: Notice, audit: Audit) -> str:
    """Tell one of an audit; return whom. Raises NotifyError."""
    return send(notice, Message("GPU audit: %s" % line(audit), text_of(audit), {"summary": summary(audit)}))


def send(notice: Notice, message: Message) -> str:
    """Send a message; return to whom. Raises NotifyError."""
    try:
        if notice.url:
            _post(notice.url, message)
            return _shown(notice.url)
        _mail(notice, message)
        return notice.to
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(notice.url, error.code) from None
    except FAILURES as error:
        where = _shown(notice.url) if notice.url else notice.server
        # The text of an address that is none would repeat it.
        why = type(error).__name__ if isinstance(error, (HTTPException, ValueError)) else error
        raise NotifyError(where, "the notification was not sent: %s" % why, "The report is written.") from None


def _refused(url: str, status: int) -> NotifyError:
    if 300 <= status < 400:
        cure = "Give the address that it sends to. The report is written all the same."
        return NotifyError(_shown(url), "the web hook sends elsewhere (HTTP %d), which is not followed" % status, cure)
    return NotifyError(_shown(url), "the web hook answered HTTP %d" % status, "The report is written all the same.")


def _shown(url: str) -> str:
    """A web hook without its path, which often is the secret."""
    parts = urllib.parse.urlsplit(url)
    return "%s://%s/…" % (parts.scheme, parts.hostname)


def _post(url: str, message: Message) -> None:
    body = json.dumps({"text": without_markup(message.text), **message.data}).encode()
    request = Request(url, body, {"Content-Type": "application/json", "User-Agent": "openfleet.gpu"})
    with opener().open(request, timeout=_TIMEOUT_SECONDS):
        pass


def without_markup(text: str) -> str:
    """Return the text with look-alikes in place of what a chat would act on.

    Users choose names and command lines. Each chat escapes in another way, and which one takes the web hook is not known.
    """
    return text.translate(_MARKUP)


def _mail(notice: Notice, message: Message) -> None:
    mail = email.message.EmailMessage()
    mail["Subject"] = message.subject
    mail["From"], mail["To"] = notice.sender, notice.to
    mail.set_content(message.text)
    host, _colon, port = notice.server.partition(":")
    with smtplib.SMTP(host, int(port or 25), timeout=_TIMEOUT_SECONDS) as server:
        server.send_message(mail)


def text_of(audit: Audit) -> str:
    """The summary and the first findings that are new and ask for something."""
    news = [
        found
        for found in audit.findings
        if found.state == "new" and found.verdict.word not in ("right", "free", "no_data")
    ]
    lines = [line(audit)]
    lines += [
        "%s: %s. %s" % (f.holding.subject, f.verdict.word.replace("_", " "), f.verdict.reason) for f in news[:_SHOWN]
    ]
    if len(news) > _SHOWN:
        lines.append("… and %d more new findings" % (len(news) - _SHOWN))
    lines += ["Not known: %s" % text for text in audit.sources.missing]
    return "\n".join(lines) + "\n"
