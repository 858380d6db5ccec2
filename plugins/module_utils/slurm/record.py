# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record of Slurm's files for one node on this host.

former   lines of the node before an unconfirmed change: {"gres", "lines"}. None if the daemons use the files
devices  devices that Slurm has for the node, by number: [{"type", "uuid"}]. None if they are unknown
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import durable

SCHEMA = 1


def path_of(directory: str, node: str) -> Path:
    return Path(directory, "slurm-%s.json" % node)


def load(path: Path) -> dict[str, Any]:
    """Return the record. Raises ApplyError if the file is damaged."""
    return durable.read(path, SCHEMA) or {"former": None, "devices": None}


def save(path: Path, **changes: Any) -> None:
    """Change values of the record. Remove the file if nothing is recorded."""
    data = {**load(path), **changes, "schema": SCHEMA}
    if data["former"] is None and data["devices"] is None:
        durable.remove(path)
    else:
        durable.write(path, data)
