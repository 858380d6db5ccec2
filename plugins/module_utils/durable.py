# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write small files atomically.

After a crash, a file has either its old or its new content. Functions return when the new content is on disk.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import IO, Any, Callable, Iterator, Mapping

from .errors import ApplyError

#: Suffix of the backup of a file that is replaced on trial. The backup is empty if there was no file.
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
    """Write `data` as JSON.

    Raises ApplyError if the file system refuses. No GPU has been changed at this point.
    """
    write_text(path, json.dumps(data, indent=1))


def write_text(path: Path, text: str, mode: int | None = None) -> None:
    """Write a text. The file gets exactly `mode`, regardless of the umask.

    Raises the same errors as `write`.
    """
    write_bytes(path, text.encode(), mode)


def write_bytes(
    path: Path, content: bytes, mode: int | None = None, accept: Callable[[Path], None] | None = None
) -> None:
    """Write bytes in the same way as `write_text`.

    `accept` checks the new file before it replaces the old one, and raises an exception to refuse it.
    """
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
        # A state directory can be moved. System directories cannot.
        cure = cure_of(error, movable=not _SYSTEM.intersection(path.parts))
        raise ApplyError(str(path), "it cannot be written: %s" % error, cure, outcome="old") from error


def cure_of(error: OSError, movable: bool = False) -> str:
    """Return how to fix an error of the file system.

    `movable` is true if the file is in the state directory of a role.
    """
    cure = _CURES.get(error.errno or 0, "Check that path on the host, and run again.")
    if movable and error.errno == errno.EROFS:
        cure = cure[:-1] + ", or set gpu_layout_state_directory to another directory."
    return cure


@contextlib.contextmanager
def replacing(path: Path, mode: int | None = None, most: int = 0o666) -> Iterator[IO[bytes]]:
    """Open a new file that atomically replaces `path` at the end of the block.

    If `mode` is None, the file gets the mode `most` minus the umask. Raises OSError.
    """
    new = unfinished(path)
    new.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    # Only this user can read the file until its mode is set.
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
    """Return the path of the temporary file while `path` is being written."""
    return path.with_name(path.name + ".new")


def link(path: Path, to: str) -> None:
    """Atomically replace a file or link with a symbolic link to `to`."""
    new = unfinished(path)
    new.unlink(missing_ok=True)
    new.symlink_to(to)
    new.replace(path)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents with mode 0755, regardless of the umask."""
    if not folder.exists():
        make_folder(folder.parent)
        with contextlib.suppress(OSError):
            # If this fails, the next write into the folder reports the error.
            folder.mkdir()
            folder.chmod(0o755)


def differing(root: Path, files: Mapping[str, str]) -> list[str]:
    """Return the missing and differing files as paths below the root."""
    return [path for path, text in files.items() if not _has(root / path, text)]


def _has(path: Path, text: str) -> bool:
    try:
        return path.read_text(errors="replace") == text
    except OSError:
        return False


def write_differing(root: Path, files: Mapping[str, str]) -> list[str]:
    """Write missing and differing files with mode 0644.

    Returns their paths below the root. Raises the same errors as `write`.
    """
    paths = differing(root, files)
    for path in paths:
        make_folder((root / path).parent)
        write_text(root / path, files[path], mode=0o644)
    return paths


def remove(path: Path) -> None:
    """Remove the file if it exists."""
    if path.exists():
        path.unlink()
        _sync(path.parent)


def read(path: Path, schema: int) -> Any:
    """Return the mapping in the file, or None if there is no file.

    Raises ApplyError if the file is invalid or has another schema version.
    """
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        data = None
    schema_read = data.get("schema") if isinstance(data, dict) else None
    if schema_read != schema:
        raise damaged(
            path,
            "is damaged" if schema_read is None else "has schema %s, and this release reads %d" % (schema_read, schema),
        )
    return data


def damaged(path: Path, problem: str = "is damaged") -> ApplyError:
    """Return the error for a file that this release cannot read."""
    cure = "Use the release that wrote it. Or check the GPUs with nvidia-smi, remove the file and run again."
    return ApplyError(str(path), "the file %s" % problem, cure)


def _sync(folder: Path) -> None:
    descriptor = os.open(str(folder), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
