# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answer one request on the keep socket.

The kernel reports the user, and all other values are checked. A request is one JSON object: {"op": "keep", "name":
NAME, "seconds": N}, {"op": "list"} or {"op": "end", "name": NAME}.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from ..frozen import frozen
from ..model import Holder
from . import keeps
from . import owner as keep_owner
from .keeps import Keep, KeepError, to_row
from .notices import utc

SETTINGS = "/etc/openfleet-gpu/keep.json"
MOST_LETTERS = 255
_NAME = re.compile(r"[A-Za-z0-9:_.\\@-][A-Za-z0-9:_.\\@ -]*", re.ASCII)
_KEYS = {"keep": {"op", "name", "seconds"}, "list": {"op"}, "end": {"op", "name"}}


@frozen
class Settings:
    """The settings from the role.

    They are the maximum time of a keep in seconds, the groups of administrators, and the state directory.
    """

    most_seconds: int
    groups: tuple[str, ...]
    state_directory: str

    @classmethod
    def read(cls, path: str = SETTINGS) -> Settings:
        """Return the settings. Raises KeepError if the file is invalid."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls(keeps.duration(data["max"]), tuple(map(str, data["groups"])), str(data["state_directory"]))
        except (OSError, ValueError, KeyError, TypeError):
            raise KeepError(path, "the file is damaged", "Run the role gpu_layout again.") from None


@frozen
class Request:
    """A valid request."""

    operation: str
    name: str = ""
    seconds: int = 0


def parse(line: bytes) -> Request:
    """Return the request in a line. Raises KeepError if the request is invalid."""
    try:
        data = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        data = None
    operation = data.get("op") if isinstance(data, dict) else None
    if not isinstance(operation, str) or set(data) != _KEYS.get(operation):
        raise KeepError("the request", "it is invalid", "Use gpu-layout keep.")
    name, seconds = data.get("name", "-"), data.get("seconds", 0)
    if not isinstance(name, str) or len(name) > MOST_LETTERS or not _NAME.fullmatch(name):
        cure = "Write a service, a container or a pid, with at most %d characters." % MOST_LETTERS
        raise KeepError("the request", "this names no service, container or process", cure)
    if not isinstance(seconds, int) or isinstance(seconds, bool):
        raise KeepError(name, "the duration is not a whole number of seconds", "Use gpu-layout keep.")
    return Request(operation, name, seconds)


def answer(
    request: Request, uid: int, settings: Settings, holders: Callable[[], Sequence[Holder]], now: float | None = None
) -> dict[str, Any]:
    """Execute a user's request and return the answer. Raises FleetError.

    The kernel has reported `uid`.
    """
    now = time.time() if now is None else now
    administrator = keep_owner.is_administrator(uid, settings.groups)
    current = keeps.read(settings.state_directory, now)
    if request.operation == "list":
        return {"keeps": [to_row(keep) for keep in current if administrator or keep.uid == uid]}
    if request.operation == "end":
        return _end(request, uid, administrator, current, settings)
    _check_length(request, settings)
    target = keep_owner.find(request.name, holders())
    if not administrator and target.owner != uid:
        raise KeepError(target.name, _not_yours(target.owner), _advice(settings.groups))
    user = keep_owner.user_name(uid)
    new = Keep(target.kind, target.name, target.identity, uid, user, now, now + request.seconds)
    keeps.write(settings.state_directory, keeps.with_keep(current, new))
    return {"kept": to_row(new)}


def _check_length(request: Request, settings: Settings) -> None:
    if request.seconds > settings.most_seconds:
        days = settings.most_seconds / 86400
        cure = "Use a shorter time, and repeat the keep before it ends. The latest end now is %s." % utc(
            time.time() + settings.most_seconds
        )
        raise KeepError(request.name, "a keep lasts at most %g days on this host" % days, cure)
    if request.seconds < keeps.LEAST_SECONDS:
        raise KeepError(request.name, "a keep lasts at least a minute", "Write 30m, 12h, 3d or 1w.")


def _end(
    request: Request, uid: int, administrator: bool, current: Sequence[Keep], settings: Settings
) -> dict[str, Any]:
    ended = [keep for keep in current if _is_called(request.name, keep)]
    if not administrator:
        ended = [keep for keep in ended if keep.uid == uid]
    if not ended:
        raise KeepError(request.name, "you have no keep with this name", "List them with `gpu-layout keep --list`.")
    keeps.write(settings.state_directory, [keep for keep in current if keep not in ended])
    return {"ended": [to_row(keep) for keep in ended]}


def _is_called(name: str, keep: Keep) -> bool:
    return name in (keep.name, keep.name.rpartition(" ")[2]) or name + ".service" == keep.name


def _not_yours(owner: int) -> str:
    return "it belongs to %s" % keep_owner.user_name(owner)


def _advice(groups: Sequence[str]) -> str:
    if groups:
        return "Ask a member of the group %s, or an administrator." % " or ".join(groups)
    return "Ask an administrator."


def to_log(request: Request, uid: int, result: Mapping[str, Any]) -> str:
    """Return the journal line for a change, or "" for a request to list keeps."""
    user = keep_owner.user_name(uid)
    if "kept" in result:
        return "%s keeps %s until %s" % (user, result["kept"]["name"], utc(result["kept"]["until"]))
    if "ended" in result:
        return "%s ended the keep of %s" % (user, ", ".join(row["name"] for row in result["ended"]))
    return ""
