# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Count dead servers of MPS daemons from the journals of the daemons' units.

When a server dies, its daemon keeps answering, and clients get no reason. The daemon's log then has a line such as
"Server PID exited with status N". This was verified with 535.261.03, and found in public logs of 535 to 580. The status
is also 0 if a signal ended the server.

The counts are in a folder that systemd creates for gpu-layout-metrics.service, so a reboot resets them. journald
guarantees each line's unit and user. Only root's lines are read, because servers run as their clients' users.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping, Sequence

from ... import durable
from ...errors import ApplyError
from ...processes.command import Run, ask
from .model import unit_of

# Path relative to the root of the host.
DIRECTORY = "run/openfleet-gpu-metrics"
_SCHEMA = 1
_MOST_SERVERS = 64

_LINE = re.compile(r"\[[^\]]* Control +\d+\] (.*)")
_STARTED = re.compile(r"Starting new server (\d{1,10}) for user (\d{1,10})")
_WAITS = re.compile(r"NEW CLIENT \d+ from user (\d{1,10}): Server is not ready, push client to pending list")
_EXITED = re.compile(r"Server (\d{1,10}) exited with status (-?\d+)")
_BEGINS = "Starting control daemon"
_SHUTS_DOWN = "Cmd:shutdown_server"
_QUITS = ("quit command issued", "The MPS control daemon is shutting down")
_CURSOR = "-- cursor: "


def follow(lines: Iterable[str], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the count and the state of the servers after these log lines. Pure.

    The lines are from one daemon's log. The result and `before` have these keys:

    * `deaths`: number of servers that ended with a status other than 0, or with status 0 without a request
    * `users`: user of each running server, by PID
    * `asked`: whether a server was requested to end
    * `quits`: whether the daemon is ending

    A daemon ends a server if a client of another user waits, after the command shutdown_server, and when it quits.
    """
    deaths, users = before.get("deaths", 0), dict(before.get("users", {}))
    asked, quits = before.get("asked", False), before.get("quits", False)
    for line in lines:
        found = _LINE.fullmatch(line)
        text = found.group(1) if found else ""
        started, waits, exited = (form.fullmatch(text) for form in (_STARTED, _WAITS, _EXITED))
        if text.startswith(_BEGINS):
            users, asked, quits = {}, False, False
        elif text.startswith(_QUITS):
            quits = True
        elif started:
            users = dict(list(users.items())[1 - _MOST_SERVERS :])
            users[started.group(1)] = started.group(2)
            asked = False
        elif waits or text.startswith(_SHUTS_DOWN):
            asked = asked or not waits or any(user != waits.group(1) for user in users.values())
        elif exited:
            known = users.pop(exited.group(1), None) is not None
            failed = exited.group(2) != "0"
            deaths += int(not quits and (failed or (known and not asked)))
    return {"deaths": deaths, "users": users, "asked": asked, "quits": quits}


def count(root: Path, run: Run, names: Sequence[str], now: float | None = None) -> dict[str, int]:
    """Return the number of each daemon's dead servers.

    Counting starts with the first call after a boot. Returns {} if counting is disabled. Leaves out a daemon whose
    journal cannot be read. The next call then reads the same lines again.
    """
    folder = root / DIRECTORY
    if not names or not folder.is_dir():
        return {}
    path = folder / "mps-servers.json"
    with _alone(folder) as may_write:
        if not may_write:
            return {}
        try:
            known = (durable.read(path, _SCHEMA) or {}).get("daemons", {})
        except ApplyError:
            # The file cannot be read. Start at 0, as after a boot.
            known = {}
        states, deaths = {}, {}
        for name in names:
            state = known.get(name)
            if state is None:
                state = {"deaths": 0, "since": int(time.time() if now is None else now)}
            else:
                read = _read(run, name, state)
                if read is None:
                    states[name] = state
                    continue
                lines, cursor = read
                state = dict(follow(lines, state), since=state["since"], cursor=cursor or state.get("cursor"))
            states[name], deaths[name] = state, state["deaths"]
        try:
            durable.write(path, {"schema": _SCHEMA, "daemons": states})
        except ApplyError:
            return {}
    return deaths


def _read(run: Run, name: str, state: Mapping[str, Any]) -> tuple[list[str], str | None] | None:
    """Return the new lines in the unit's journal, and the last line's cursor.

    Only returns root's lines since the last count.
    """
    where = "--after-cursor=%s" % state["cursor"] if state.get("cursor") else "--since=@%d" % state["since"]
    command = ["journalctl", "--no-pager", "--quiet", "--output=cat", "--show-cursor", where]
    try:
        text, _problem = ask(run, [*command, "_SYSTEMD_UNIT=%s" % unit_of(name), "_UID=0"])
    except FileNotFoundError:
        return None
    if text is None:
        return None
    lines = text.rstrip("\n").split("\n")
    # Only the last line is from journalctl itself. Anywhere else, such a line is a log message.
    if lines[-1].startswith(_CURSOR):
        return lines[:-1], lines[-1][len(_CURSOR) :]
    return lines, None


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Hold the lock of the folder. Yield False if another process holds it."""
    try:
        descriptor = os.open(str(folder / "lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)
