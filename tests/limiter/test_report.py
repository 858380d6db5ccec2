# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the memory use and processes that the driver and NVML report to programs.

nvidia-smi and similar tools make the same queries.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.limiter.account import MIB
from tests.limiter.card import Card
from tests.limiter.limiter_lab import DEADLINE, INITIAL_PID_NAMESPACE, OUT, Built, Client, Tenant

NVML = """
import ctypes, json, sys
nvml = ctypes.CDLL("libnvidia-ml.so.1")
assert nvml.nvmlInit_v2() == 0
U64 = ctypes.c_ulonglong
told = {}
for index in range(int(sys.argv[1])):
    device = ctypes.c_void_p()
    assert nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0
    one = told[index] = {}
    v1 = (U64 * 3)()
    assert nvml.nvmlDeviceGetMemoryInfo(device, v1) == 0
    one["v1"] = list(v1)                                   # total, free, used
    v2 = (U64 * 5)(0x02000028)
    assert nvml.nvmlDeviceGetMemoryInfo_v2(device, v2) == 0
    one["v2"] = list(v2)[1:]                               # total, reserved, free, used
    for name in ("Compute", "MPSCompute", "Graphics"):
        for version, words in (("", 2), ("_v2", 3), ("_v3", 3)):
            call = getattr(nvml, f"nvmlDeviceGet{name}RunningProcesses{version}")
            count, entries = ctypes.c_uint(0), (U64 * (words * 64))()
            short = call(device, ctypes.byref(count), None)
            expected = count.value
            count = ctypes.c_uint(64)
            result = call(device, ctypes.byref(count), entries)
            pids = [entries[i * words] & 0xffffffff for i in range(count.value)]
            memory = [entries[i * words + 1] for i in range(count.value)]
            one[name + version] = [short, expected, result, pids, memory]
print(json.dumps(told))
"""


def by_nvml(tenant: Tenant, gpus: int = 1, preload: bool = True, **environment: str) -> dict:
    """Return the data that a program of the tenant gets from NVML."""
    command = [sys.executable, "-c", NVML, str(gpus)]
    done = subprocess.run(
        command,
        env=tenant.environment(preload, **environment),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_either_pointer_may_be_missing(tenant: Tenant) -> None:
    tenant.quota(8 * MIB)
    with tenant.client() as client:
        client.alloc(3 * MIB)
        assert client.call("cuMemGetInfo_v2", OUT, 0) == (0, [5 * MIB])
        assert client.call("cuMemGetInfo_v2", 0, OUT) == (0, [8 * MIB])
        assert client.ok("cuDeviceTotalMem_v2", OUT, 0) == 8 * MIB


def test_errors_are_the_drivers(tenant: Tenant) -> None:
    tenant.quota(8 * MIB)
    with tenant.client() as limited, tenant.client(preload=False) as bare:
        for call in (("cuMemGetInfo_v2", 0, 0), ("cuDeviceTotalMem_v2", 0, 0), ("cuDeviceTotalMem_v2", OUT, 77)):
            assert limited.call(*call)[0] == bare.call(*call)[0]
        assert limited.call("cuMemGetInfo_v2", OUT, OUT, thread=4)[0] == 201, "a thread without a context"


def test_a_quota_above_the_card_shows_the_card(tenant: Tenant) -> None:
    tenant.quota(tenant.card.memory + MIB)
    with tenant.client() as client:
        client.alloc(MIB)
        assert client.memory() == (tenant.card.memory - MIB, tenant.card.memory)
        assert client.ok("cuDeviceTotalMem_v2", OUT, 0) == tenant.card.memory


def test_more_used_than_the_quota_is_none_left(tenant: Tenant) -> None:
    """Report 0 free bytes, not fewer, if the tenant uses more than its quota."""
    tenant.quota(8 * MIB)
    with tenant.client() as client:
        client.alloc(8 * MIB)
        tenant.quota(2 * MIB)
        with tenant.client() as other:
            assert other.memory() == (0, 2 * MIB)
            assert other.call("cuMemAlloc_v2", OUT, 1)[0] == 2


def test_no_more_is_free_than_the_card_has(tenant: Tenant) -> None:
    """Report no more free memory than the card has left.

    Another tenant of the oversubscribed card uses the rest.
    """
    other = Tenant(tenant.root, tenant.card, tenant.built, "tenant-b").quota(tenant.card.memory)
    tenant.quota(tenant.card.memory)
    with tenant.client() as client, other.client() as taker:
        taker.alloc(tenant.card.memory - MIB)
        assert client.memory() == (MIB, tenant.card.memory)


def test_nvml_shows_the_quota_and_own_processes(tenant: Tenant) -> None:
    other = Tenant(tenant.root, tenant.card, tenant.built, "tenant-b").quota(32 * MIB)
    tenant.quota(8 * MIB)
    with tenant.client() as first, tenant.client() as second, other.client() as foreign:
        first.alloc(MIB)
        second.alloc(2 * MIB)
        foreign.alloc(16 * MIB)
        told = by_nvml(tenant)["0"]
        assert told["v1"] == [8 * MIB, 5 * MIB, 3 * MIB]
        assert told["v2"] == [8 * MIB, 0, 5 * MIB, 3 * MIB]
        for version in ("", "_v2", "_v3"):
            short, expected, result, pids, memory = told[f"Compute{version}"]
            assert (short, expected, result) == (7, 2, 0)
            assert dict(zip(pids, memory)) == {first.pid: MIB, second.pid: 2 * MIB}
            assert told[f"MPSCompute{version}"][:4] == [0, 0, 0, []]
            assert told[f"Graphics{version}"][:4] == [0, 0, 0, []]
        with_mps = by_nvml(tenant, STUB_MPS="1")["0"]
        for name in ("Compute", "MPSCompute"):
            assert sorted(with_mps["%s_v3" % name][3]) == sorted([first.pid, second.pid])
        with_graphics = by_nvml(tenant, STUB_GRAPHICS="1")["0"]
        for version in ("", "_v2", "_v3"):
            assert sorted(with_graphics[f"Graphics{version}"][3]) == sorted([first.pid, second.pid])
        bare = by_nvml(tenant, preload=False)["0"]
        assert bare["v1"][0] == tenant.card.memory
        assert len(bare["Compute_v3"][3]) == 3


def test_nvml_leaves_other_gpus_alone(tmp_path: Path, built: Built) -> None:
    tenant = Tenant(tmp_path / "root", Card(tmp_path / "card", gpus=2), built).quota(None, 8 * MIB)
    other = Tenant(tenant.root, tenant.card, built, "tenant-b").quota(32 * MIB)
    with other.client() as foreign:
        foreign.alloc(MIB)
        told = by_nvml(tenant, 2)
        assert told["0"] == by_nvml(tenant, 2, preload=False)["0"]
        assert told["1"]["v1"] == [8 * MIB, 8 * MIB, 0]
        assert told["1"]["Compute_v3"][3] == []


def test_what_is_limited_elsewhere_is_shown_as_it_is(tenant: Tenant) -> None:
    """Show the card's own memory if the quota does not limit it (`memory 0`)."""
    tenant.quota(0)
    with tenant.client() as client:
        client.alloc(MIB)
        assert by_nvml(tenant)["0"]["v1"] == [tenant.card.memory, tenant.card.memory - MIB, MIB]


def test_a_killed_process_is_out_of_the_figures_at_once(tenant: Tenant) -> None:
    tenant.quota(8 * MIB)
    with tenant.client() as client, tenant.client() as watcher:
        client.alloc(5 * MIB)
        assert watcher.memory()[0] == 3 * MIB
        client.kill()
        assert watcher.memory()[0] == 8 * MIB
        assert by_nvml(tenant)["0"]["Compute_v3"][3] == [watcher.pid]


def settled(client: object, free: int) -> tuple[int, int]:
    """Wait until `free` bytes are free, and return free and total memory.

    The limiter queries NVML at most once a second.
    """
    end = time.monotonic() + DEADLINE
    while client.memory()[0] != free and time.monotonic() < end:
        time.sleep(0.05)
    return client.memory()


def test_contexts_are_charged_when_nvml_names_them(tenant: Tenant) -> None:
    tenant.quota(64 * MIB)
    with tenant.client(STUB_CONTEXT_BYTES=str(10 * MIB)) as client:
        client.alloc(MIB)
        assert settled(client, 53 * MIB) == (53 * MIB, 64 * MIB)
        assert client.call("cuMemAlloc_v2", OUT, 53 * MIB + 1)[0] == 2
        client.alloc(53 * MIB)
        assert settled(client, 0) == (0, 64 * MIB)


def test_where_nvml_names_nobody_only_calls_count(tenant: Tenant) -> None:
    tenant.quota(64 * MIB)
    with tenant.client(STUB_CONTEXT_BYTES=str(10 * MIB), STUB_NVML_HIDES="1") as hidden, tenant.client(
        STUB_CONTEXT_BYTES=str(10 * MIB)
    ) as named:
        hidden.alloc(MIB)
        # One query covers both clients. So when the listed client is charged, the client that NVML does not list was
        # also in a query.
        assert settled(named, 53 * MIB) == (53 * MIB, 64 * MIB)
        assert hidden.memory() == (53 * MIB, 64 * MIB)


def test_in_a_pid_namespace_nvmls_numbers_mean_nobody(tenant: Tenant) -> None:
    """Ignore NVML's pids in another PID namespace.

    NVML returns pids of the host, which can be other processes in this namespace. The limiter already knows the size of
    a context from the other process.
    """
    tenant.quota(64 * MIB)
    with tenant.client(STUB_CONTEXT_BYTES=str(10 * MIB)) as named:
        named.alloc(MIB)
        assert settled(named, 53 * MIB) == (53 * MIB, 64 * MIB)
        tenant.in_namespace(0xF0000123)
        with tenant.client(STUB_CONTEXT_BYTES=str(10 * MIB)) as inside:
            inside.alloc(2 * MIB)
            time.sleep(1.2)  # The library queries NVML one second after the first call.
            assert [inside.memory() for _ in range(2)] == [(41 * MIB, 64 * MIB)] * 2
            told = by_nvml(tenant)["0"]
            assert all(told[f"Compute{version}"] == [0, 0, 0, [], []] for version in ("", "_v2", "_v3"))
            tenant.in_namespace(INITIAL_PID_NAMESPACE)
            assert by_nvml(tenant)["0"]["Compute_v3"][3] == [named.pid], "the other's number is one of its namespace"


GROWS = """
import ctypes, sys, threading
driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert driver.cuInit(0) == 0 and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
def grow():
    address = ctypes.c_uint64()
    assert driver.cuCtxSetCurrent(context) == 0
    sys.stdin.readline()
    if sys.argv[1] == "pool":
        assert driver.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(32 << 20), None) == 0
    else:
        pitch, height = ctypes.c_size_t(), ctypes.c_size_t((32 << 20) // 512)
        assert driver.cuMemAllocPitch_v2(ctypes.byref(address), ctypes.byref(pitch), ctypes.c_size_t(1), height, 4) == 0
thread = threading.Thread(target=grow)
thread.start()
assert driver.cuCtxSetCurrent(context) == 0
free, total, least = ctypes.c_size_t(), ctypes.c_size_t(), 1 << 60
while thread.is_alive():
    assert driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    least = min(least, free.value)
assert driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
print(min(least, free.value), free.value)
"""


def opened(fifo: Path) -> int:
    """Open a FIFO for writing once a reader waits, then remove its name."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        try:
            descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            assert error.errno == errno.ENXIO
            time.sleep(0.01)
        else:
            fifo.unlink()
            return descriptor
    raise AssertionError(f"nobody has come to {fifo}")


@pytest.mark.parametrize("memory", ["pool", "rows"])
def test_memory_of_unknown_size_is_counted_once_during_an_nvml_query(
    tenant: Tenant, tmp_path: Path, memory: str
) -> None:
    """Count memory only once if an NVML query runs during its allocation.

    The limiter learns the size of this memory only when the driver call returns. NVML already reports it before that.
    """
    tenant.quota(128 * MIB)
    grown, asked = tmp_path / "grown", tmp_path / "asked"
    for fifo in (grown, asked):
        os.mkfifo(fifo)
    environment = tenant.environment(STUB_PAUSE_GROWN=str(grown), STUB_PAUSE_NVML=str(asked))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", GROWS, memory], env=environment, text=True, **pipes) as process:
        try:
            nvml = opened(asked)
            process.stdin.write("now\n")
            process.stdin.flush()
            call = opened(grown)
            os.close(nvml)
            time.sleep(0.3)  # Give the NVML query time to end. Its result must not be used before the driver call ends.
            os.close(call)
            out, _ = process.communicate(timeout=DEADLINE)
        finally:
            process.kill()
    assert process.returncode == 0
    assert [int(word) // MIB for word in out.split()] == [96, 96]


COMES_AND_GOES = """
import ctypes, sys, threading
driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert driver.cuInit(0) == 0 and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
def come_and_go():
    address = ctypes.c_uint64()
    assert driver.cuCtxSetCurrent(context) == 0
    sys.stdin.readline()
    assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(16 << 20)) == 0
    print("held", flush=True)
    sys.stdin.readline()
    assert driver.cuMemFree_v2(address) == 0
    print("free", flush=True)
    sys.stdin.readline()
thread = threading.Thread(target=come_and_go)
thread.start()
assert driver.cuCtxSetCurrent(context) == 0
free, total = ctypes.c_size_t(), ctypes.c_size_t()
while thread.is_alive():
    assert driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
print(free.value)
"""


def test_memory_that_comes_and_goes_while_nvml_is_asked_is_not_the_contexts(tenant: Tenant, tmp_path: Path) -> None:
    """Do not take short-lived memory in NVML's report for memory of the context.

    The program allocates and frees the memory during the NVML query.
    """
    tenant.quota(64 * MIB)
    asked, answered = tmp_path / "asked", tmp_path / "answered"
    for fifo in (asked, answered):
        os.mkfifo(fifo)
    environment = tenant.environment(STUB_PAUSE_NVML=str(asked), STUB_PAUSE_ANSWERED=str(answered))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", COMES_AND_GOES], env=environment, text=True, **pipes) as process:

        def say(line: str = "") -> None:
            process.stdin.write("\n")
            process.stdin.flush()
            assert not line or process.stdout.readline() == line + "\n"

        try:
            nvml = opened(asked)
            say("held")
            os.close(nvml)
            nvml = opened(answered)
            say("free")
            os.close(nvml)
            say()
            out, _ = process.communicate(timeout=DEADLINE)
        finally:
            process.kill()
    assert process.returncode == 0
    assert int(out) == 64 * MIB


NAMESPACE = (
    "unshare",
    *(() if os.geteuid() == 0 else ("--user", "--map-root-user")),
    "--pid",
    "--fork",
    "--kill-child",
)


@pytest.mark.skipif(
    not shutil.which("unshare")
    or subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode != 0,
    reason="this user cannot make a PID namespace",
)
def test_a_real_pid_namespace(tenant: Tenant, tmp_path: Path) -> None:
    tenant.quota(64 * MIB)
    shutil.rmtree(tenant.root / "proc")
    (tenant.root / "proc").symlink_to("/proc")
    script = tmp_path / "inside"
    script.write_text(f"#!/bin/sh\nexec {' '.join(NAMESPACE)} {tenant.built.client}\n")
    script.chmod(0o755)
    with Client(SimpleNamespace(client=script), tenant.environment(STUB_CONTEXT_BYTES=str(10 * MIB))) as client:
        assert client.call("getpid")[0] == 1
        client.alloc(MIB)
        time.sleep(1.2)
        assert client.memory() == (63 * MIB, 64 * MIB)
        assert client.memory() == (63 * MIB, 64 * MIB)


@pytest.mark.parametrize("call", ["cuMemAlloc_v2", "cuMemGetInfo_v2"])
def test_without_nvml(tenant: Tenant, tmp_path: Path, call: str) -> None:
    """Run in a container that has the driver's library but not NVML."""
    tenant.quota(8 * MIB)
    alone = tmp_path / "driver"
    alone.mkdir()
    (alone / "libcuda.so.1").symlink_to(tenant.built.stub / "libcuda.so.1")
    with tenant.client(LD_LIBRARY_PATH=str(alone)) as client:
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            assert client.call(call, OUT, MIB if "Alloc" in call else OUT)[0] in (0, 2)
        assert client.memory()[1] == 8 * MIB
