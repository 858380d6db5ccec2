# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Small files, JSON mostly, that are whole after a crash: the old content or the new, and on the disk when the call returns."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Callable, Dict, Mapping

from .errors import ApplyError

Upgrades = Mapping[int, Callable[[Dict[str, Any]], Dict[str, Any]]]


def write(path: Path, data: Any) -> None:
    """Write `data` as JSON. Raises ApplyError (nothing has changed on the GPUs yet) where the file system refuses."""
    write_text(path, json.dumps(data, indent=1))


def write_text(path: Path, text: str, mode: int | None = None) -> None:
    """Write a text; `mode` sets the file's, whatever the umask is. Raises as `write`."""
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        new = path.with_name(path.name + ".new")
        with create(new) as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        _sync(path.parent)
    except OSError as error:
        raise ApplyError(
            str(path), "it cannot be written: %s" % error, "Make room for it, as root.", outcome="old"
        ) from error


def create(path: Path, mode: str = "w", permissions: int = 0o666) -> IO[Any]:
    """Open a new file of this name to write. What lies there goes, and a link that somebody has put there is not followed."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(str(path), flags, permissions)
    return os.fdopen(descriptor, mode, encoding=None if "b" in mode else "utf-8")


def make_folder(folder: Path) -> None:
    """Make a folder that users and container engines can read, whatever the caller's umask is."""
    if not folder.exists():
        make_folder(folder.parent)
        with contextlib.suppress(OSError):
            # What writes into it next says what is wrong.
            folder.mkdir()
            folder.chmod(0o755)


def remove(path: Path) -> None:
    """Remove the file if it is there."""
    if path.exists():
        path.unlink()
        _sync(path.parent)


def read(path: Path, schema: int, upgrades: Upgrades = MappingProxyType({})) -> Any:
    """The file's mapping in this schema, or None where there is no file.

    A file of an older release is upgraded, a schema at a time: `upgrades` maps each older schema that can be read to the
    function that makes it the next. Raises ApplyError for anything else than a mapping of such a schema.
    """
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        data = None
    found = data.get("schema") if isinstance(data, dict) else None
    while found != schema and isinstance(found, int) and found in upgrades:
        data = upgrades[found](data)
        found = data["schema"]
    if found != schema:
        raise damaged(
            path, "is damaged" if found is None else "has schema %s, and this release reads %d" % (found, schema)
        )
    return data


def damaged(path: Path, problem: str = "is damaged") -> ApplyError:
    """The error for a file that this release cannot read."""
    cure = "Use the release that wrote it; or look at the GPUs with nvidia-smi, remove the file and run again."
    return ApplyError(str(path), "the file %s" % problem, cure)


def _sync(folder: Path) -> None:
    descriptor = os.open(str(folder), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
