# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the agent of this host shows every user of tenants' pages (`agent`): a file that root alone writes.

A socket for all users would have answers that are not read, and a user with many user ids could keep all others waiting. Readers
of a file wait for none.

The file has a header, then for each seat of each GPU the beginning of its page. vgpu-top reads it too (top_read.c of the role
vgpu_limiter).
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
#: Magic; nanoseconds of CLOCK_MONOTONIC at which it was written; how many seats.
_HEADER = struct.Struct("=8sqQ")
#: UUID of the GPU; number of the seat; whether no tenant can write another's page there; the beginning of the page.
_SEAT = struct.Struct("=48sII256s")
#: As much of a page as is shown. struct seat of turnstile.h is shorter.
SHOWN_BYTES = 256
#: A file that is older was written by an agent that runs no more: it writes once a second.
STALE_SECONDS = 5.0
_MOST_BYTES = 1 << 24


@frozen
class ShownSeat:
    """A tenant's place on a GPU."""

    gpu_uuid: str
    number: int
    #: Whether no tenant can write the page of another one there.
    immutable: bool
    page: bytes


class ShownFile:
    """The file, as the agent writes it."""

    def __init__(self, root: Path) -> None:
        self._path = root / vgpu_files.SHOWN
        #: How long the file is that was written last.
        self._size = 0

    def write(self, seats: Sequence[ShownSeat]) -> None:
        """Write the seats as they are now; no file where there are none. Raises OSError."""
        if not seats:
            self._size = 0
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
            return
        rows = (_SEAT.pack(seat.gpu_uuid.encode(), seat.number, seat.immutable, seat.page) for seat in seats)
        content = _HEADER.pack(_MAGIC, time.monotonic_ns(), len(seats)) + b"".join(rows)
        if len(content) == self._size and self._path.exists():
            # In place: tenants may have filled the tmpfs by now.
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
    """Return what the agent shows; [] where none runs."""
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
    """Return the UUIDs of the GPUs whose tenants have pages, and whether no tenant can write another's. {} without an agent."""
    return {seat.gpu_uuid: seat.immutable for seat in shown(root)}


@contextlib.contextmanager
def socket_folder(path: Path) -> Iterator[str]:
    """A way to a folder that fits into the address of a socket, however long its path is. Raises OSError."""
    descriptor = os.open(str(path), os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield "/proc/self/fd/%d/" % descriptor
    finally:
        os.close(descriptor)
