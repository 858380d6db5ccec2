# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Count dead servers of MPS daemons from the journals of the daemons' units.

A daemon keeps answering while its servers die, and gives clients no reason. Its log has "Server PID exited with status N"
(seen with 535.261.03, and in public logs of 535 to 580). The status is also 0 for a server that a signal ended.

Counts are kept in a folder that systemd creates for gpu-layout-metrics.service, until the host reboots. journald attests the
unit and the user of a line. A server runs as its client's user, so its lines do not count.
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
from ...command import Run, ask
from ...errors import ApplyError
from .model import unit_of

# Below the root of the host.
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
    """Return the count and the state of the servers after these lines of a daemon's log. Pure.

    `deaths` counts servers that ended with a status, or with status 0 without a request to end. A daemon ends a server for a
    client of another user, for the command shutdown_server, and when it quits. `users` has the user of each server by pid,
    `asked` whether a server was asked to end, and `quits` whether the daemon is ending.
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
    """Return the number of dead servers of each daemon since the first count after boot, or {} if counting is off.

    A daemon whose journal cannot be read is missing, and the next count reads these lines again.
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
            # Start at 0 again, as after a boot.
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
    """Return root's lines in the unit's journal since the last count, and the cursor of the last one."""
    where = "--after-cursor=%s" % state["cursor"] if state.get("cursor") else "--since=@%d" % state["since"]
    command = ["journalctl", "--no-pager", "--quiet", "--output=cat", "--show-cursor", where]
    try:
        text, _problem = ask(run, [*command, "_SYSTEMD_UNIT=%s" % unit_of(name), "_UID=0"])
    except FileNotFoundError:
        return None
    if text is None:
        return None
    lines = text.rstrip("\n").split("\n")
    # Only the last line is journalctl's own. A message may look the same.
    if lines[-1].startswith(_CURSOR):
        return lines[:-1], lines[-1][len(_CURSOR) :]
    return lines, None


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Hold the folder's lock. Yield False if another process is counting."""
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
