# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the memory use of the stub's cards from outside the tested processes.

Tests use these numbers to see whether the limiter allowed too much memory. Only the stub driver writes them, and the
limiter cannot access them. stub/card.h defines the file format.
"""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

MAX_GPUS, MAX_PROCESSES, MAX_GROUPS, KINDS = 16, 2048, 16, 7
MAGIC = 0x3130647261436B53
KIND_NAMES = ("linear", "managed", "array", "pool", "physical", "graph", "context")


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_int32),
        ("group", ctypes.c_int32),
        ("contexts", ctypes.c_uint64),
        ("used", ctypes.c_uint64 * MAX_GPUS),
    )


class _Gpu(ctypes.Structure):
    _fields_ = (
        ("uuid", ctypes.c_char * 48),
        ("capacity", ctypes.c_uint64),
        ("used", ctypes.c_uint64),
        ("peak", ctypes.c_uint64),
        ("refused", ctypes.c_uint64),
        ("kinds", ctypes.c_uint64 * KINDS),
        ("group_used", ctypes.c_uint64 * MAX_GROUPS),
        ("group_peak", ctypes.c_uint64 * MAX_GROUPS),
    )


class _Card(ctypes.Structure):
    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("gpus", ctypes.c_uint32),
        ("entry_size", ctypes.c_uint32),
        ("lock", ctypes.c_char * 64),
        ("groups", (ctypes.c_char * 64) * MAX_GROUPS),
        ("gpu", _Gpu * MAX_GPUS),
        ("process", _Process * MAX_PROCESSES),
    )


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


class Card:
    """The cards of one test, stored in a file that the first process creates."""

    def __init__(self, path: Path, gpus: int = 1, memory: int = 16 << 30) -> None:
        self.path, self.gpus, self.memory = path, gpus, memory

    def environment(self) -> dict[str, str]:
        """Return the environment variables that make the stub use this file."""
        return {"STUB_CARD": str(self.path), "STUB_GPUS": str(self.gpus), "STUB_MEMORY": str(self.memory)}

    def uuid(self, gpu: int = 0) -> str:
        """Return the UUID that the stub gives a GPU."""
        return f"GPU-{0x5C890000 + gpu:08x}-0000-4000-8000-{gpu + 1:012x}"

    def _read(self) -> _Card | None:
        if not self.path.exists() or self.path.stat().st_size < ctypes.sizeof(_Card):
            return None
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
            card = _Card.from_buffer_copy(memory)
        assert card.magic == MAGIC and card.entry_size == ctypes.sizeof(_Process), "card.py and stub/card.h differ"
        return card

    def _group(self, card: _Card, group: str) -> int | None:
        names = [name.value.decode() for name in card.groups]
        return names.index(group) if group in names else None

    def used(self, gpu: int = 0, group: str | None = None) -> int:
        """Return the bytes that running processes of one group hold, or of all groups."""
        card = self._read()
        if card is None:
            return 0
        wanted = None if group is None else self._group(card, group)
        size, entries = ctypes.sizeof(_Process), memoryview(card.process).cast("B")
        used = 0
        for at in range(0, len(entries), size):
            if int.from_bytes(entries[at : at + 4], "little"):
                process = _Process.from_buffer_copy(entries, at)
                if (group is None or process.group == wanted) and process.used[gpu] and _lives(process.pid):
                    used += process.used[gpu]
        return used

    def peak(self, gpu: int = 0, group: str | None = None) -> int:
        """Return the highest number of bytes ever held at one time."""
        card = self._read()
        if card is None:
            return 0
        if group is None:
            return card.gpu[gpu].peak
        index = self._group(card, group)
        return 0 if index is None else card.gpu[gpu].group_peak[index]

    def refused(self, gpu: int = 0) -> int:
        """Return how often the card was full, or a test let an allocation fail."""
        card = self._read()
        return 0 if card is None else card.gpu[gpu].refused

    def kinds(self, gpu: int = 0) -> dict[str, int]:
        """Return the bytes by kind of allocation.

        If a process was killed, its bytes stay in the result.
        """
        card = self._read()
        return {} if card is None else dict(zip(KIND_NAMES, card.gpu[gpu].kinds))

    def processes(self) -> list[int]:
        """Return the pids that use the card."""
        card = self._read()
        return [] if card is None else [p.pid for p in card.process if p.pid and _lives(p.pid)]
