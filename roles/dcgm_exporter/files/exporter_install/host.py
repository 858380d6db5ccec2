# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files, units and commands of the host."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

UNIT = "dcgm-exporter.service"
UNITS = "etc/systemd/system"
#: The role's own directories, below the root given.
CONFIG = "etc/openfleet-gpu/exporter"
PROGRAM = "usr/local/lib/openfleet-gpu-exporter"
#: There from before the first change until the service was restarted after the last one. A run that was cut off leaves it.
PENDING = CONFIG + "/restart-pending"
#: {"packages": [name], "masked": [unit], "directories": [path]}: what was not there before the role, and goes with it.
RECORD = CONFIG + "/installed.json"
#: There where systemd runs the host (sd_booted(3)).
SYSTEMD = "run/systemd/system"

#: Of an address: user and password.
CREDENTIALS = re.compile(r"//[^/\s]*@")


class Installation:
    """The files below `root`; with `check` nothing is changed, only said."""

    def __init__(self, root: Path, check: bool) -> None:
        self.root, self.check = root, check
        self.done: list[str] = []
        #: Whether a change asks for a restart.
        self.restarts = False

    def path(self, relative: str) -> Path:
        return self.root / relative

    def doing(self, what: str) -> bool:
        """Say it. True if it is to be done, too; then the restart that it asks for is noted already."""
        self.done.append(what)
        if self.restarts and not self.check and not self.pending:
            self.put(PENDING, b"")
        return not self.check

    @property
    def pending(self) -> bool:
        return self.path(PENDING).exists()

    def restarted(self) -> None:
        if self.pending and not self.check:
            self.path(PENDING).unlink()

    def recorded(self, kind: str) -> list[str]:
        path = self.path(RECORD)
        try:
            return json.loads(path.read_text())[kind] if path.exists() else []
        except (ValueError, KeyError) as error:
            sys.exit("%s cannot be read (%s): delete it, and remove by hand what the role installed" % (path, error))

    def remember(self, kind: str, names: list[str]) -> None:
        """Before they are made: a run may be cut off."""
        record = {known: self.recorded(known) for known in ("packages", "masked", "directories")}
        record[kind] = sorted({*record[kind], *names})
        if any(record.values()):
            self.put(RECORD, (json.dumps(record, indent=2) + "\n").encode())

    def write(self, relative: str, content: bytes, mode: int = 0o644) -> bool:
        """True if the file was not so. A reader finds the old file or the new one, never part of one."""
        path = self.path(relative)
        if path.is_file() and path.read_bytes() == content and stat.S_IMODE(path.stat().st_mode) == mode:
            return False
        if self.doing("write %s" % path):
            self.put(relative, content, mode)
        return True

    def put(self, relative: str, content: bytes, mode: int = 0o644) -> None:
        path = self.path(relative)
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        new = path.with_name(path.name + ".new")
        if new.exists():
            new.unlink()
        # Never readable by others, not even for a moment.
        with os.fdopen(os.open(str(new), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        new.chmod(mode)
        new.replace(path)

    def remove(self, relative: str) -> bool:
        path = self.path(relative)
        if not (path.exists() or path.is_symlink()):
            return False
        if self.doing("remove %s" % path):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(str(path))
            else:
                path.unlink()
        return True

    def prune(self, relative: str) -> None:
        """A directory that is left empty."""
        path = self.path(relative)
        if not self.check and path.is_dir() and not any(path.iterdir()):
            path.rmdir()

    @property
    def booted(self) -> bool:
        return self.path(SYSTEMD).is_dir()

    def systemctl(self, *arguments: str, unknown: bool = False) -> None:
        """`unknown`: systemd may not know the unit."""
        if self.doing("systemctl " + " ".join(arguments)):
            command = ["systemctl", *arguments]
            status, said = output(command, more={"LC_ALL": "C"})
            if status and not (unknown and "not loaded" in said):
                fail(command, status, said)


def output(command: list[str], more: dict[str, str] | None = None) -> tuple[int, str]:
    """Its status, and what it said. `more` is added to the environment."""
    environment = dict(os.environ, **(more or {}))
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        env=environment,
    )
    return done.returncode, done.stdout.decode(errors="replace")


def run(command: list[str], more: dict[str, str] | None = None) -> str:
    status, said = output(command, more)
    if status:
        fail(command, status, said)
    return said


def fail(command: list[str], status: int, said: str) -> NoReturn:
    text = "%s failed with status %d:\n%s" % (" ".join(command), status, said + journal())
    sys.exit(CREDENTIALS.sub("//***@", text))


def journal() -> str:
    return "\n--- journal of %s:\n%s" % (
        UNIT,
        output(["journalctl", "--no-pager", "--output=cat", "--lines=30", "--unit", UNIT])[1],
    )
