# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lock a host for a change of its layout.

The lock is a flock. The kernel releases it when the process that holds it ends, even after kill -9 or a power loss.
With `change.journal`, a later run completes an interrupted change.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Iterator

from .. import durable
from ..errors import ApplyError
from ..holders.processes import started_ticks_of

DIRECTORY = "/var/lib/openfleet-gpu"
SCHEMA = 5
_POLL_SECONDS = 0.2


class LockedError(ApplyError):
    """Another run holds the host's lock."""


@contextlib.contextmanager
def locked(directory: str, timeout_seconds: float) -> Iterator[None]:
    """Hold the host's lock.

    Raises ApplyError with the run that holds the lock, if the lock is not free in time.
    """
    folder = Path(directory)
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        # Only root may open the lock, because any user who can open it could hold it and block all changes.
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
        json.dump(dict(this_run(), schema=SCHEMA), file)
        file.flush()
        try:
            yield
        finally:
            # Unlock explicitly: closing the file does not release the lock while a child that was just forked has it
            # open.
            fcntl.flock(file, fcntl.LOCK_UN)


@contextlib.contextmanager
def looking(directory: str) -> Iterator[ApplyError | None]:
    """Share the lock with other readers, without waiting.

    Yields None, or an error that names the run that is changing the host. Keep the block short: runs that change the
    host wait for it, because a GPU refuses a reset while a process has it open. Raises ApplyError if this user may not
    open the lock.
    """
    try:
        file = (Path(directory) / "lock").open()
    except FileNotFoundError:
        # No run has ever changed this host.
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


def _taken(file: Any, path: Path) -> LockedError:
    file.seek(0)
    try:
        run = json.loads(file.read())
        # Do not show an earlier run's name, which would mislead more than no name.
        if run.get("start") is not None and started_ticks_of(run["pid"]) != run["start"]:
            raise ValueError("this run has ended")
        who = run_name(run)
    except (ValueError, KeyError, TypeError, AttributeError):
        # The run has not written its name yet, or another release wrote it in another format.
        who = "an unknown process (see: fuser %s)" % path
    return LockedError(
        "this host", "another run is changing the layout: %s" % who, "Wait for it and run again.", outcome="old"
    )


def this_run() -> dict[str, Any]:
    """Describe this process as data for the lock and the journal."""
    words = "a run of Ansible, such as site.yml" if _of_ansible() else " ".join(sys.argv)
    return {"pid": os.getpid(), "command": words, "since": time.time(), "start": started_ticks_of(os.getpid())}


def _of_ansible() -> bool:
    """Return whether this process runs an Ansible module.

    The file name does not show it, because a module runs from a temporary copy.
    """
    return "ansible.module_utils.basic" in sys.modules


def run_name(run: dict[str, Any]) -> str:
    """Return the name of a run (`this_run`) for messages."""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(run["since"]))
    return "pid %d (%s) since %s UTC" % (run["pid"], run["command"], since)
