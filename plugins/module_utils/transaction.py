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
from typing import Any, Iterator, Mapping, Sequence

from . import durable
from .errors import ApplyError
from .frozen import frozen
from .gpu_plan import Target
from .holders.processes import started_ticks_of

DIRECTORY = "/var/lib/openfleet-gpu"
SCHEMA = 5
_POLL_SECONDS = 0.2


@contextlib.contextmanager
def locked(directory: str, timeout_seconds: float) -> Iterator[None]:
    """Hold the host's lock. Waits up to `timeout_seconds` for another run, then raises ApplyError naming it."""
    folder = Path(directory)
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        # Not for others to open: who can open it can hold the lock, and so block every change.
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
            # A child between its fork and the closing of what it inherited keeps the file open, and so the lock.
            fcntl.flock(file, fcntl.LOCK_UN)


@contextlib.contextmanager
def looking(directory: str) -> Iterator[ApplyError | None]:
    """Look at the host while no run changes it: gives the run that does, as `locked` would name it, or None.

    Does not wait. Other runs wait until the block ends, because a reset is refused while a process has the GPU open: look
    quickly. Several may look at once. Raises ApplyError where this user may not ask.
    """
    try:
        file = (Path(directory) / "lock").open()
    except FileNotFoundError:
        # There was no run yet.
        yield None
        return
    except OSError as error:
        raise ApplyError(
            directory, "the lock cannot be looked at: %s" % error, durable.cure_of(error, movable=True), outcome="old"
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
        # A name that is still there from the run before is worse than none.
        if run.get("start") is not None and started_ticks_of(run["pid"]) != run["start"]:
            raise ValueError("the run before this one left its name, and has ended")
        who = _name(run)
    except (ValueError, KeyError, TypeError, AttributeError):
        # Between taking the lock and writing its name, or a release that wrote it otherwise.
        who = "a process that did not leave its name (see: fuser %s)" % path
    return ApplyError(
        "this host", "another run is changing the layout: %s" % who, "Wait for it and run again.", outcome="old"
    )


def _this_run() -> dict[str, Any]:
    words = "a run of Ansible, such as site.yml" if _of_ansible() else " ".join(sys.argv)
    return {"pid": os.getpid(), "command": words, "since": time.time(), "start": started_ticks_of(os.getpid())}


def _of_ansible() -> bool:
    """Whether this is a module: its file is a copy for the moment, whose name says nothing."""
    return "ansible.module_utils.basic" in sys.modules


def _name(run: dict[str, Any]) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(run["since"]))
    return "pid %d (%s) since %s UTC" % (run["pid"], run["command"], since)


@frozen
class Entry:
    """A journal's content: the GPUs' targets that lead back, those that lead on, and the name of the run."""

    before: tuple[Target, ...]
    after: tuple[Target, ...]
    run: str | None = None
    #: The records of changes beside the GPUs (`services.Change`), by key of the technique.
    beside: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    #: Contents of `unnamed.AppliedRecord` for the layouts old and new; empty if the run does not change it.
    applied: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def cut_off(self) -> str:
        """The sentence that begins every message about it."""
        return "a run was cut off half way%s" % (" (%s)" % self.run if self.run else "")


class Journal:
    """The journal of one host."""

    def __init__(self, directory: str) -> None:
        self.path = Path(directory) / "journal.json"

    def begin(
        self,
        before: Sequence[Target],
        after: Sequence[Target],
        beside: Mapping[str, Mapping[str, Any]] | None = None,
        applied: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Write it, so that it is on the disk before anything changes."""
        content = {
            "schema": SCHEMA,
            "run": _this_run(),
            "before": [target.to_data() for target in before],
            "after": [target.to_data() for target in after],
            "beside": dict(beside or {}),
            # Releases before this key neither write nor read it.
            **({"applied": dict(applied)} if applied else {}),
        }
        durable.write(self.path, content)

    def end(self) -> None:
        """Remove it: the layout is the old one or the new one, whole."""
        durable.remove(self.path)

    def read(self) -> Entry | None:
        """What a run that was cut off left, or None. Raises ApplyError for a journal that this release cannot read."""
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
