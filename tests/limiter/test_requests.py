# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Replay the requests that CUDA runtimes send to cuGetProcAddress.

Each answer must be the exact variant: the hook if the function is intercepted, and otherwise the driver's function.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limiter.limiter_lab import OUT, SOURCE, Client, Tenant, data
from tests.thorough import THOROUGH

HERE = Path(__file__).resolve().parent
LISTS = {path.stem.split("-")[1]: path for path in sorted((HERE / "data").glob("cuda-*.txt"))}
#: The requests of Python packages (see test_driver_layers.py).
LAYERS = {path.stem.partition("-")[2]: path for path in sorted((HERE / "data").glob("layer-*.txt"))}
# The design requires a hook for these functions. This list is independent of the library's own list. A variant that
# differs only by version or kind of stream must not count as one of them.
_HOOKED = """
    cuGetProcAddress cuGetProcAddress_v2 cuMemAlloc_v2 cuMemAllocPitch_v2 cuMemAllocManaged cuMemCreate cuMemAllocAsync
    cuMemAllocAsync_ptsz cuMemAllocFromPoolAsync cuMemAllocFromPoolAsync_ptsz cuArrayCreate_v2 cuArray3DCreate_v2
    cuMipmappedArrayCreate cuMemFree_v2 cuMemFreeAsync cuMemFreeAsync_ptsz cuMemRelease cuMemUnmap cuMemMap
    cuMemRetainAllocationHandle cuArrayDestroy cuMipmappedArrayDestroy cuMemPoolDestroy cuMemPoolTrimTo cuCtxDestroy_v2
    cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxReset_v2 cuMemGetInfo_v2 cuDeviceTotalMem_v2 cuLaunchKernel
    cuLaunchKernel_ptsz cuLaunchKernelEx cuLaunchKernelEx_ptsz cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz
    cuGraphLaunch cuGraphLaunch_ptsz cuLaunchCooperativeKernelMultiDevice cuLaunch cuLaunchGrid cuLaunchGridAsync
    cuStreamDestroy cuStreamDestroy_v2
    cuCtxCreate cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4 cuDevicePrimaryCtxRetain cuCtxSetLimit
    cuMemAlloc cuMemAllocPitch cuMemFree cuMemGetInfo cuDeviceTotalMem cuArrayCreate cuArray3DCreate
    cuCtxSynchronize cuCtxSynchronize_v2 cuStreamSynchronize cuStreamSynchronize_ptsz cuEventSynchronize
"""
HOOKED = set(_HOOKED.split())
# Newer or older programs allocate or free memory with these functions, so they may also be intercepted.
_MAY_BE_HOOKED = """
    cuCtxDestroy cuDevicePrimaryCtxRelease cuDevicePrimaryCtxReset cuMemPoolCreate cuDeviceGraphMemTrim cuGraphUpload
    cuGraphUpload_ptsz cuMemPoolImportFromShareableHandle cuMemImportFromShareableHandle cuGreenCtxDestroy cuCtxDetach
    cuGraphExecDestroy cuGraphInstantiate
    cuMemPoolSetAttribute cuDeviceSetMemPool cuMemSetMemPool cuGraphInstantiateWithFlags
"""
MAY_BE_HOOKED = set(_MAY_BE_HOOKED.split())


def requests(path: Path) -> list[tuple[str, int, int]]:
    lines = [line.split() for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return [(name, int(version), int(flags)) for name, version, flags in lines]


def variants() -> list[tuple[str, int, bool, str]]:
    """Return the driver's variants: name, version, per-thread flag, exported symbol."""
    lines = (HERE / "stub/functions.txt").read_text().splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return [(name, int(version), kind == "ptsz", symbol) for name, version, kind, symbol in rows]


def wanted(name: str, version: int, flags: int) -> str | None:
    """Return the exported symbol that a driver would return for a request."""
    fit = [row for row in variants() if row[0] == name and row[1] <= version and (flags & 2 or not row[2])]
    return max(fit, key=lambda row: (row[2], row[1]))[3] if fit else None


def ask(client: Client, name: str, version: int, flags: int) -> int:
    return client.ok("cuGetProcAddress_v2", data(name.encode() + b"\0"), OUT, version, flags, OUT)[1]


def exported(client: Client, symbol: str) -> int:
    return int(client.tell(f"find {symbol}").split()[0])


@pytest.mark.parametrize("runtime", [*LISTS, *(LAYERS if THOROUGH else ())])
@pytest.mark.parametrize("aliases", ["0", "1"], ids=["exported", "other-addresses"])
def test_each_answer_is_the_very_variant(tenant: Tenant, runtime: str, aliases: str) -> None:
    """Compare cuGetProcAddress with dlsym for the symbol of that name and version.

    With aliases, the driver returns addresses that differ from its exported functions. Pointers that are not
    intercepted are then compared with those that the driver returns without the limiter.
    """
    tenant.quota(1 << 30)
    asked = requests({**LISTS, **LAYERS}[runtime])
    assert len(asked) > 400
    known = {name for name, *_ in variants()}
    settings = {"STUB_ALIASES": aliases, "STUB_DRIVER_VERSION": "99000"}
    with tenant.client(**settings) as limited, tenant.client(preload=False, **settings) as bare:
        driver = exported(limited, "cuInit"), exported(bare, "cuInit")
        for name, version, flags in asked:
            symbol = wanted(name, version, flags)
            answer = ask(limited, name, version, flags)
            of_driver = ask(bare, name, version, flags) - driver[1] + driver[0]
            if name not in known:
                assert answer == 0, (name, version, flags)
                continue
            if symbol in HOOKED:
                assert answer == exported(limited, symbol) != of_driver, (name, version, flags, symbol)
            elif symbol in MAY_BE_HOOKED:
                assert answer in (of_driver, exported(limited, symbol)), (name, version, flags, symbol)
            else:
                assert answer == of_driver, (name, version, flags, symbol)


def test_every_variant_of_the_driver(tenant: Tenant) -> None:
    """Request each name at each version that adds a variant, with both stream kinds.

    Runtimes request only some of these variants.
    """
    tenant.quota(1 << 30)
    with tenant.client() as limited, tenant.client(preload=False) as bare:
        driver = exported(limited, "cuInit"), exported(bare, "cuInit")
        for name, version, per_thread, symbol in variants():
            answer = ask(limited, name, version, 2 if per_thread else 1)
            of_driver = ask(bare, name, version, 2 if per_thread else 1) - driver[1] + driver[0]
            allowed = {exported(limited, symbol)} if symbol in HOOKED else {of_driver}
            if symbol in MAY_BE_HOOKED:
                allowed.add(exported(limited, symbol))
            assert answer in allowed, (name, version, symbol)


def test_hooks_stay_what_is_listed(tenant: Tenant) -> None:
    """Check that all required hooks exist, and that the lists above have every hook."""
    names = set(re.findall(r"^HOOK\((\w+)", (SOURCE / "driver/hooks.h").read_text(), re.MULTILINE))
    assert names >= HOOKED
    assert names - HOOKED <= MAY_BE_HOOKED
    assert {"cuCtxGetDevice", "cuCtxGetDevice_v2"}.isdisjoint(names)


def test_errors_of_the_driver_stay_its_own(tenant: Tenant) -> None:
    tenant.quota(1 << 30)
    with tenant.client() as client:
        assert client.ok("cuGetProcAddress_v2", data(b"cuNoSuchThing\0"), OUT, 13000, 0, OUT)[1:] == [0, 1]
        assert client.ok("cuGetProcAddress_v2", data(b"cuMemCreate\0"), OUT, 10000, 0, OUT)[1:] == [0, 2]
        assert client.ok("cuGetProcAddress_v2", data(b"cuMemCreate\0"), OUT, 10020, 0, 0)[1] != 0
        assert client.call("cuGetProcAddress_v2", data(b"cuMemCreate\0"), OUT, 99000, 0, OUT)[0] == 1
        assert client.call("cuGetProcAddress_v2", 0, OUT, 13000, 0, OUT)[0] == 1
        assert client.call("cuGetProcAddress_v2", data(b"cuMemAlloc\0"), 0, 13000, 0, OUT)[0] == 1


def test_either_form_of_the_resolver_gives_either_form(tenant: Tenant) -> None:
    """Request both forms of cuGetProcAddress through each of the two forms.

    Programs of CUDA 11.3 to 11.8 use the form with four arguments.
    """
    tenant.quota(1 << 30)
    with tenant.client() as client:
        for form, more in (("cuGetProcAddress", []), ("cuGetProcAddress_v2", [0])):
            for version, symbol in ((11030, "cuGetProcAddress"), (12000, "cuGetProcAddress_v2")):
                answer = client.ok(form, data(b"cuGetProcAddress\0"), OUT, version, 0, *more)[1]
                assert answer == exported(client, symbol), (form, version)


@pytest.mark.parametrize("flags", [0, 2])
@pytest.mark.parametrize("aliases", ["0", "1"], ids=["exported", "other-addresses"])
def test_the_quota_binds_whatever_way_a_function_is_got(tenant: Tenant, flags: int, aliases: str) -> None:
    tenant.quota(1 << 20)
    with tenant.client(STUB_ALIASES=aliases) as client:
        for version in (3020, 11040, 12080, 13000):
            assert client.proc("cuMemAlloc", version, flags, OUT, (1 << 20) + 1)[0] == 2
            result, (address,) = client.proc("cuMemAlloc", version, flags, OUT, 1 << 20)
            assert result == 0
            assert client.proc("cuMemFree", version, flags, address)[0] == 0
        for name in ("cuMemAllocAsync", "cuMemAllocManaged"):
            assert client.proc(name, 13000, flags, OUT, 1 << 30, 1)[0] == 2
        assert tenant.peak() == 1 << 20


def runtime_libraries() -> list[str]:
    """Return the CUDA runtimes of this machine: OPENFLEET_CUDART and the usual paths."""
    named = [path for path in os.environ.get("OPENFLEET_CUDART", "").split(":") if path]
    return named or [str(path) for path in sorted(Path("/usr/local").glob("cuda*/lib64/libcudart.so.1[0-9]"))]


@pytest.mark.skipif(not runtime_libraries(), reason="no CUDA runtime on this machine (OPENFLEET_CUDART names one)")
def test_a_real_runtime_asks_for_what_is_listed(tenant: Tenant, tmp_path: Path) -> None:
    program = "import ctypes, sys; r = ctypes.CDLL(sys.argv[1]); r.cudaFree(None); v = ctypes.c_int(); "
    program += "r.cudaRuntimeGetVersion(ctypes.byref(v)); print(v.value)"
    compared = []
    for path in runtime_libraries():
        record = tmp_path / Path(path).name
        environment = tenant.environment(preload=False, STUB_REQUESTS=str(record))
        done = subprocess.run([sys.executable, "-c", program, path], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        version = f"{int(done.stdout) // 1000}.{int(done.stdout) % 1000 // 10}"
        if version not in LISTS:
            continue
        lines = [line.split() for line in record.read_text().splitlines()]
        seen = {(line[0], int(line[1]), int(line[2])) for line in lines if len(line) == 3}
        assert seen == set(requests(LISTS[version])), path
        compared.append(version)
    if not compared:
        pytest.skip(f"none of {', '.join(runtime_libraries())} is of a version that is listed ({', '.join(LISTS)})")
