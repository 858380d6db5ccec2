# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell somebody of an audit: by mail, or by a web hook that takes JSON. What is said fits one screen."""

from __future__ import annotations

import email.message
import http.client
import json
import re
import smtplib
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, fields
from typing import Any, Mapping

from ...module_utils.errors import FleetError
from ...module_utils.no_redirect import NoRedirect
from .model import Audit
from .report_json import summary
from .write_line import line

_TIMEOUT_SECONDS = 30
_SHOWN = 20
#: A report names users and what they run: it is for the server that the inventory names.
_OPENER = urllib.request.build_opener(NoRedirect)


class NotifyError(FleetError):
    """Somebody could not be told. The report stands."""


@dataclass(frozen=True)
class Notice:
    """Either `url` (a web hook), or `to` with the `server` (host:port) that takes mail `sender` sends."""

    url: str = ""
    to: str = ""
    sender: str = "gpu-audit@localhost"
    server: str = "localhost:25"

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Notice:
        """Raises NotifyError."""
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
        return notice


def tell(notice: Notice, audit: Audit) -> str:
    """Tell one; gives whom. Raises NotifyError."""
    try:
        if notice.url:
            _post(notice.url, audit)
            return _shown(notice.url)
        _mail(notice, audit)
        return notice.to
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(notice.url, error.code) from None
    except (urllib.error.URLError, OSError, smtplib.SMTPException, http.client.HTTPException, ValueError) as error:
        where = _shown(notice.url) if notice.url else notice.server
        # The text of an address that is none would repeat it.
        why = type(error).__name__ if isinstance(error, (http.client.HTTPException, ValueError)) else error
        raise NotifyError(where, "nobody could be told: %s" % why, "The report is written all the same.") from None


def _refused(url: str, status: int) -> NotifyError:
    if 300 <= status < 400:
        cure = "Give the address that it sends to. The report is written all the same."
        return NotifyError(_shown(url), "the web hook sends elsewhere (HTTP %d), which is not followed" % status, cure)
    return NotifyError(_shown(url), "the web hook answered HTTP %d" % status, "The report is written all the same.")


def _shown(url: str) -> str:
    """A web hook without its path, which often is the secret."""
    parts = urllib.parse.urlsplit(url)
    return "%s://%s/…" % (parts.scheme, parts.hostname)


def _post(url: str, audit: Audit) -> None:
    body = json.dumps({"text": text_of(audit), "summary": summary(audit)}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", "User-Agent": "openfleet.gpu"})
    with _OPENER.open(request, timeout=_TIMEOUT_SECONDS):
        pass


def _mail(notice: Notice, audit: Audit) -> None:
    message = email.message.EmailMessage()
    message["Subject"] = "GPU audit: %s" % line(audit)
    message["From"], message["To"] = notice.sender, notice.to
    message.set_content(text_of(audit))
    host, _colon, port = notice.server.partition(":")
    with smtplib.SMTP(host, int(port or 25), timeout=_TIMEOUT_SECONDS) as server:
        server.send_message(message)


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
