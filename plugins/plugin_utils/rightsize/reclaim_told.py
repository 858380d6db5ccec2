# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Notify owners of idle holders from the controller.

First checks the inventory's settings and the hosts' results.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from ...module_utils.errors import FleetError
from ...module_utils.reclaim import wording
from ...module_utils.reclaim.tell import WAYS as HOST_WAYS
from ..audit.options import seconds
from ..audit.tell import Message, Notice, NotifyError, send
from ..host_values import Reader

_KINDS = {"webhook": "url", "mail": "to"}
_ITEM = {
    "kind!": "name",
    "name!": "text",
    "runtime": "text",
    "gpus!": ["text", 512],
    "places!": ["text"],
    "holders": ["text"],
    "user": "text",
    "idle_since": "number",
    "jupyter": "flag",
    "stop": "flag",
    "keep": "text",
    "kernels": ["text"],
}
_RESULT = {"noticed!": [{**_ITEM, "stop_after!": "number"}, 256], "stopped!": [_ITEM, 256]}


class TellError(FleetError):
    """A setting of gpu_rightsize_reclaim_tell, _notice or _owners is invalid."""


@dataclass(frozen=True)
class Ways:
    """The ways to notify owners.

    `controller` has the receivers of the controller's messages. `host` has ways on the host, as values for the module
    `reclaim`.
    """

    controller: tuple[Notice, ...]
    host: tuple[str, ...]


def ways(given: Sequence[Any] | None, audits: Sequence[Mapping[str, Any]]) -> Ways:
    """Return how the inventory wants notices to be sent.

    If `given` is None, the audit's receivers get them. Raises FleetError.
    """
    known = [Notice.of(row, personal=True) for row in audits]
    if given is None:
        return Ways(tuple(known), ())
    controller, host = [], []
    for number, entry in enumerate(given):
        where = "gpu_rightsize_reclaim_tell[%d]" % number
        if isinstance(entry, Mapping):
            controller.append(Notice.of(entry, personal=True))
        elif entry in HOST_WAYS:
            host.append(str(entry))
        elif entry in _KINDS:
            named = [notice for notice in known if getattr(notice, _KINDS[entry])]
            if not named:
                raise TellError(where, "gpu_audit_notify has no %s" % entry, "Write {%s: …} instead." % _KINDS[entry])
            controller += named
        else:
            cure = "Use webhook, mail, wall, home, {url: …} or {to: …}."
            raise TellError(where, "%r is not a known notification method" % (entry,), cure)
    return Ways(tuple(dict.fromkeys(controller)), tuple(dict.fromkeys(host)))


def notice_seconds(text: Any) -> float:
    """Return the seconds between notice and stop, or 0 without a notice.

    Raises FleetError.
    """
    if re.fullmatch(r"\s*0\s*[mhdw]?\s*", str(text)):
        return 0.0
    try:
        return seconds(str(text))
    except FleetError as error:
        raise TellError("gpu_rightsize_reclaim_notice", error.problem, "Write 24h or 2d, or 0 for no notice.") from None


def owners(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return (glob, account) for each row. Raises TellError."""
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping) or set(row) != {"match", "user"}:
            cure = 'Write {match: "notebook-a*", user: alice}.'
            raise TellError(
                "gpu_rightsize_owners[%d]" % number, "match or user is missing, or there is another key", cure
            )
    return [(str(row["match"]), str(row["user"])) for row in rows]


def result_of(host: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Check a host's result about notified and stopped holders.

    Raises HostValueError.
    """
    return Reader(host).read("", result, _RESULT)


def tell(
    host: str, result: Mapping[str, Any], notices: Sequence[Notice], owned: Sequence[tuple[str, str]], keep_url: str
) -> tuple[list[str], list[str], list[dict[str, Any]]]:
    """Send a message to each receiver about notified and stopped holders.

    Returns (receivers, failures, delivered notices).
    """
    receivers: list[str] = []
    failures: list[str] = []
    reached: list[dict[str, Any]] = []
    for stage in ("noticed", "stopped"):
        rows = result[stage]
        for notice in notices if rows else ():
            parts, problems = _parts(notice, rows, owned)
            failures += problems
            for receiver, theirs in parts:
                try:
                    receivers.append(send(receiver, _message(host, stage, theirs, keep_url)))
                except NotifyError as error:
                    failures.append(str(error))
                else:
                    reached += theirs if stage == "noticed" else []
    confirmed = [
        {name: row[name] for name in ("kind", "name", "runtime", "gpus", "stop") if name in row}
        for row in result["noticed"]
        if row in reached
    ]
    return receivers, failures, confirmed


def _parts(
    notice: Notice, rows: Sequence[dict[str, Any]], owned: Sequence[tuple[str, str]]
) -> tuple[list[tuple[Notice, list[dict[str, Any]]]], list[str]]:
    """Return (receivers with their rows, problems about rows without a receiver)."""
    if not notice.is_personal:
        return [(notice, list(rows))], []
    by_user: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_user.setdefault(_owner(row, owned), []).append(row)
    found, problems = [], []
    for user, theirs in sorted(by_user.items()):
        names = ", ".join(row["name"] for row in theirs[:10])
        if user:
            try:
                found.append((notice.to_user(user), theirs))
            except NotifyError as error:
                problems.append("%s: %s" % (names, error))
        else:
            cure = "Set gpu_rightsize_owners, or add a fixed address."
            problems.append(str(NotifyError(names, "its owner is unknown, so no mail was sent", cure)))
    return found, problems


def _owner(row: Mapping[str, Any], owned: Sequence[tuple[str, str]]) -> str:
    """Return the owner's account, from the inventory or else from the host."""
    name = row["name"]
    plain = name.removesuffix(".service")
    named = (user for match, user in owned if fnmatch.fnmatchcase(name, match) or fnmatch.fnmatchcase(plain, match))
    return next(named, row.get("user") or "")


def _message(host: str, stage: str, rows: Sequence[Mapping[str, Any]], keep_url: str) -> Message:
    texts = [wording.notice(host, row, keep_url) if stage == "noticed" else wording.stopped(host, row) for row in rows]
    return Message(
        wording.subject(host, stage, rows),
        "\n".join(texts),
        {"reclaim": {"host": host, "stage": stage, "items": list(rows)}},
    )
