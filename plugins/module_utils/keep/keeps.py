# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read and write keeps: temporary exemptions of idle holders from reclaim.

They are in root's file on the host. A keep applies to the name of a unit, the id of a container, or the PID and start
time of a process. It does not apply to a recreated container with the same name, or to a new process with the same PID.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, Sequence

from .. import durable
from ..errors import ApplyError, FleetError
from ..frozen import frozen
from ..holders.cgroup import parse_cgroup
from ..holders.peer_owner import own_container
from ..holders.processes import start_ticks
from ..model import Holder
from ..processes import peer
from .notices import FOLDER, utc

SCHEMA = 1
NAME = "keeps.json"
#: Maximum number of keeps on a host, and for one user.
MOST, MOST_OF_USER = 256, 16
LEAST_SECONDS = 60
_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}
_CONTAINER = re.compile(r"(?:(?P<runtime>\S+) )?container (?P<name>\S+)")


class KeepError(FleetError):
    """A keep is refused, or the file with the keeps cannot be used."""


@frozen
class Keep:
    """A keep.

    `identity` identifies the target. `until` and `made` are Unix times. `uid` is the user who requested it.
    """

    kind: str
    name: str
    identity: str
    uid: int
    user: str
    made: float
    until: float

    def __str__(self) -> str:
        return "%s is kept until %s by %s" % (self.name, utc(self.until), self.user)


def duration(text: str) -> int:
    """Return the seconds in a duration such as 30m, 12h, 3d or 1w.

    Raises KeepError.
    """
    match = re.fullmatch(r"(\d{1,6})([mhdw])", str(text).strip(), re.ASCII)
    if not match or int(match.group(1)) == 0:
        raise KeepError("duration", "%r is not a duration" % str(text)[:40], "Write 30m, 12h, 3d or 1w.")
    return int(match.group(1)) * _UNITS[match.group(2)]


# -- The file ----------------------------------------------------------------------------------------------------------


def read(state_directory: str, now: float) -> list[Keep]:
    """Return the keeps that have not expired.

    Raises KeepError if the file cannot be read.
    """
    path = Path(state_directory, FOLDER, NAME)
    try:
        data = durable.read(path, SCHEMA)
        keeps = [] if data is None else [Keep(**row) for row in data["keeps"]]
        return [keep for keep in keeps if keep.until > now]
    except (ApplyError, OSError, KeyError, TypeError, ValueError) as error:
        problem = error.problem if isinstance(error, ApplyError) else "the file of keeps cannot be read"
        raise KeepError(str(path), problem, "Remove it. Owners must then repeat their keeps.") from None


def write(state_directory: str, keeps: Sequence[Keep]) -> None:
    """Replace the file. Raises KeepError if the file system refuses."""
    text = json.dumps({"schema": SCHEMA, "keeps": [dataclasses.asdict(keep) for keep in keeps]}, indent=1)
    try:
        durable.write_text(Path(state_directory, FOLDER, NAME), text, mode=0o600)
    except ApplyError as error:
        raise KeepError(error.where, error.problem, error.cure) from None


def with_keep(keeps: Sequence[Keep], new: Keep) -> list[Keep]:
    """Return the keeps with a new one, which replaces an earlier one for its target.

    Raises KeepError if a limit is reached.
    """
    left = [keep for keep in keeps if (keep.kind, keep.identity) != (new.kind, new.identity)]
    if new.uid != 0 and sum(keep.uid == new.uid for keep in left) >= MOST_OF_USER:
        cure = "End one first: gpu-layout keep --list, gpu-layout keep --end NAME."
        raise KeepError(new.name, "%s has %d keeps already, which is the limit" % (new.user, MOST_OF_USER), cure)
    if len(left) >= MOST:
        cure = "Ask an administrator to end some: gpu-layout keep --list, gpu-layout keep --end NAME."
        raise KeepError(new.name, "this host has %d keeps already, which is the limit" % MOST, cure)
    return [*left, new]


# -- Targets of keeps --------------------------------------------------------------------------------------------------


def container_of(holder: Holder) -> tuple[str, str] | None:
    """Return (runtime, name) of a holder's container, or None."""
    match = _CONTAINER.fullmatch(holder.unit_or_container or "")
    return (match.group("runtime") or "", match.group("name")) if match else None


def container_id(holder: Holder) -> str:
    """Return the container id of a holder's process, from its cgroup.

    Returns "" if the process is in no container.
    """
    process = _of_kernel(holder)
    return process[0] if process else ""


def process_identity(holder: Holder) -> str:
    """Return the PID, start time and boot id of a holder's process as text.

    Returns "" if the process has ended.
    """
    process = _of_kernel(holder)
    return "%d %d %s" % (holder.pid or 0, process[1], _boot()) if process else ""


def kept(kind: str, name: str, holders: Sequence[Holder], keeps: Sequence[Keep]) -> Keep | None:
    """Return the latest keep for a unit or container, or None.

    `holders` are its holders that count as using a GPU. A keep for one of their processes also counts.
    """
    if not keeps:
        return None
    bound = {("process", process_identity(holder)) for holder in holders if holder.pid is not None}
    if kind == "unit":
        bound.add(("unit", name))
    else:
        bound |= {("container", container_id(holder)) for holder in holders if holder.pid is not None}
    matching = [keep for keep in keeps if keep.identity and (keep.kind, keep.identity) in bound]
    return max(matching, key=lambda keep: keep.until) if matching else None


def _of_kernel(holder: Holder) -> tuple[str, int] | None:
    """Return (container id, start time in ticks) of a holder's process.

    Returns None if another process got its PID.
    """
    if holder.pid is None:
        return None
    with peer.looking_at(holder.pid) as process:
        ticks = start_ticks(process.read("stat")) if process else None
        if process is None or ticks is None or ticks != holder.started_ticks:
            return None
        return parse_cgroup(process.cgroup, own_container()).container_id or "", ticks


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def to_row(keep: Keep) -> dict[str, Any]:
    """Return a keep as data for clients."""
    return {"name": keep.name, "kind": keep.kind, "user": keep.user, "until": keep.until}
