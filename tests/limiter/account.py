# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Calculate the memory cost of a program's CUDA calls.

This model follows CUDA's documentation and the project's design, and shares no code with the library. A `Book` is the
account of one process. For each GPU, cuMemGetInfo must report the sum of the tenant's books, and the quota must limit
this sum.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

MIB = 1 << 20
STEP = 2 * MIB  # The driver allocates physical memory and pool reservations in multiples of this size.
PITCH = 512
ELEMENT_BYTES = {0x01: 1, 0x02: 2, 0x03: 4, 0x08: 1, 0x09: 2, 0x0A: 4, 0x10: 2, 0x20: 4}
LAYERED = 1


def rounded(size: int, step: int = STEP) -> int:
    """Round a size up to a whole number of steps."""
    return -(-size // step) * step


def pitched(width: int, height: int) -> int:
    """Return an allocation's size if each row starts at a multiple of PITCH."""
    return rounded(width, PITCH) * height


def array_bytes(width: int, height: int, depth: int, form: int, channels: int, flags: int = 0, levels: int = 1) -> int:
    """Return the size in bytes of an array with all its mipmap levels.

    Each level has half the size of the previous level in each direction. The number of layers is the same in all
    levels.
    """
    longest = max(width, height, 0 if flags & LAYERED else depth)
    total = 0
    for level in range(min(levels, longest.bit_length())):
        deep = depth if flags & LAYERED else depth >> level
        total += max(width >> level, 1) * max(height >> level, 1) * max(deep, 1)
    return total * channels * ELEMENT_BYTES[form]


def on_device(device: int) -> bytes:
    """Return a CUmemAllocationProp for pinned memory on a device."""
    return struct.pack("<iiii8x8x", 1, 0, 1, device)


def pool_on_device(device: int, most: int = 0) -> bytes:
    """Return a CUmemPoolProps for a pool on a device."""
    return struct.pack("<iiii8xQ56x", 1, 0, 1, device, most)


def array_2d(width: int, height: int, form: int, channels: int) -> bytes:
    """Return a CUDA_ARRAY_DESCRIPTOR."""
    return struct.pack("<QQiI", width, height, form, channels)


def array_3d(width: int, height: int, depth: int, form: int, channels: int, flags: int = 0) -> bytes:
    """Return a CUDA_ARRAY3D_DESCRIPTOR."""
    return struct.pack("<QQQiII4x", width, height, depth, form, channels, flags)


def graph_memory_node(device: int, size: int) -> bytes:
    """Return a CUDA_MEM_ALLOC_NODE_PARAMS."""
    return pool_on_device(device) + struct.pack("<QQQQ", 0, 0, size, 0)


@dataclass
class Physical:
    """Physical memory that has a handle.

    The driver frees the memory when it has neither references nor mappings.
    """

    gpu: int
    size: int
    references: int = 1
    mappings: int = 0


@dataclass
class Held:
    """One allocation, which a pointer or an array handle identifies."""

    gpu: int
    size: int
    context: int
    free: str  # The name of the function that frees this allocation.


@dataclass
class Book:
    """The account of one process: its allocations outside pools and graphs.

    The model cannot include pools and graphs, because only the driver knows how much they reserve.
    """

    held: dict[int, Held] = field(default_factory=dict)
    physical: dict[int, Physical] = field(default_factory=dict)
    mapped: dict[int, int] = field(default_factory=dict)  # address -> handle
    pooled: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # address -> gpu, pool, size

    def used(self, gpu: int) -> int:
        """Return the number of bytes used on a GPU."""
        linear = sum(held.size for held in self.held.values() if held.gpu == gpu)
        return linear + sum(memory.size for memory in self.physical.values() if memory.gpu == gpu)

    def context_gone(self, context: int) -> None:
        """Remove a context with its pointers and arrays.

        Handles stay, because they do not belong to a context.
        """
        self.held = {key: held for key, held in self.held.items() if held.context != context}

    def drop_unused(self, handle: int) -> None:
        memory = self.physical[handle]
        if memory.references == 0 and memory.mappings == 0:
            del self.physical[handle]
