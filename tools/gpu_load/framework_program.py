# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a Python framework on one GPU, and print one JSON object per line.

framework_program.py DEVICE FRAMEWORK work SECONDS WORK...   count the steps of each work in SECONDS
framework_program.py DEVICE FRAMEWORK memory MOST_BYTES      allocate until the framework refuses, or up to MOST_BYTES

FRAMEWORK is torch, cupy, numba or jax. The first line of the output contains its version. After that, each line of
standard input starts a piece of work. Each piece of work prints two lines: one when its measured time begins, and one
when it ends. DEVICE is not used, because CUDA_VISIBLE_DEVICES selects the GPU.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Callable

#: Number of steps between two synchronizations.
BATCH = 8
#: Warm-up time. After it, a throttled tenant has used its saved turns, and clocks and caches are stable.
WARM_SECONDS = 0.75
PIECES_BYTES = (256 << 20, 16 << 20, 2 << 20, 512)


class Torch:
    """PyTorch."""

    def __init__(self) -> None:
        import torch

        self.torch, self.version = torch, torch.__version__
        torch.manual_seed(1)
        torch.cuda.init()

    def synchronize(self) -> None:
        self.torch.cuda.synchronize()

    def matmul(self) -> Callable[[], object]:
        """Return a step: a product of two matrices of 8192 by 8192 in bfloat16."""
        torch = self.torch
        left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _each in range(2))
        result = torch.empty_like(left)
        return lambda: torch.mm(left, right, out=result)

    def transformer(self) -> Callable[[], object]:
        """Return a step: training an encoder of four layers with 8192 tokens."""
        torch = self.torch
        layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True)
        model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to("cuda", torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        batch = torch.randn(16, 512, 1024, device="cuda", dtype=torch.bfloat16)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            model(batch).float().square().mean().backward()
            optimizer.step()

        return step

    def graph(self) -> Callable[[], object]:
        """Return a step: a CUDA graph of twenty products of matrices of 4096 by 4096."""
        torch = self.torch
        left, right = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _each in range(2))
        result = torch.empty_like(left)
        torch.mm(left, right, out=result)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            for _each in range(20):
                torch.mm(left, right, out=result)
        return captured.replay

    def short(self) -> Callable[[], object]:
        """Return a step: a hundred kernels of some microseconds each."""
        values = self.torch.zeros(1 << 16, device="cuda")

        def step() -> None:
            for _each in range(100):
                values.add_(1.0)

        return step

    def allocate(self, size: int) -> object:
        """Allocate bytes. Raises MemoryError."""
        try:
            return self.torch.empty(size, dtype=self.torch.uint8, device="cuda")
        except self.torch.cuda.OutOfMemoryError as error:
            raise MemoryError(str(error)) from error

    def told(self) -> tuple[int, int]:
        return self.torch.cuda.mem_get_info()

    def release(self) -> None:
        self.torch.cuda.empty_cache()


class Cupy:
    """CuPy."""

    def __init__(self) -> None:
        import cupy

        self.cupy, self.version = cupy, cupy.__version__

    def synchronize(self) -> None:
        self.cupy.cuda.Device().synchronize()

    def matmul(self) -> Callable[[], object]:
        """Return a step: a product of two matrices of 4096 by 4096 in float32."""
        left, right = (self.cupy.random.rand(4096, 4096, dtype=self.cupy.float32) for _each in range(2))
        result = self.cupy.empty_like(left)
        return lambda: self.cupy.matmul(left, right, out=result)

    def allocate(self, size: int) -> object:
        """Allocate bytes. Raises MemoryError, the base of CuPy's own error."""
        return self.cupy.empty(size, dtype=self.cupy.uint8)

    def told(self) -> tuple[int, int]:
        return self.cupy.cuda.runtime.memGetInfo()

    def release(self) -> None:
        self.cupy.get_default_memory_pool().free_all_blocks()


class Numba:
    """numba-cuda."""

    def __init__(self) -> None:
        import numba
        from numba import cuda

        self.cuda, self.version = cuda, numba.__version__
        cuda.current_context()

    def synchronize(self) -> None:
        self.cuda.synchronize()

    def saxpy(self) -> Callable[[], object]:
        """Return a step: a kernel of numba over 128 Mi floats."""
        import numpy

        cuda, count = self.cuda, 1 << 27

        @cuda.jit
        def kernel(factor, values):
            place = cuda.grid(1)
            if place < values.size:
                values[place] = factor * values[place] + 1.0

        values = cuda.device_array(count, numpy.float32)
        return lambda: kernel[count // 256, 256](numpy.float32(0.5), values)

    def allocate(self, size: int) -> object:
        """Allocate bytes. Raises MemoryError."""
        import numpy

        try:
            return self.cuda.device_array(size, numpy.uint8)
        except Exception as error:
            # The class of the error depends on the CUDA binding that numba uses.
            raise MemoryError(str(error)) from error

    def told(self) -> tuple[int, int]:
        return tuple(self.cuda.current_context().get_memory_info())

    def release(self) -> None:
        self.cuda.current_context().deallocations.clear()


class Jax:
    """JAX. It allocates three quarters of the visible memory at its start."""

    def __init__(self) -> None:
        import jax

        self.jax, self.version = jax, jax.__version__
        self.last = jax.numpy.zeros(1)
        assert self.last.devices().pop().platform == "gpu", "JAX does not use the GPU"

    def synchronize(self) -> None:
        self.last.block_until_ready()

    def matmul(self) -> Callable[[], object]:
        """Return a step: a product of two matrices of 8192 by 8192 in bfloat16."""
        numpy = self.jax.numpy
        keys = self.jax.random.split(self.jax.random.key(1))
        left, right = (self.jax.random.normal(key, (8192, 8192), numpy.bfloat16) for key in keys)
        product = self.jax.jit(numpy.matmul)

        def step() -> None:
            self.last = product(left, right)

        return step


FRAMEWORKS = {"torch": Torch, "cupy": Cupy, "numba": Numba, "jax": Jax}


def work(framework: object, seconds: float, names: list[str]) -> None:
    """Run each work for some seconds. The warm-up before each is not measured."""
    prepared = []
    for name in names:
        step = getattr(framework, name)()
        step()
        framework.synchronize()
        prepared.append((name, step))
    say(version=framework.version)
    for (name, step), _line in zip(prepared, sys.stdin):
        _steps(framework, step, WARM_SECONDS)
        say(begins=name)
        done, took = _steps(framework, step, seconds)
        say(work=name, steps=done, took=took)


def _steps(framework: object, step: Callable[[], object], seconds: float) -> tuple[int, float]:
    began, done = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        for _each in range(BATCH):
            step()
        framework.synchronize()
        done += BATCH
    return done, time.monotonic() - began


def memory(framework: object, most_bytes: int) -> None:
    """Allocate until the framework refuses, then free everything and allocate again."""
    say(version=framework.version)
    sys.stdin.readline()
    before, total = framework.told()
    held: list[object] = []
    refused = sum(_fill(framework, held, size, most_bytes) for size in PIECES_BYTES)
    count = sum(_bytes(one) for one in held)
    say(total=total, free=before, held=count, refused=refused, free_full=framework.told()[0])
    sys.stdin.readline()
    held.clear()
    framework.release()
    framework.allocate(PIECES_BYTES[0])
    say(continues=True, free_after=framework.told()[0])


def _fill(framework: object, held: list[object], size: int, most_bytes: int) -> int:
    """Return 1 if the framework refused, 0 if it allocated `most_bytes`."""
    while sum(map(_bytes, held)) < most_bytes:
        try:
            held.append(framework.allocate(size))
        except MemoryError:
            return 1
    return 0


def _bytes(array: object) -> int:
    return array.nbytes


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def main(_device: str, name: str, what: str, *arguments: str) -> None:
    try:
        framework = FRAMEWORKS[name]()
    except ImportError as error:
        say(error="Python has no module %s" % (error.name or name))
        sys.exit(3)
    try:
        if what == "work":
            work(framework, float(arguments[0]), list(arguments[1:]))
        else:
            memory(framework, int(arguments[0]))
    except Exception as error:
        # An error of a framework is a valid result.
        say(error="%s: %s" % (type(error).__name__, " ".join(str(error).split())[-300:]))
        sys.exit(3)


if __name__ == "__main__":
    main(*sys.argv[1:])
