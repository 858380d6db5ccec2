# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a change of a host's layout atomic with a lock and a journal.

The change is atomic even after kill -9 or a power loss. Both files are in one directory. The lock is a flock. The
kernel releases it when the process that holds it ends. The journal is written before the first step and removed after
the last one. If a run finds a journal, an earlier run was interrupted.
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
from typing import Any, Iterator, Mapping, Sequence

from .. import durable
from ..errors import ApplyError
from ..frozen import frozen
from ..holders.processes import started_ticks_of
from .gpu_plan import Target

DIRECTORY = "/var/lib/openfleet-gpu"
SCHEMA = 5
_POLL_SECONDS = 0.2


@contextlib.contextmanager
def locked(directory: str, timeout_seconds: float) -> Iterator[None]:
    """Hold the lock of the host.

    If the lock is not free in time, ApplyError is raised. It names the run that holds the lock.
    """
    folder = Path(directory)
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        # Only root may open the lock. Any user who can open it could hold it and block all changes.
        file = os.fdopen(os.open(str(folder / "lock"), os.O_RDWR | os.O_CREAT, 0o600), "r+")
    except OSError as error:
        raise ApplyError(
            directory, "the lock cannot be taken: %s" % error, durable.cure_of(error, movable=True), outcome="old"
        ) from None
    with file:
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= deadline:
                    raise _taken(file, folder / "lock") from None
                time.sleep(_POLL_SECONDS)
        file.truncate(0)
        json.dump(dict(_this_run(), schema=SCHEMA), file)
        file.flush()
        try:
            yield
        finally:
            # Closing the file is not enough. A child that was just forked may still have the inherited file open.
            fcntl.flock(file, fcntl.LOCK_UN)


@contextlib.contextmanager
def looking(directory: str) -> Iterator[ApplyError | None]:
    """Share the lock with other readers. Does not wait.

    If a run is changing the host, an error that names the run is yielded, otherwise None. Keep the block short: runs
    that change the host wait until the block ends, because a GPU refuses a reset while a process has it open. Raises
    ApplyError if this user may not open the lock.
    """
    try:
        file = (Path(directory) / "lock").open()
    except FileNotFoundError:
        # No run has changed this host yet.
        yield None
        return
    except OSError as error:
        raise ApplyError(
            directory, "the lock cannot be opened: %s" % error, durable.cure_of(error, movable=True), outcome="old"
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            busy = None
        except OSError:
            busy = _taken(file, Path(directory) / "lock")
        yield busy


def _taken(file: Any, path: Path) -> ApplyError:
    file.seek(0)
    try:
        run = json.loads(file.read())
        # The name of an earlier run would be more misleading than no name.
        if run.get("start") is not None and started_ticks_of(run["pid"]) != run["start"]:
            raise ValueError("this run has ended")
        who = _name(run)
    except (ValueError, KeyError, TypeError, AttributeError):
        # The run holds the lock but has not written its name yet, or another release wrote the name in another format.
        who = "an unknown process (see: fuser %s)" % path
    return ApplyError(
        "this host", "another run is changing the layout: %s" % who, "Wait for it and run again.", outcome="old"
    )


def _this_run() -> dict[str, Any]:
    words = "a run of Ansible, such as site.yml" if _of_ansible() else " ".join(sys.argv)
    return {"pid": os.getpid(), "command": words, "since": time.time(), "start": started_ticks_of(os.getpid())}


def _of_ansible() -> bool:
    """Return whether this process runs an Ansible module.

    A module runs from a temporary copy, so its file name says nothing.
    """
    return "ansible.module_utils.basic" in sys.modules


def _name(run: dict[str, Any]) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(run["since"]))
    return "pid %d (%s) since %s UTC" % (run["pid"], run["command"], since)


@frozen
class Entry:
    """The content of a journal: the run, and the targets for the old and new layout."""

    before: tuple[Target, ...]
    after: tuple[Target, ...]
    run: str | None = None
    #: Journal data of the changes of services (`services.Change`), by key of the technique.
    beside: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    #: Contents of `unnamed.AppliedRecord` for the old and the new layout. Empty if the run does not change the record.
    applied: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def interrupted(self) -> str:
        """Return the text at the beginning of each message about this journal."""
        return "a run was interrupted%s" % (" (%s)" % self.run if self.run else "")


class Journal:
    """The journal of a host."""

    def __init__(self, directory: str) -> None:
        self.path = Path(directory) / "journal.json"

    def begin(
        self,
        before: Sequence[Target],
        after: Sequence[Target],
        beside: Mapping[str, Mapping[str, Any]] | None = None,
        applied: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Write the journal to disk. Call this before anything changes."""
        content = {
            "schema": SCHEMA,
            "run": _this_run(),
            "before": [target.to_data() for target in before],
            "after": [target.to_data() for target in after],
            "beside": dict(beside or {}),
            # Earlier releases neither write nor read this key.
            **({"applied": dict(applied)} if applied else {}),
        }
        durable.write(self.path, content)

    def end(self) -> None:
        """Remove the journal after the old or the new layout is complete."""
        durable.remove(self.path)

    def read(self) -> Entry | None:
        """Return the journal of an interrupted run, or None.

        Raises ApplyError if this release cannot read the journal.
        """
        data = durable.read(self.path, SCHEMA)
        if data is None:
            return None
        try:
            run = data["run"]
            who = None if run is None else _name(run)
            before, after = (tuple(map(Target.from_data, data[name])) for name in ("before", "after"))
            return Entry(before, after, who, {**data["beside"]}, {**data.get("applied", {})})
        except (KeyError, TypeError, ValueError):
            raise durable.damaged(self.path) from None
