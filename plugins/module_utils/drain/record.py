# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record of drained clients. A resume restores the clients from it.

An entry means that the client was running when the drain reached it. The entry is written to disk before the client is
stopped. If the client was then not stopped, restoring it changes nothing.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from .. import durable
from ..errors import ApplyError, FleetError

SCHEMA = 1
NAME = "drain.json"


class DrainError(FleetError):
    """A client could not be drained or restored."""


@dataclass
class Record:
    """The record of one host. If it is empty, there is no file."""

    path: Path
    #: Whether all commands before the drain have run.
    prepared: bool = False
    #: Custom commands to run after the resume. Each is a line for a shell or a list of words.
    commands_after: list[Any] = field(default_factory=list)
    #: systemd units that were active, in the order of stopping.
    units: list[str] = field(default_factory=list)
    #: The reason of the drain, by name of the Slurm node. None if the node was already drained.
    slurm: dict[str, str | None] = field(default_factory=dict)
    #: {"node": name, "cordoned_before": bool}.
    kubernetes: dict[str, Any] | None = None

    @classmethod
    def load(cls, directory: str) -> Record:
        """Return the record of the host.

        Raises DrainError if the file is damaged or from another release.
        """
        path = Path(directory) / NAME
        record = cls(path)
        try:
            data = durable.read(path, SCHEMA)
        except ApplyError as error:
            raise DrainError(str(path), error.problem, _CURE % path) from None
        except OSError as error:
            raise DrainError(str(path), "it cannot be read: %s" % error, "Run as root (become: true).") from None
        for entry in fields(cls)[1:]:
            if data is not None:
                if type(data.get(entry.name)) not in _TYPES[entry.name]:
                    raise DrainError(str(path), "the file is damaged: see its %r" % entry.name, _CURE % path)
                setattr(record, entry.name, data[entry.name])
        return record

    def save(self) -> None:
        """Write the record to disk. If the record is empty, remove the file."""
        content = asdict(self)
        del content["path"]
        if not any(content.values()):
            durable.remove(self.path)
            return
        self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        # Only root may read the file, because commands may contain secrets.
        former = os.umask(0o077)
        try:
            durable.write(self.path, dict(content, schema=SCHEMA))
        finally:
            os.umask(former)


_TYPES: dict[str, tuple[type, ...]] = {
    "prepared": (bool,),
    "commands_after": (list,),
    "units": (list,),
    "slurm": (dict,),
    "kubernetes": (dict, type(None)),
}
_CURE = (
    "Use the release that wrote it. Or find the drained clients of this host (systemctl list-units --state=inactive, "
    "sinfo -R, kubectl get nodes), restore it by hand and remove %s."
)
