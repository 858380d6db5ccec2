# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Share code between installers.

The code writes files atomically below a root, supports check mode, and holds a lock.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Callable, Iterator

from .. import durable, systemd_reload
from ..errors import FleetError
from ..processes.command import Run, run_to_end

# A run holds this lock while it writes files and starts units, so that two runs do not stop each other's sockets. The
# run removes the file at the end. A killed run leaves it in /run until the next boot.
LOCK, LOCK_SECONDS = "run/openfleet-gpu-install.lock", 300

# Folders for unit files, drop-ins and quadlets.
_UNIT_FOLDERS = ("etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system", "etc/containers/systemd")

# Message in a unit's log if another run holds the host's lock, and the number of lines at the log's end that are
# searched.
_OTHER_RUN, _LAST_LINES = re.compile(r"(another run is changing the layout: .*?)\. Wait for it"), 6

# Show differences only for files that every user may read.
_ALL_READ = 0o004


class InstallError(FleetError):
    """An installation failed. `where` is the variable of the role, or the file."""


class Installation:
    """The files below `root`. If `check` is true, changes are only reported.

    Methods raise FleetError or OSError.
    """

    def __init__(self, root: Path, check: bool, call: Run = run_to_end) -> None:
        self.root, self.check, self.call = root, check, call
        #: The steps taken, and the differences of text files for Ansible.
        self.done: list[str] = []
        self.differences: list[dict[str, str]] = []
        self._mark: Path | None = None
        # Whether a unit file changed, and whether systemd must therefore reload. Both are also set in check mode.
        self._units_changed = self.reloads = False

    def mark(self, relative: str) -> bool:
        """Write this marker file before the first change. `finish` removes it.

        Returns whether an interrupted run left the marker. Such a run may have written all files without starting its
        units.
        """
        self._mark = self.path(relative)
        interrupted = self._mark.exists()
        self._units_changed |= interrupted
        return interrupted

    def finish(self) -> None:
        """Remove the marker file."""
        if self._mark is not None and not self.check:
            self._mark.unlink(missing_ok=True)

    def doing(self, step: str) -> bool:
        """Report the next step and write the marker file.

        Returns whether the step must be taken. Returns False in check mode.
        """
        self.done.append(step)
        if not self.check and self._mark is not None and not self._mark.exists():
            durable.make_folder(self._mark.parent)
            durable.write_bytes(self._mark, b"", 0o600)
        return not self.check

    @property
    def is_host(self) -> bool:
        """Return whether this is the host's own root, with its systemd and accounts."""
        return self.root == Path("/")

    def path(self, relative: str) -> Path:
        return self.root / relative

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Run the block while no other installation runs on this host."""
        if self.check:
            yield
            return
        lock = self.path(LOCK)
        created = [folder for folder in (lock.parent, *lock.parent.parents) if not folder.exists()]
        lock.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = _wait_for(lock)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
            os.close(descriptor)
            for folder in created:
                with suppress(OSError):  # keep the folder, because the installation is in it
                    folder.rmdir()

    def write(
        self, relative: str, content: bytes, mode: int = 0o644, accept: Callable[[Path], None] | None = None
    ) -> bool:
        """Write a file, also in place of a link. Return False if it was unchanged.

        `accept` checks the new file before it replaces the old one. It raises an exception if the file is invalid.
        """
        path = self.path(relative)
        before = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        if before == content and stat.S_IMODE(path.stat().st_mode) == mode:
            return False
        if mode & _ALL_READ:
            self._differ(path, before or b"", content)
        self.replace(path, content, mode, accept=accept)
        return True

    def replace(
        self, path: Path, content: bytes, mode: int, reason: str = "", accept: Callable[[Path], None] | None = None
    ) -> None:
        """Replace the file atomically."""
        if self.doing("write %s%s" % (path, ": " + reason if reason else "")):
            # All users must be able to read the folder, whatever the umask is.
            durable.make_folder(path.parent)
            durable.write_bytes(path, content, mode, accept)
        self._note_unit(path)

    def _note_unit(self, path: Path) -> None:
        self._units_changed |= str(path.relative_to(self.root)).startswith(_UNIT_FOLDERS)

    def make(self, folder: Path) -> list[str]:
        """Create the folder with access for all users.

        Returns the folders that were created, outermost first.
        """
        missing = [path for path in (folder, *folder.parents) if not path.exists()][::-1]
        for path in missing:
            self.done.append("make %s" % path)
            if not self.check:
                path.mkdir()
                path.chmod(0o755)
        return [str(path) for path in missing]

    def remove(self, relative: str) -> bool:
        """Remove a file or link. Return False if it does not exist."""
        path = self.path(relative)
        if not path.is_file() and not path.is_symlink():
            return False
        if not path.is_symlink() and path.stat().st_mode & _ALL_READ:
            self._differ(path, path.read_bytes(), b"")
        if self.doing("remove %s" % path):
            path.unlink()
        self._note_unit(path)
        return True

    def prune(self, folder: Path, report: bool = True) -> None:
        """Remove the folder if it is empty."""
        if folder.is_dir() and not any(folder.iterdir()):
            if report:
                self.done.append("remove %s" % folder)
            if not self.check:
                folder.rmdir()

    def systemctl(self, *arguments: str, log_of: str = "") -> None:
        """Run systemctl if this is the host's own root.

        `enable` and `disable` are run with --no-reload, because only `reload` may reload systemd. Raises InstallError
        with the end of the log of the unit `log_of`.
        """
        if not self.is_host or self.check:
            return
        if arguments[0] in ("enable", "disable"):
            arguments = (arguments[0], "--no-reload", *arguments[1:])
        self.run("systemctl", *arguments, log_of=log_of)

    def reload(self, run: bool = True, changed: bool = False) -> None:
        """Reload systemd if a unit file changed, or if `changed` is true.

        Set `run` to False if a later command reloads systemd. A reload can detach GPUs from containers, so
        `sources.bring_about` calls `systemd_reload.guard` first.
        """
        self.reloads |= changed or self._units_changed
        if self.reloads and run and not self.check:
            self.run(*systemd_reload.RELOAD)

    def run(self, *command: str, log_of: str = "", **options: Any) -> str:
        """Run a command that changes the host, and return its output.

        Does nothing in check mode. Raises InstallError like `systemctl`.
        """
        return "" if self.check else self.ask(*command, log_of=log_of, **options)

    def ask(self, *command: str, log_of: str = "", **options: Any) -> str:
        """Return the output of a command that changes nothing, also in check mode.

        Raises InstallError like `systemctl`.
        """
        done = self.call(list(command), **options)
        output = done.stdout + done.stderr
        if done.returncode:
            if log_of:
                words = ["journalctl", "--no-pager", "--output=cat", "--lines=20", "--unit", log_of]
                journal = self.call(words).stdout
                _raise_other_run(journal)
                output += journal
            raise InstallError(" ".join(command), "it failed with status %d:\n%s" % (done.returncode, output.rstrip()))
        return output

    def result(self) -> dict[str, Any]:
        """Return this installation's part of the module result."""
        return {"changed": bool(self.done), "done": self.done, "diff": self.differences}

    def _differ(self, path: Path, before: bytes, after: bytes) -> None:
        try:
            texts = before.decode(), after.decode()
        except UnicodeDecodeError:
            return
        if texts[0] != texts[1]:
            names = {"before_header": str(path), "after_header": str(path)}
            self.differences.append(dict(names, before=texts[0], after=texts[1]))


def _raise_other_run(journal: str) -> None:
    """Raise InstallError if another run holds the lock (`transaction.locked`).

    The end of a unit's log then has a known message.
    """
    for line in journal.splitlines()[-_LAST_LINES:]:
        match = _OTHER_RUN.search(line)
        if match:
            raise InstallError("this host", match.group(1), "Wait for it and run again.")


def _wait_for(lock: Path) -> int:
    """Return a descriptor of the locked file.

    Raises InstallError if another run holds the lock for LOCK_SECONDS.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    while time.monotonic() < deadline:
        descriptor = os.open(str(lock), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous holder may have removed the file. A lock on a removed file is useless.
            if os.path.samestat(os.fstat(descriptor), lock.stat()):
                return descriptor
        except (BlockingIOError, FileNotFoundError):
            time.sleep(0.1)
        os.close(descriptor)
    raise InstallError(
        str(lock), "another run has held the lock for %d s" % LOCK_SECONDS, "Find that run, end it and run again."
    )
