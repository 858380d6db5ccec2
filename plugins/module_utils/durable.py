# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Small files, JSON mostly, that are whole after a crash: the old content or the new, and on the disk when the call returns."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import IO, Any, Callable, Iterator, Mapping

from .errors import ApplyError

#: Suffix under which a file that another one replaces for a trial is kept; empty if there was none.
FORMER = ".former"

_SYSTEM = {"etc", "usr", "run"}
_CURES = {
    errno.EACCES: "Run as root (become: true).",
    errno.EPERM: "Run as root (become: true). If it is root, the file or its directory is immutable: see lsattr, and chattr -i.",
    errno.EROFS: "The file system is read-only: mount it for writing (mount -o remount,rw).",
    errno.ENOSPC: "The file system is full: make room.",
    errno.EDQUOT: "The quota is used up: make room.",
    errno.ENOTDIR: "A part of that path is a file: move it away.",
    errno.EEXIST: "A file has the name of that directory: move it away.",
    errno.EISDIR: "A directory has that name: move it away.",
    errno.ELOOP: "A link is in its place: remove the link.",
}


def write(path: Path, data: Any) -> None:
    """Write `data` as JSON. Raises ApplyError (nothing has changed on the GPUs yet) where the file system refuses."""
    write_text(path, json.dumps(data, indent=1))


def write_text(path: Path, text: str, mode: int | None = None) -> None:
    """Write a text; `mode` sets the file's, whatever the umask is. Raises as `write`."""
    write_bytes(path, text.encode(), mode)


def write_bytes(
    path: Path, content: bytes, mode: int | None = None, accept: Callable[[Path], None] | None = None
) -> None:
    """As `write_text`. `accept` is given the new file before it takes its place, and raises if it is wrong: it goes then."""
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with replacing(path, mode) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            if accept is not None:
                accept(unfinished(path))
        _sync(path.parent)
    except OSError as error:
        # Paths of the system are the same on every host.
        cure = cure_of(error, movable=not _SYSTEM.intersection(path.parts))
        raise ApplyError(str(path), "it cannot be written: %s" % error, cure, outcome="old") from error


def cure_of(error: OSError, movable: bool = False) -> str:
    """Return how to fix what keeps a file from being read or written. `movable`: it is in the state directory of a role."""
    cure = _CURES.get(error.errno or 0, "Look at that path on the host, and run again.")
    if movable and error.errno == errno.EROFS:
        cure = cure[:-1] + ", or set gpu_layout_state_directory to another directory."
    return cure


@contextlib.contextmanager
def replacing(path: Path, mode: int | None = None, most: int = 0o666) -> Iterator[IO[bytes]]:
    """Open a new file, which takes the place of `path` at the end. Readers find the old one or the new one. Raises OSError.

    Without a `mode` it has what the umask leaves of `most`.
    """
    new = unfinished(path)
    new.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    # Until its mode is set, only this user reads it.
    descriptor = os.open(new, flags, most if mode is None else 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)
            yield file
        new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def unfinished(path: Path) -> Path:
    """Return where a file is until it is whole."""
    return path.with_name(path.name + ".new")


def link(path: Path, to: str) -> None:
    """Make a link in place of a file or link, as `replacing`."""
    new = unfinished(path)
    new.unlink(missing_ok=True)
    new.symlink_to(to)
    new.replace(path)


def make_folder(folder: Path) -> None:
    """Make a folder that users and container engines can read, whatever the caller's umask is."""
    if not folder.exists():
        make_folder(folder.parent)
        with contextlib.suppress(OSError):
            # What writes into it next says what is wrong.
            folder.mkdir()
            folder.chmod(0o755)


def differing(root: Path, files: Mapping[str, str]) -> list[str]:
    """Return the paths, below the root, of the files that have other texts than these, or are missing."""
    return [path for path, text in files.items() if not _has(root / path, text)]


def _has(path: Path, text: str) -> bool:
    try:
        return path.read_text(errors="replace") == text
    except OSError:
        return False


def write_differing(root: Path, files: Mapping[str, str]) -> list[str]:
    """Write the files that have other texts than these, for all to read; return their paths below the root. Raises as `write`."""
    found = differing(root, files)
    for path in found:
        make_folder((root / path).parent)
        write_text(root / path, files[path], mode=0o644)
    return found


def remove(path: Path) -> None:
    """Remove the file if it is there."""
    if path.exists():
        path.unlink()
        _sync(path.parent)


def read(path: Path, schema: int) -> Any:
    """Return the file's mapping, None if there is no file. Raises ApplyError for anything else than a mapping of this schema."""
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        data = None
    found = data.get("schema") if isinstance(data, dict) else None
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
