# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock and the journal: what makes a change of a host's layout all or nothing, also across kill -9 and power loss.

Both live in one directory. The lock is a flock, which ends with the process that holds it, however that ends. The
journal is written before the first step and removed after the last: where a run finds one, the run before was cut off.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Iterator, Sequence

from . import durable
from .errors import ApplyError
from .mig_steps import Target, WantedInstance
from .model import to_data

DIRECTORY = "/var/lib/openfleet-gpu"
SCHEMA = 1
_POLL_SECONDS = 0.2


@contextlib.contextmanager
def locked(directory: str, timeout_seconds: float) -> Iterator[None]:
    """Hold the host's lock. Waits up to `timeout_seconds` for another run, then raises ApplyError naming it."""
    folder = Path(directory)
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        # Not for others to open: whoever can may hold the lock, and so block every change.
        file = os.fdopen(os.open(str(folder / "lock"), os.O_RDWR | os.O_CREAT, 0o600), "r+")
    except OSError as error:
        raise ApplyError(
            directory, "the lock cannot be taken: %s" % error, "Run as root (become: true).", outcome="old"
        ) from None
    with file:
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= deadline:
                    raise _taken(file) from None
                time.sleep(_POLL_SECONDS)
        file.truncate(0)
        json.dump({"schema": SCHEMA, "pid": os.getpid(), "command": " ".join(sys.argv), "since": time.time()}, file)
        file.flush()
        yield


def _taken(file: Any) -> ApplyError:
    file.seek(0)
    try:
        holder = json.loads(file.read())
        who = "pid %d (%s) since %s UTC" % (
            holder["pid"],
            holder["command"],
            time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(holder["since"])),
        )
    except (ValueError, KeyError, TypeError):
        # Between taking the lock and writing its name, or a release that wrote it otherwise.
        who = "a process that did not leave its name (see: fuser %s)" % file.name
    return ApplyError(
        "this host", "another run is changing the layout: %s" % who, "Wait for it and run again.", outcome="old"
    )


@dataclasses.dataclass(frozen=True)
class Entry:
    """A journal's content: the GPUs' targets that lead back, and those that lead on."""

    before: tuple[Target, ...]
    after: tuple[Target, ...]


class Journal:
    """The journal of one host."""

    def __init__(self, directory: str) -> None:
        self.path = Path(directory) / "journal.json"

    def begin(self, before: Sequence[Target], after: Sequence[Target]) -> None:
        """Write it, so that it is on the disk before anything changes."""
        durable.write(self.path, {"schema": SCHEMA, "before": to_data(tuple(before)), "after": to_data(tuple(after))})

    def end(self) -> None:
        """Remove it: the layout is the old one or the new one, whole."""
        durable.remove(self.path)

    def read(self) -> Entry | None:
        """What a run that was cut off left, or None. Raises ApplyError for a journal that this release cannot read."""
        data = durable.read(self.path, SCHEMA)
        return None if data is None else Entry(_targets(data["before"]), _targets(data["after"]))


def _targets(data: list[dict[str, Any]]) -> tuple[Target, ...]:
    targets = []
    for target in data:
        instances = tuple(
            WantedInstance(
                i["profile"], i["start"], None if i["compute_slices"] is None else tuple(i["compute_slices"])
            )
            for i in target["instances"]
        )
        targets.append(Target(**dict(target, instances=instances)))
    return tuple(targets)
