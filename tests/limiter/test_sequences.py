# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run random sequences of calls in two processes on two GPUs.

After each call, the model (account.py), the record of the card and the limiter's report must agree. A call must fail
with out of memory exactly when the model says so. SEED selects other sequences. CASES and SIZE are the number and the
length of the sequences.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.limiter import account
from tests.limiter.account import MIB, Book, Held, Physical
from tests.limiter.card import Card
from tests.limiter.limiter_lab import OUT, Built, Client, Tenant, data

QUOTAS = (96 * MIB, 40 * MIB)
GROWTH = 32 * MIB  # The stub's pools grow by at least this size, if the card has enough memory.
OUT_OF_MEMORY, INVALID_VALUE = 2, 1
CASES, SIZE, SEED = (int(os.environ.get(name, default)) for name, default in (("CASES", 20), ("SIZE", 30), ("SEED", 1)))

processes = st.integers(0, 1)
gpus = st.integers(0, 1)
steps = st.integers(1, 24)
picks = st.integers(0, 1 << 16)
# Sizes in bytes, or offsets to the free memory: 0 takes all free memory, 1 is one byte too much, and -1 leaves one
# byte.
sizes = st.one_of(st.integers(1, 64 * MIB), st.integers(1, 4096), st.sampled_from([("room", d) for d in (-1, 0, 1)]))


class Sequences(RuleBasedStateMachine):
    """Two processes with one thread for each of the two GPUs (threads 1 and 2).

    Thread 3 is for other contexts.
    """

    built: Built
    preload = True
    quotas = QUOTAS

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="sequence-")
        root = Path(self.folder.name)
        self.card = Card(root / "card", gpus=2, memory=1 << 30 if self.preload else min(self.quotas))
        self.tenant = Tenant(root / "root", self.card, self.built).quota(*self.quotas)
        self.clients: list[Client] = []
        self.books = [Book(), Book()]
        self.contexts: list[list[int]] = [[0, 0], [0, 0]]
        self.pools: list[list[int]] = [[0, 0], [0, 0]]

    @initialize()
    def begin(self) -> None:
        for process in range(2):
            self.clients.append(self.tenant.client(start=False, preload=self.preload))
            self.start(process)

    def start(self, process: int) -> None:
        client = self.clients[process]
        client.ok("cuInit", 0)
        for gpu in range(2):
            self.take_context(process, gpu)
            pool = self.pools[process][gpu] = client.ok("cuDeviceGetDefaultMemPool", OUT, gpu)
            # Pools of the first process keep unused memory. Pools of the second process release it when a thread waits
            # for the GPU.
            client.ok("cuMemPoolSetAttribute", pool, 4, data((b"\0" if process else b"\xff") * 8))

    def take_context(self, process: int, gpu: int) -> None:
        client = self.clients[process]
        self.contexts[process][gpu] = client.ok("cuDevicePrimaryCtxRetain", OUT, gpu)
        client.ok("cuCtxSetCurrent", self.contexts[process][gpu], thread=gpu + 1)

    def teardown(self) -> None:
        for client in self.clients:
            client.__exit__()
        self.folder.cleanup()

    # --- Expected values ---

    def reserved(self, process: int, gpu: int) -> int:
        """Return the memory that pools and graphs reserve, as reported by the driver."""
        client = self.clients[process]
        pool = client.ok("cuMemPoolGetAttribute", self.pools[process][gpu], 5, OUT)
        return pool + client.ok("cuDeviceGetGraphMemAttribute", gpu, 2, OUT)

    def used(self, gpu: int) -> int:
        return sum(self.books[p].used(gpu) + self.reserved(p, gpu) for p in range(2))

    def kept(self, process: int, gpu: int) -> int:
        """Return the unused memory in a process's pool.

        The limiter lets the pool release this memory before it refuses a call of the process.
        """
        client, pool = self.clients[process], self.pools[process][gpu]
        in_use, reserved = (client.ok("cuMemPoolGetAttribute", pool, attribute, OUT) for attribute in (7, 5))
        if not self.preload:
            return 0  # Without the limiter, the pool keeps this memory.
        return reserved - account.rounded(in_use)

    def room(self, process: int, gpu: int) -> int:
        """Return the largest size that a process can allocate."""
        return self.quotas[gpu] - self.used(gpu) + self.kept(process, gpu)

    def size(self, wish: int | tuple[str, int], process: int, gpu: int) -> int:
        return max(1, self.room(process, gpu) + wish[1]) if isinstance(wish, tuple) else wish

    @invariant()
    def books_card_and_report_agree(self) -> None:
        for gpu in range(2) if self.clients else ():
            used = self.used(gpu)
            assert self.tenant.used(gpu) == used
            assert used <= self.quotas[gpu]
            for process, client in enumerate(self.clients):
                told = client.ok("cuMemGetInfo_v2", OUT, OUT, thread=gpu + 1)
                assert told == [self.quotas[gpu] - used, self.quotas[gpu]], f"process {process}, GPU {gpu}"

    # --- Plain memory ---

    def take(
        self, process: int, gpu: int, size: int, free: str, symbol: str, *arguments: object, thread: int = 0
    ) -> None:
        """Allocate `size` bytes, and check that this succeeds exactly if there is room."""
        fits = size <= self.room(process, gpu)
        result, values = self.clients[process].call(symbol, *arguments, thread=thread or gpu + 1)
        assert result == (0 if fits else OUT_OF_MEMORY), f"{symbol} of {size} bytes"
        if fits:
            context = self.contexts[process][gpu] if not thread else -1
            self.books[process].held[values[0]] = Held(gpu, size, context, free)

    @rule(process=processes, gpu=gpus, wish=sizes)
    def allocate(self, process: int, gpu: int, wish: object) -> None:
        size = self.size(wish, process, gpu)
        self.take(process, gpu, size, "cuMemFree_v2", "cuMemAlloc_v2", OUT, size)

    @rule(process=processes, gpu=gpus, wish=sizes)
    def allocate_managed(self, process: int, gpu: int, wish: object) -> None:
        size = self.size(wish, process, gpu)
        self.take(process, gpu, size, "cuMemFree_v2", "cuMemAllocManaged", OUT, size, 1)

    @rule(process=processes, gpu=gpus, width=st.integers(1, 5000), height=st.integers(1, 3000))
    def allocate_pitch(self, process: int, gpu: int, width: int, height: int) -> None:
        size = account.pitched(width, height)
        self.take(process, gpu, size, "cuMemFree_v2", "cuMemAllocPitch_v2", OUT, OUT, width, height, 16)

    @rule(
        process=processes,
        gpu=gpus,
        width=st.integers(1, 700),
        height=st.integers(0, 700),
        depth=st.integers(0, 40),
        form=st.sampled_from(sorted(account.ELEMENT_BYTES)),
        channels=st.sampled_from([1, 2, 4]),
        flags=st.sampled_from([0, account.LAYERED]),
        levels=st.integers(0, 12),
    )
    def allocate_array(
        self,
        process: int,
        gpu: int,
        width: int,
        height: int,
        depth: int,
        form: int,
        channels: int,
        flags: int,
        levels: int,
    ) -> None:
        """Allocate a plane (no depth and no levels), a volume, or an array with levels."""
        if depth == 0 and levels == 0 and flags == 0:
            size = account.array_bytes(width, height, 0, form, channels)
            call = ("cuArrayDestroy", "cuArrayCreate_v2", OUT, data(account.array_2d(width, height, form, channels)))
        else:
            size = account.array_bytes(width, height, depth, form, channels, flags, max(levels, 1))
            wanted = data(account.array_3d(width, height, depth, form, channels, flags))
            call = ("cuArrayDestroy", "cuArray3DCreate_v2", OUT, wanted)
            if levels:
                call = ("cuMipmappedArrayDestroy", "cuMipmappedArrayCreate", OUT, wanted, levels)
        self.take(process, gpu, size, *call)

    @precondition(lambda self: any(book.held for book in self.books))
    @rule(process=processes, pick=picks, thread=st.integers(0, 2))
    def free(self, process: int, pick: int, thread: int) -> None:
        """Free memory from any thread and context.

        If the memory was already freed, the call must fail and change nothing.
        """
        held = self.books[process].held
        if not held:
            return
        key = sorted(held)[pick % len(held)]
        what = held.pop(key)
        self.clients[process].ok(what.free, key, thread=thread)

    @rule(process=processes, what=st.sampled_from(["cuMemFree_v2", "cuMemRelease", "cuMemFreeAsync"]), pick=picks)
    def free_what_is_not_there(self, process: int, what: str, pick: int) -> None:
        nothing = 0x600000000000 + pick * 512
        assert self.clients[process].call(what, nothing, 0, thread=1)[0] == INVALID_VALUE

    @rule(process=processes, gpu=gpus)
    def ask_for_nothing(self, process: int, gpu: int) -> None:
        """Make an invalid call, and check that it returns the driver's own error."""
        client = self.clients[process]
        assert client.call("cuMemAlloc_v2", OUT, 0, thread=gpu + 1)[0] == INVALID_VALUE
        assert client.call("cuMemAlloc_v2", 0, 4096, thread=gpu + 1)[0] == INVALID_VALUE
        if self.room(process, gpu) >= 12345:  # If there is less room, the call may fail with out of memory first.
            assert client.call("cuMemAllocManaged", OUT, 4096, 77, thread=gpu + 1)[0] == INVALID_VALUE
            assert client.call("cuMemCreate", OUT, 12345, data(account.on_device(gpu)), 0)[0] == INVALID_VALUE
        assert client.call("cuMemFree_v2", 0)[0] == 0
        assert client.call("cuMemAlloc_v2", OUT, 1, thread=9)[0] == 201, "a thread without a context"

    # --- Physical memory ---

    @rule(process=processes, gpu=gpus, count=steps, thread=st.integers(0, 2))
    def create(self, process: int, gpu: int, count: int, thread: int) -> None:
        size = count * account.STEP
        fits = size <= self.room(process, gpu)
        result, values = self.clients[process].call(
            "cuMemCreate", OUT, size, data(account.on_device(gpu)), 0, thread=thread
        )
        assert result == (0 if fits else OUT_OF_MEMORY)
        if fits:
            self.books[process].physical[values[0]] = Physical(gpu, size)

    @rule(process=processes, pick=picks)
    def map(self, process: int, pick: int) -> None:
        book, client = self.books[process], self.clients[process]
        handles = sorted(handle for handle, memory in book.physical.items() if memory.references)
        if handles:
            handle = handles[pick % len(handles)]
            size = book.physical[handle].size
            address = client.ok("cuMemAddressReserve", OUT, size, 0, 0, 0)
            client.ok("cuMemMap", address, size, 0, handle, 0)
            book.mapped[address] = handle
            book.physical[handle].mappings += 1

    @rule(process=processes, pick=picks)
    def unmap(self, process: int, pick: int) -> None:
        book, client = self.books[process], self.clients[process]
        if book.mapped:
            address = sorted(book.mapped)[pick % len(book.mapped)]
            handle = book.mapped.pop(address)
            size = book.physical[handle].size
            client.ok("cuMemUnmap", address, size)
            client.ok("cuMemAddressFree", address, size)
            book.physical[handle].mappings -= 1
            book.drop_unused(handle)

    @rule(process=processes, pick=picks)
    def retain(self, process: int, pick: int) -> None:
        book, client = self.books[process], self.clients[process]
        if book.mapped:
            address = sorted(book.mapped)[pick % len(book.mapped)]
            assert client.ok("cuMemRetainAllocationHandle", OUT, address) == book.mapped[address]
            book.physical[book.mapped[address]].references += 1

    @rule(process=processes, pick=picks)
    def release(self, process: int, pick: int) -> None:
        book = self.books[process]
        handles = sorted(handle for handle, memory in book.physical.items() if memory.references)
        if handles:
            handle = handles[pick % len(handles)]
            self.clients[process].ok("cuMemRelease", handle)
            book.physical[handle].references -= 1
            book.drop_unused(handle)

    # --- Pools ---

    @rule(process=processes, gpu=gpus, size=st.integers(1, 48 * MIB), named=st.booleans())
    def allocate_from_pool(self, process: int, gpu: int, size: int, named: bool) -> None:
        """Allocate from a pool, whose whole reservation counts.

        The call must succeed if the pool's growth step fits too. It must fail if not even the allocation fits. Between
        these limits, both results are right.
        """
        client, book, pool = self.clients[process], self.books[process], self.pools[process][gpu]
        in_use, reserved = (client.ok("cuMemPoolGetAttribute", pool, attribute, OUT) for attribute in (7, 5))
        growth = max(0, account.rounded(in_use + size - reserved))
        free = self.quotas[gpu] - self.used(gpu)
        more = (pool,) if named else ()
        symbol = "cuMemAllocFromPoolAsync" if named else "cuMemAllocAsync"
        at_best = self.room(process, gpu)
        result, (address,) = client.call(symbol, OUT, size, *more, 0, thread=gpu + 1)
        if growth == 0 or max(growth, GROWTH) <= free:
            assert result == 0
        elif account.rounded(in_use + size) - account.rounded(in_use) > at_best:
            assert result == OUT_OF_MEMORY
        assert result in (0, OUT_OF_MEMORY)
        if result == 0:
            book.pooled[address] = (gpu, pool, size)

    @rule(process=processes, pick=picks, asynchronous=st.booleans())
    def free_to_pool(self, process: int, pick: int, asynchronous: bool) -> None:
        book = self.books[process]
        if book.pooled:
            address = sorted(book.pooled)[pick % len(book.pooled)]
            gpu, _, _ = book.pooled.pop(address)
            symbol = "cuMemFreeAsync" if asynchronous else "cuMemFree_v2"
            self.clients[process].ok(symbol, address, *([0] if asynchronous else []), thread=gpu + 1)

    @rule(process=processes, gpu=gpus, keep=st.integers(0, 64 * MIB))
    def trim(self, process: int, gpu: int, keep: int) -> None:
        self.clients[process].ok("cuMemPoolTrimTo", self.pools[process][gpu], keep)

    # --- Graphs ---

    @rule(process=processes, gpu=gpus, size=st.integers(1, 30 * MIB))
    def launch_a_graph_with_memory(self, process: int, gpu: int, size: int) -> None:
        client = self.clients[process]
        room = self.quotas[gpu] - self.used(gpu)
        had = client.ok("cuDeviceGetGraphMemAttribute", gpu, 2, OUT)
        growth = max(0, account.rounded(size) - had)
        graph = client.ok("cuGraphCreate", OUT, 0)
        client.ok("cuGraphAddMemAllocNode", OUT, graph, 0, 0, data(account.graph_memory_node(gpu, size)))
        launchable = client.ok("cuGraphInstantiateWithFlags", OUT, graph, 0)
        result, _ = client.call("cuGraphLaunch", launchable, 0, thread=gpu + 1)
        assert result == 0 if growth <= room else result in (0, OUT_OF_MEMORY)
        client.ok("cuCtxSynchronize", thread=gpu + 1)
        client.ok("cuGraphExecDestroy", launchable)
        client.ok("cuGraphDestroy", graph)

    @rule(process=processes, gpu=gpus)
    def trim_graphs(self, process: int, gpu: int) -> None:
        self.clients[process].ok("cuDeviceGraphMemTrim", gpu)

    # --- Contexts and processes ---

    @rule(process=processes, gpu=gpus, wish=sizes)
    def a_context_takes_its_memory_along(self, process: int, gpu: int, wish: object) -> None:
        client = self.clients[process]
        context = client.ok("cuCtxCreate_v2", OUT, 0, gpu, thread=3)
        size = self.size(wish, process, gpu)
        self.take(process, gpu, size, "cuMemFree_v2", "cuMemAlloc_v2", OUT, size, thread=3)
        client.ok("cuCtxDestroy_v2", context, thread=3)
        self.books[process].context_gone(-1)

    @rule(process=processes, gpu=gpus, reset=st.booleans())
    def the_primary_context_ends(self, process: int, gpu: int, reset: bool) -> None:
        client, book = self.clients[process], self.books[process]
        client.ok("cuDevicePrimaryCtxReset_v2" if reset else "cuDevicePrimaryCtxRelease_v2", gpu)
        book.context_gone(self.contexts[process][gpu])
        book.pooled = {key: value for key, value in book.pooled.items() if value[0] != gpu}
        self.take_context(process, gpu)

    @rule(process=processes, kill=st.booleans())
    def a_process_ends(self, process: int, kill: bool) -> None:
        if kill:
            self.clients[process].kill()
        else:
            assert self.clients[process].end() == 0
        self.clients[process].__exit__()
        self.books[process] = Book()
        self.clients[process] = self.tenant.client(start=False, preload=self.preload)
        self.start(process)


def run(built: Built, cases: int, size: int, number: int, **attributes: object) -> None:
    machine = type("Sequences", (Sequences,), {"built": built, **attributes})
    checks = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
    bounds = settings(
        max_examples=cases,
        stateful_step_count=size,
        deadline=None,
        suppress_health_check=checks,
        database=None,
        print_blob=True,
    )
    run_state_machine_as_test(seed(number)(machine), settings=bounds)


@pytest.mark.parametrize("part", range(2))
def test_the_limiter_counts_as_the_model_does(built: Built, part: int) -> None:
    run(built, CASES, SIZE, SEED * 100 + part)


def test_the_model_counts_as_the_card_does(built: Built) -> None:
    """Check the model without a limiter, on a card with as much memory as the quota."""
    run(built, CASES, SIZE, SEED * 100 + 50, preload=False, quotas=(64 * MIB, 64 * MIB))
