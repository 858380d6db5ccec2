# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Record the notices that precede the stop of idle holders.

The record is a file on the host. Because of it, each notice is sent once, and a holder is stopped only after the notice
period. Its key is the holder, its GPUs and whether the holder may be stopped, because only then the notice says so. The
record of a finding is removed when a run no longer lists the finding. If the finding recurs, a new notice is sent.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import time
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence, Tuple

from .. import durable
from ..errors import ApplyError, FleetError

SCHEMA = 1
#: Folder in the host's state directory, and file name.
FOLDER, NAME = "reclaim", "notices.json"
#: Key of a finding: (kind, name, runtime, GPUs, whether it may be stopped).
Finding = Tuple[str, str, str, Tuple[str, ...], bool]


class NoticeError(FleetError):
    """The record of notices cannot be read or written."""


def finding(item: Mapping[str, Any]) -> Finding:
    """Return the key of a finding in notices.json."""
    gpus = tuple(sorted(item["gpus"]))
    return item["kind"], item["name"], item.get("runtime") or "", gpus, bool(item.get("stop", True))


def folder(state_directory: str) -> Path:
    """Create the folder for this record and for the keeps.

    Only root can read it. Raises NoticeError.
    """
    made = Path(state_directory, FOLDER)
    try:
        made.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        made.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise NoticeError(
            str(made), "it cannot be created: %s" % error.strerror, "Run as root (become: true)."
        ) from None
    return made


class Record:
    """The Unix time of each finding's notice, and the notice period in seconds."""

    def __init__(self, path: Path, period_seconds: float, announced: Mapping[Finding, float]) -> None:
        self._path, self.period_seconds = path, period_seconds
        self._announced = dict(announced)

    def announced(self, item: Mapping[str, Any], now: float) -> float | None:
        """Return the Unix time of the notice, or None if a notice must be sent.

        Ignores a notice from before the current idle period. Also ignores a notice from the future, which means that
        the clock was set back.
        """
        at = self._announced.get(finding(item))
        if at is None or at > now:
            return None
        quiet = item.get("quiet_seconds")
        return None if quiet is not None and at < now - quiet else at

    def add(self, items: Sequence[Mapping[str, Any]], now: float) -> None:
        """Record that notices for these items were sent. Raises NoticeError."""
        self._announced.update((finding(item), now) for item in items)
        self._write()

    def remove(self, item: Mapping[str, Any]) -> None:
        """Remove the notice of an item. Raises NoticeError."""
        if self._announced.pop(finding(item), None) is not None:
            self._write()

    def keep_only(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Remove the notices of all items except these. Raises NoticeError."""
        kept = {key: at for key, at in self._announced.items() if key in {finding(item) for item in items}}
        if kept != self._announced:
            self._announced = kept
            self._write()

    def _write(self) -> None:
        rows = [
            {"kind": kind, "name": name, "runtime": runtime, "gpus": list(gpus), "stop": stop, "announced": at}
            for (kind, name, runtime, gpus, stop), at in sorted(self._announced.items())
        ]
        text = json.dumps({"schema": SCHEMA, "notices": rows}, indent=1)
        try:
            durable.write_text(self._path, text, mode=0o600)
        except ApplyError as error:
            raise NoticeError(error.where, error.problem, error.cure) from None


@contextlib.contextmanager
def opened(state_directory: str, period_seconds: float, dry: bool = False) -> Iterator[Record]:
    """Open and lock the host's record of notices.

    If `dry` is true, the record is only read and not locked. Raises NoticeError, for example if another run holds the
    lock.
    """
    path = Path(state_directory, FOLDER, NAME)
    if dry:
        yield Record(path, period_seconds, _read(path))
        return
    with (folder(state_directory) / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise NoticeError("this host", "another run is reclaiming its GPUs", "Wait for it and run again.") from None
        yield Record(path, period_seconds, _read(path))


def _read(path: Path) -> dict[Finding, float]:
    try:
        data = durable.read(path, SCHEMA)
        rows = [] if data is None else data["notices"]
        return {finding(row): float(row["announced"]) for row in rows}
    except (ApplyError, KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        problem = error.problem if isinstance(error, ApplyError) else "the file is damaged"
        cure = "Remove it: every idle holder then gets a notice again before it is stopped."
        raise NoticeError(str(path), problem, cure) from None


def utc(seconds: float) -> str:
    """Return a Unix time as text for messages."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
