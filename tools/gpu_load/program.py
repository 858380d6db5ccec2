# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Use one GPU through the CUDA driver API, without a CUDA toolkit.

Prints a JSON object when ready and one at the end.

    program.py DEVICE identify                 print its UUID
    program.py DEVICE busy                     launch kernels until standard input ends
    program.py DEVICE memory KIND MOST_BYTES   allocate until the driver refuses, or up to about MOST_BYTES, and free it when
                                               standard input ends
    program.py DEVICE module                   create a context and load a module, until standard input ends
    program.py DEVICE launches COUNT           measure the cost of launching an empty kernel
    program.py DEVICE kernels COUNT [SECONDS]  measure the time of COUNT kernels of 1 ms, at most SECONDS

DEVICE is the UUID of a GPU, or `#N`: the N-th CUDA device.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

#: Result codes of the CUDA driver API (cuda.h).
SUCCESS, OUT_OF_MEMORY = 0, 2
ATTRIBUTE_MULTIPROCESSORS, ATTRIBUTE_MAJOR, ATTRIBUTE_MINOR = 16, 75, 76
EVENT_DEFAULT, ATTACH_GLOBAL, FORMAT_UINT8 = 0, 1, 1
ALLOCATION_PINNED, LOCATION_DEVICE, GRANULARITY_MINIMUM = 1, 1, 0
#: Sizes of allocations. If the driver refuses one size, the program tries the next smaller size.
PIECES_BYTES = (64 << 20, 1 << 20, 64 << 10, 4 << 10, 512, 1)
SETTLE_SECONDS = 10.0
#: Time after which the limiter has read the memory of contexts and modules from NVML. The limiter reads NVML once a
#: second.
CHARGE_SECONDS = 4.0
#: Number of launches between two synchronizations.
BATCH = 32
#: A number of launches that fits into any driver's queue.
ROUND = 200
#: PTX ISA 6.3 is the first version with sm_75, and old drivers support it.
PTX = """.version 6.3
.target sm_%d
.address_size 64
.visible .entry nothing_0() { ret; }
.visible .entry busy_1000000()
{
    .reg .u64 %%now, %%end;
    .reg .pred %%more;
    mov.u64 %%end, %%globaltimer;
    add.u64 %%end, %%end, 1000000;
again:
    mov.u64 %%now, %%globaltimer;
    setp.lt.u64 %%more, %%now, %%end;
    @%%more bra again;
    ret;
}
"""


class ArrayDescriptor(ctypes.Structure):
    """CUDA_ARRAY_DESCRIPTOR."""

    _fields_ = (("width", c_size_t), ("height", c_size_t), ("format", c_int), ("channels", c_uint))


class AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location_type", c_int),
        ("location_id", c_int),
        ("win32", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class Refused(Exception):
    """A call of the driver failed."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__("%s answered %d" % (name, code))
        self.code = code


def launch_arguments(function: c_void_p, blocks: int = 1) -> tuple:
    return (function, *(c_uint(size) for size in (blocks, 1, 1, 32, 1, 1, 0)), None, None, None)


class Gpu:
    """A CUDA device and its primary context. The context is current in this thread."""

    def __init__(self, device: str) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", c_uint(0))
        self.device = self._find(device)
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), self.device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver. Raises Refused."""
        code = getattr(self.library, name)(*arguments)
        if code != SUCCESS:
            raise Refused(name, code)

    def attribute(self, number: int) -> int:
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), c_int(number), self.device)
        return value.value

    def function(self, name: str) -> c_void_p:
        """Return a kernel of PTX."""
        capability = 10 * self.attribute(ATTRIBUTE_MAJOR) + self.attribute(ATTRIBUTE_MINOR)
        module, found = c_void_p(), c_void_p()
        text = (PTX % (75 if capability >= 75 else 70)).encode()
        self.call("cuModuleLoadData", byref(module), c_char_p(text))
        self.call("cuModuleGetFunction", byref(found), module, c_char_p(name.encode()))
        return found

    def launch(self, function: c_void_p, blocks: int = 1) -> None:
        self.call("cuLaunchKernel", *launch_arguments(function, blocks))

    def memory(self) -> tuple[int, int]:
        """Return the free and total bytes that the driver reports to the program."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def uuid(self) -> str:
        return _uuid(self.library, self.device)

    def _find(self, wanted: str) -> c_int:
        count = c_int()
        self.call("cuDeviceGetCount", byref(count))
        for index in range(count.value):
            device = c_int()
            self.call("cuDeviceGet", byref(device), c_int(index))
            if wanted in (_uuid(self.library, device), "#%d" % index):
                return device
        raise SystemExit("CUDA has no device %s" % wanted)


def _uuid(library: ctypes.CDLL, device: c_int) -> str:
    raw = (ctypes.c_ubyte * 16)()
    library.cuDeviceGetUuid(byref(raw), device)
    text = bytes(raw).hex()
    return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


# --- kinds of memory: each allocates some bytes and returns a function to free them -------------------------------------


def _linear(gpu: Gpu, size: int):
    pointer = c_uint64()
    gpu.call("cuMemAlloc_v2", byref(pointer), c_size_t(size))
    return lambda: gpu.call("cuMemFree_v2", pointer)


def _pitched(gpu: Gpu, size: int):
    """Allocate rows of 512 bytes. These need no padding."""
    pointer, pitch = c_uint64(), c_size_t()
    gpu.call(
        "cuMemAllocPitch_v2", byref(pointer), byref(pitch), c_size_t(512), c_size_t(max(size // 512, 1)), c_uint(4)
    )
    return lambda: gpu.call("cuMemFree_v2", pointer)


def _managed(gpu: Gpu, size: int):
    pointer = c_uint64()
    gpu.call("cuMemAllocManaged", byref(pointer), c_size_t(size), c_uint(ATTACH_GLOBAL))
    return lambda: gpu.call("cuMemFree_v2", pointer)


def _pooled(gpu: Gpu, size: int):
    pointer = c_uint64()
    gpu.call("cuMemAllocAsync", byref(pointer), c_size_t(size), None)
    gpu.call("cuStreamSynchronize", None)

    def free() -> None:
        gpu.call("cuMemFreeAsync", pointer, None)
        gpu.call("cuStreamSynchronize", None)

    return free


def _physical(gpu: Gpu, size: int):
    properties = AllocationProperties(
        type=ALLOCATION_PINNED, location_type=LOCATION_DEVICE, location_id=gpu.device.value
    )
    unit, handle = c_size_t(), c_uint64()
    gpu.call("cuMemGetAllocationGranularity", byref(unit), byref(properties), c_int(GRANULARITY_MINIMUM))
    if size % unit.value:
        raise Refused("cuMemCreate", OUT_OF_MEMORY)
    gpu.call("cuMemCreate", byref(handle), c_size_t(size), byref(properties), c_uint64(0))
    return lambda: gpu.call("cuMemRelease", handle)


def _array(gpu: Gpu, size: int):
    """Allocate an array with rows of 64 KiB."""
    descriptor = ArrayDescriptor(65536, max(size // 65536, 1), FORMAT_UINT8, 1)
    handle = c_void_p()
    gpu.call("cuArrayCreate_v2", byref(handle), byref(descriptor))
    return lambda: gpu.call("cuArrayDestroy", handle)


#: Kinds of memory with their minimum size in bytes. The driver decides how much memory an array takes on the GPU.
KINDS = {
    "linear": (_linear, 1),
    "rows": (_pitched, 512),
    "managed": (_managed, 1),
    "pool": (_pooled, 1),
    "physical": (_physical, 1),
    "array": (_array, 64 << 10),
}


# --- commands ------------------------------------------------------------------------------------------------------------


def busy(gpu: Gpu) -> None:
    """Keep all multiprocessors busy until standard input ends."""
    import threading

    kernel, blocks = gpu.function("busy_1000000"), 8 * gpu.attribute(ATTRIBUTE_MULTIPROCESSORS)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    say(uuid=gpu.uuid())
    while not ended.is_set():
        for _each in range(BATCH):
            gpu.launch(kernel, blocks)
        gpu.call("cuCtxSynchronize")


def memory(gpu: Gpu, kind: str, most_bytes: int) -> None:
    allocate, least = KINDS[kind]
    free_before, total = gpu.memory()
    held, frees, code = 0, [], SUCCESS
    for size in PIECES_BYTES:
        while size >= least and held < most_bytes:
            try:
                frees.append(allocate(gpu, size))
            except Refused as error:
                code = error.code
                if code != OUT_OF_MEMORY:
                    raise
                break
            held += size
    say(kind=kind, total=total, free=free_before, held=held, code=code, free_full=gpu.memory()[0])
    sys.stdin.read()
    for free in frees:
        free()
    # A pool releases memory at a synchronization. The limiter accounts for this within a second (docs/vgpu-limits.md).
    limit = time.monotonic() + SETTLE_SECONDS
    while gpu.memory()[0] < free_before and time.monotonic() < limit:
        gpu.call("cuCtxSynchronize")
        time.sleep(0.1)
    say(free_after=gpu.memory()[0])


def module(gpu: Gpu) -> None:
    gpu.launch(gpu.function("nothing_0"))
    gpu.call("cuCtxSynchronize")
    time.sleep(CHARGE_SECONDS)
    free, total = gpu.memory()
    say(charged=total - free)
    sys.stdin.read()


def launches(gpu: Gpu, count: int) -> None:
    """Measure the minimum launch time over many short rounds, and print it.

    In a long round, launches would wait for the GPU when the driver's queue is full.
    """
    launch, arguments = gpu.library.cuLaunchKernel, launch_arguments(gpu.function("nothing_0"))
    best = float("inf")
    for _round in range(max(count // ROUND, 1)):
        began = time.perf_counter()
        for _each in range(ROUND):
            launch(*arguments)
        best = min(best, time.perf_counter() - began)
        gpu.call("cuCtxSynchronize")
    gpu.launch(arguments[0])
    say(launch_seconds=best / ROUND)


def kernels(gpu: Gpu, count: int, seconds: float = float("inf")) -> None:
    kernel = gpu.function("busy_1000000")
    gpu.launch(kernel)
    gpu.call("cuCtxSynchronize")
    say()
    sys.stdin.readline()
    began, done = time.monotonic(), 0
    while done < count and time.monotonic() - began < seconds:
        for _each in range(BATCH):
            gpu.launch(kernel)
        gpu.call("cuCtxSynchronize")
        done += BATCH
    say(kernels=done, took=time.monotonic() - began)


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def main(device: str, what: str, *arguments: str) -> None:
    try:
        gpu = Gpu(device)
        if what == "identify":
            say(uuid=gpu.uuid())
        elif what == "busy":
            busy(gpu)
        elif what == "memory":
            memory(gpu, arguments[0], int(arguments[1]))
        elif what == "module":
            module(gpu)
        elif what == "launches":
            launches(gpu, int(arguments[0]))
        elif what == "kernels":
            kernels(gpu, int(arguments[0]), *map(float, arguments[1:]))
        else:
            raise SystemExit(__doc__)
    except (Refused, OSError, AttributeError) as error:
        # libcuda is missing, or lacks a function.
        say(error=str(error))
        sys.exit(3)


if __name__ == "__main__":
    main(*sys.argv[1:])
