# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write and read the public data of the tenants' pages (see agent.py).

The data is in a file that only root can write. A socket would be less reliable: a user with many user ids could block
it for others by not reading the answers.

The file has a header, and then a row for each seat on each GPU, with the public start of the seat's page. vgpu-top also
reads the file (top/read.c in the role vgpu_limiter).
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import time
from pathlib import Path
from typing import Iterator, Sequence

from ...durable import replacing
from ...frozen import frozen
from . import files as vgpu_files

_MAGIC = b"OFVSEAT1"
#: Magic number, time of writing (nanoseconds of CLOCK_MONOTONIC), and number of seats.
_HEADER = struct.Struct("=8sqQ")
#: GPU UUID, seat number, whether other tenants cannot write this GPU's pages, and the public start of the page.
_SEAT = struct.Struct("=48sII256s")
#: Number of public bytes in a page, more than struct seat in turnstile.h has.
SHOWN_BYTES = 256
#: The agent writes once a second. A file older than this means that the agent has ended.
STALE_SECONDS = 5.0
_MOST_BYTES = 1 << 24


@frozen
class ShownSeat:
    """A tenant's seat on a GPU."""

    gpu_uuid: str
    number: int
    #: Whether no tenant can write another tenant's page on this GPU.
    immutable: bool
    page: bytes


class ShownFile:
    """The writer of the public file."""

    def __init__(self, root: Path) -> None:
        self._path = root / vgpu_files.SHOWN
        #: Size of the file in bytes after the last write.
        self._size = 0

    def write(self, seats: Sequence[ShownSeat]) -> None:
        """Write the current seats, or remove the file if there are none.

        Raises OSError.
        """
        if not seats:
            self._size = 0
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
            return
        rows = (_SEAT.pack(seat.gpu_uuid.encode(), seat.number, seat.immutable, seat.page) for seat in seats)
        content = _HEADER.pack(_MAGIC, time.monotonic_ns(), len(seats)) + b"".join(rows)
        if len(content) == self._size and self._path.exists():
            # Overwrite the file in place. There may be no space for a new file, because tenants may have filled the
            # tmpfs.
            _overwrite(self._path, content)
            return
        self._size = 0
        with replacing(self._path, 0o644) as file:
            file.write(content)
        self._size = len(content)


def _overwrite(path: Path, content: bytes) -> None:
    descriptor = os.open(str(path), os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.pwrite(descriptor, content, 0) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)


def shown(root: Path) -> list[ShownSeat]:
    """Return the public data of all seats, or [] if the agent is not running."""
    try:
        with (root / vgpu_files.SHOWN).open("rb") as file:
            content = file.read(_MOST_BYTES)
        magic, written, count = _HEADER.unpack_from(content)
        rows = [_SEAT.unpack_from(content, _HEADER.size + n * _SEAT.size) for n in range(count)]
    except (OSError, struct.error):
        return []
    age = time.monotonic_ns() - written
    if magic != _MAGIC or not 0 <= age <= STALE_SECONDS * 1e9:
        return []
    return [ShownSeat(uuid.rstrip(b"\0").decode(), number, bool(safe), page) for uuid, number, safe, page in rows]


def handed_out(root: Path) -> dict[str, bool]:
    """Return by GPU UUID whether other tenants cannot write the GPU's pages.

    Returns {} if the agent is not running.
    """
    return {seat.gpu_uuid: seat.immutable for seat in shown(root)}


@contextlib.contextmanager
def socket_folder(path: Path) -> Iterator[str]:
    """Yield a path of the folder that is short enough for a socket address.

    Raises OSError.
    """
    descriptor = os.open(str(path), os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield "/proc/self/fd/%d/" % descriptor
    finally:
        os.close(descriptor)
