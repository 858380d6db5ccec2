# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record of Slurm's files for one node on this host.

pending  whether a change began that is not confirmed
former   lines of the node before this change: {"gres", "lines"}. None if the files are not written yet
devices  devices that Slurm has for the node, by number: [{"type", "uuid"}]. None if they are unknown
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import durable

SCHEMA = 1


def path_of(directory: str, node: str) -> Path:
    return Path(directory, "slurm-%s.json" % node)


def only_node(directory: str) -> str:
    """Return the name of the only node with a record, or ""."""
    names = [path.stem[len("slurm-") :] for path in Path(directory).glob("slurm-*.json")]
    return names[0] if len(names) == 1 else ""


def load(path: Path) -> dict[str, Any]:
    """Return the record. Raises ApplyError if the file is damaged."""
    return durable.read(path, SCHEMA) or {"pending": False, "former": None, "devices": None}


def save(path: Path, **changes: Any) -> None:
    """Change values of the record. Remove the file if nothing is recorded."""
    data = {**load(path), **changes, "schema": SCHEMA}
    if not any(data[key] for key in ("pending", "former", "devices")):
        durable.remove(path)
    else:
        durable.write(path, data)
