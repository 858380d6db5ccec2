# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Access the host's files, units and commands."""

from __future__ import annotations

import json
import re
from typing import NoReturn

from ... import durable, systemd, systemd_reload
from ...processes.command import run_to_end
from ..files import Installation, InstallError

UNIT = "dcgm-exporter.service"
UNITS = "etc/systemd/system"
# Folders of the role, relative to the host's root.
CONFIG = "etc/openfleet-gpu/exporter"
PROGRAM = "usr/local/lib/openfleet-gpu-exporter"
# This file exists from the first change until the service has restarted, so it remains after an interrupted run.
PENDING = CONFIG + "/restart-pending"
# Objects that the role added and removes again: {"packages": [name], "masked": [unit], "directories": [path]}.
RECORD = CONFIG + "/installed.json"

# Pattern for the user and password in an address.
CREDENTIALS = re.compile(r"//[^/\s]*@")


class Record:
    """The record of objects that the role added, by kind."""

    def __init__(self, target: Installation) -> None:
        self._target, self._path = target, target.path(RECORD)

    def names(self, kind: str) -> list[str]:
        """Return the names of a kind. Raises InstallError if the record is unreadable."""
        try:
            return json.loads(self._path.read_text())[kind] if self._path.exists() else []
        except (ValueError, KeyError) as error:
            raise InstallError(
                str(self._path),
                "it cannot be read (%s)" % error,
                "Delete it and remove the installation by hand.",
            ) from error

    def add(self, kind: str, names: list[str]) -> None:
        """Record names. Call this before the objects are created.

        The run may be interrupted in between.
        """
        record = {known: self.names(known) for known in ("packages", "masked", "directories")}
        record[kind] = sorted({*record[kind], *names})
        if any(record.values()):
            durable.make_folder(self._path.parent)
            durable.write_text(self._path, json.dumps(record, indent=2) + "\n", 0o644)


def booted(target: Installation) -> bool:
    """Return whether systemd runs the host."""
    return systemd.booted(target.root)


def systemctl(target: Installation, *arguments: str, unknown: bool = False) -> None:
    """Run systemctl and report the command.

    `unknown` is true if the unit may not exist.
    """
    if target.doing("systemctl " + " ".join(arguments)):
        command = ["systemctl", *arguments]
        status, text = output(command)
        if status and not (unknown and "not loaded" in text):
            fail(command, status, text)


def reload(target: Installation) -> None:
    """Reload systemd, and report the reload."""
    target.doing(" ".join(systemd_reload.RELOAD))
    target.reload(changed=True)


def output(command: list[str], more: dict[str, str] | None = None) -> tuple[int, str]:
    """Return a command's status and output.

    `more` is added to the environment.
    """
    done = run_to_end(command, env=more)
    return done.returncode, done.stdout + done.stderr


def run(command: list[str], more: dict[str, str] | None = None) -> str:
    status, text = output(command, more)
    if status:
        fail(command, status, text)
    return text


def fail(command: list[str], status: int, text: str) -> NoReturn:
    where = CREDENTIALS.sub("//***@", " ".join(command))
    raise InstallError(where, CREDENTIALS.sub("//***@", "it failed with status %d:\n%s" % (status, text + journal())))


def refuse(text: str) -> NoReturn:
    """Raise InstallError with this text: the place, the problem and the fix."""
    raise InstallError("", text)


def journal() -> str:
    return "\n--- journal of %s:\n%s" % (
        UNIT,
        output(["journalctl", "--no-pager", "--output=cat", "--lines=30", "--unit", UNIT])[1],
    )
