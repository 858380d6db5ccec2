# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send messages about audits and idle holders by mail or to a web hook.

A message is short enough for one screen.
"""

from __future__ import annotations

import dataclasses
import json
import re
import urllib.error
import urllib.parse
from dataclasses import dataclass, field, fields, replace
from typing import Any, Mapping

from ...module_utils.errors import FleetError
from ...module_utils.http_opener import FAILURES, HTTPException, Request, opener
from ..counted import counted
from . import mail
from .model import CALM, Audit
from .report_json import summary
from .workload_model import OwnerTotal
from .write_line import gpus, line, money

_TIMEOUT_SECONDS = 30
#: Slack cuts longer messages.
_SLACK_CHARACTERS = 40000
#: Replacements for characters that Slack uses for bold, italic, struck and code text.
_SLACK_FORMATTING = str.maketrans({"*": "\u2217", "_": "\uff3f", "~": "\u223c", "`": "\u02cb"})
_SHOWN = 20
#: Maximum number of teams, users and workloads each in a message.
_OWNERS = 5
#: Replacements for characters of chat markup: mentions (`<!channel>`, `@everyone`), links (`<url|text>`, `[text](url)`) and
#: images.
_MARKUP = str.maketrans({"<": "\u2039", ">": "\u203a", "@": "\uff20", "[": "(", "]": ")"})
#: Placeholder in a mail address. The user that the message is about replaces it.
USER = "{user}"
_ACCOUNT = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")


class NotifyError(FleetError):
    """A notification was not sent. The report has been written."""


@dataclass(frozen=True)
class Notice:
    """A receiver of messages: a web hook or a mail address.

    `url` is the web hook, and `format` its format: "json" or "slack". `to` is the mail address, `sender` the sender's
    address, and `server` the mail server (host:port). `tls` ("starttls" or "tls"), `user`, `password` and `ca_file` are
    for the connection to it.
    """

    url: str = ""
    to: str = ""
    sender: str = "gpu-audit@localhost"
    server: str = "localhost"
    format: str = "json"
    tls: str = mail.PLAIN
    user: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""

    @classmethod
    def of(cls, given: Mapping[str, Any], personal: bool = False) -> Notice:
        """Read a receiver from the inventory.

        If `personal` is true, `to` may contain ``{user}``.

        Raises NotifyError.
        """
        known = {each.name for each in fields(cls)}
        for name in given:
            if name not in known:
                raise NotifyError("notify.%s" % name, "unknown key", "Known keys: %s." % ", ".join(sorted(known)))
        notice = cls(**{name: str(value).strip() for name, value in given.items()})
        if bool(notice.url) == bool(notice.to):
            raise NotifyError(
                "notify", "exactly one of url and to is required", "Write {url: https://…} or {to: gpu@example.org}."
            )
        # Do not show the URL in errors, because it is often a secret.
        if notice.url and not re.fullmatch(r"https?://[!-~]+", notice.url):
            raise NotifyError("notify.url", "the URL of the web hook is invalid", "Write https://…, without spaces.")
        _check_choices(notice)
        if USER in notice.to and not personal:
            cure = "Write an address without %s. Only gpu_rightsize_reclaim_tell may use it." % USER
            raise NotifyError("notify.to", "%s has no value, because an audit is not about one user" % USER, cure)
        return notice

    @property
    def is_personal(self) -> bool:
        """Return whether each user gets a separate message about their own workloads."""
        return USER in self.to

    def to_user(self, user: str) -> Notice:
        """Return the receiver for one user.

        Raises NotifyError if `user` is not a valid account name.
        """
        if not _ACCOUNT.fullmatch(user):
            raise NotifyError(
                "notify.to", "%r is not an account name" % user[:80], "Check which account runs the idle workload."
            )
        return replace(self, to=self.to.replace(USER, user))


def _check_choices(notice: Notice) -> None:
    """Raise NotifyError if a receiver's format or login is invalid."""
    if notice.format not in ("json", "slack"):
        raise NotifyError("notify.format", "%r is not a format" % notice.format[:80], "Write json or slack.")
    if notice.tls not in (mail.PLAIN, mail.STARTTLS, mail.TLS):
        raise NotifyError("notify.tls", "%r is not a kind of TLS" % notice.tls[:80], "Write starttls or tls.")
    if bool(notice.user) != bool(notice.password):
        raise NotifyError("notify", "a login needs both user and password", "Set both of them, or none.")
    if notice.user and not notice.tls:
        raise NotifyError("notify.tls", "the password would be sent without encryption", "Write starttls or tls.")


@dataclass(frozen=True)
class Message:
    """A message. In addition to subject and text, web hooks receive `data`."""

    subject: str
    text: str
    data: Mapping[str, Any]


def tell(notice: Notice, audit: Audit) -> str:
    """Send an audit's summary to a receiver.

    Returns the receiver's address without secrets. Raises NotifyError.
    """
    owners = {kind: [dataclasses.asdict(one) for one in rows] for kind, rows in _wasteful(audit).items()}
    return send(
        notice,
        Message("GPU audit: %s" % line(audit), text_of(audit), {"summary": summary(audit), "owners": owners}),
    )


def send(notice: Notice, message: Message) -> str:
    """Send a message.

    Returns the receiver's address without secrets. Raises NotifyError.
    """
    try:
        if notice.url:
            _post(notice, message)
            return _shown(notice.url)
        server = mail.MailServer(notice.server, notice.tls, notice.user, notice.password, notice.ca_file)
        mail.send(server, notice.sender, notice.to, message.subject, message.text)
        return notice.to
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(notice.url, error.code) from None
    except FAILURES as error:
        where = _shown(notice.url) if notice.url else notice.server
        # Show only the type of these errors, because their text may contain the address.
        why = type(error).__name__ if isinstance(error, (HTTPException, ValueError)) else error
        raise NotifyError(where, "the notification was not sent: %s" % why, "The report is written.") from None


def _refused(url: str, status: int) -> NotifyError:
    if 300 <= status < 400:
        cure = "Write the address that it redirects to. The report is written."
        return NotifyError(_shown(url), "the web hook redirects (HTTP %d), which is not followed" % status, cure)
    return NotifyError(_shown(url), "the web hook answered HTTP %d" % status, "The report is written.")


def _shown(url: str) -> str:
    """Return a web hook's URL without its path, which is often a secret."""
    parts = urllib.parse.urlsplit(url)
    return "%s://%s/…" % (parts.scheme, parts.hostname)


def _post(notice: Notice, message: Message) -> None:
    if notice.format == "slack":
        # Slack refuses unknown keys. https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks
        text = without_markup("*%s*\n%s" % (_plain_slack(message.subject), _plain_slack(message.text)))
        body = json.dumps({"text": text[:_SLACK_CHARACTERS]}).encode()
    else:
        body = json.dumps({"text": without_markup(message.text), **message.data}).encode()
    request = Request(notice.url, body, {"Content-Type": "application/json", "User-Agent": "openfleet.gpu"})
    with opener().open(request, timeout=_TIMEOUT_SECONDS):
        pass


def _plain_slack(text: str) -> str:
    """Replace characters that Slack reads as formatting.

    https://docs.slack.dev/messaging/formatting-message-text
    """
    return text.replace("&", "&amp;").translate(_SLACK_FORMATTING)


def without_markup(text: str) -> str:
    """Replace characters of chat markup with similar characters.

    Users choose names and command lines, which may contain markup. It cannot be escaped, because each chat service has
    its own escape sequences, and a web hook does not show its service.
    """
    return text.translate(_MARKUP)


def text_of(audit: Audit) -> str:
    """Return the summary, the most wasteful owners and the first new findings."""
    news = [found for found in audit.findings if found.state == "new" and found.verdict.word not in CALM]
    lines = [line(audit), *_owner_lines(audit)]
    lines += [
        "%s: %s. %s" % (f.holding.subject, f.verdict.word.replace("_", " "), f.verdict.reason) for f in news[:_SHOWN]
    ]
    if len(news) > _SHOWN:
        lines.append("… and %s" % counted(len(news) - _SHOWN, "more new finding"))
    lines += ["Missing data: %s" % text for text in audit.sources.missing]
    return "\n".join(lines) + "\n"


def _wasteful(audit: Audit) -> dict[str, list[OwnerTotal]]:
    """Return the first teams, users and workloads with unused GPUs or GPU hours."""
    rows = {"teams": audit.owners.teams, "users": audit.owners.users, "workloads": audit.owners.workloads}
    return {
        kind: [one for one in of_kind if one.rank is not None and (one.unused_gpu_hours or one.unused_gpus)][:_OWNERS]
        for kind, of_kind in rows.items()
        if kind != "teams" or any(one.team for one in of_kind)
    }


def _owner_lines(audit: Audit) -> list[str]:
    lines = []
    for kind, rows in _wasteful(audit).items():
        lines += ["", "Reserved and unused by %s:" % kind[:-1]] if rows else []
        lines += [_owner_line(one, audit.currency) for one in rows]
    return [*lines, ""] if lines else []


def _owner_line(one: OwnerTotal, currency: str) -> str:
    who = [
        text for text in (one.user if one.user != one.name else "", one.team, one.contact) if text and text != one.name
    ]
    cost = "" if one.unused_per_month is None else " (%s/month)" % money(one.unused_per_month, currency)
    text = "%d. %s%s: now %s%s, in the window %s of %s GPU hours" % (
        one.rank or 0,
        one.name,
        " (%s)" % ", ".join(who) if who else "",
        gpus(one.unused_gpus),
        cost if one.unused_gpus else "",
        format(one.unused_gpu_hours, ",.0f"),
        format(one.held_gpu_hours, ",.0f"),
    )
    if one.efficiency_ratio is not None:
        text += ", efficiency %.0f %%" % (100 * one.efficiency_ratio)
    return text
