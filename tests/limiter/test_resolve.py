# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test dlsym without a driver, and with libraries that export the driver's names.

The results must be the same as without the limiter.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.limiter.limiter_lab import DEADLINE, OUT, SOURCE, Tenant, compile_c, data

SEARCH = """
import ctypes, sys
libc = ctypes.CDLL(None)
libc.dlsym.restype = ctypes.c_void_p
libc.dlsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
libc.dlerror.restype = ctypes.c_char_p
for path in sys.argv[1:]:
    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
for name in (b"cuMemAlloc_v2", b"nvmlDeviceGetMemoryInfo", b"cuInit", b"malloc", b"dlsym"):
    for handle in (0, ctypes.CDLL(None)._handle):
        libc.dlerror()
        found = libc.dlsym(handle, name)
        error = libc.dlerror()
        print(name.decode(), "found" if found else "not found", "silently" if error is None else "with an error")
"""


def search(environment: dict[str, str], *libraries: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SEARCH, *map(str, libraries)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_a_driver_nothing_of_it_is_found(tenant: Tenant) -> None:
    """Find no function of the driver if there is no driver.

    A program that checks for CUDA must not find the functions of the limiter.
    """
    tenant.quota(1 << 20)
    limited = search(tenant.environment())
    assert limited == search(tenant.environment(preload=False))
    assert "cuMemAlloc_v2 not found with an error" in limited
    assert "malloc found silently" in limited


def test_with_a_driver_it_is_found_without_an_error(tenant: Tenant) -> None:
    tenant.quota(1 << 20)
    driver = tenant.built.stub / "libcuda.so.1"
    limited = search(tenant.environment(), driver)
    assert limited == search(tenant.environment(preload=False), driver)
    assert "cuMemAlloc_v2 found silently" in limited
    assert "nvmlDeviceGetMemoryInfo not found" in limited


def test_a_driver_without_newer_functions(tenant: Tenant, tmp_path: Path) -> None:
    """Find no functions that an old driver lacks.

    A lookup of a function that exists must leave no dlerror.
    """
    tenant.quota(1 << 20)
    source = tmp_path / "old.c"
    source.write_text("int cuInit(unsigned f) { return (int)f; }\nint cuMemAlloc_v2(void) { return 77; }\n")
    old = compile_c(tmp_path / "libcuda.so.1", str(source), "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
    program = (
        "import ctypes, sys; driver = ctypes.CDLL(sys.argv[1]);"
        "print(driver.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(4)), hasattr(driver, 'cuMemCreate'))"
    )
    command = [sys.executable, "-c", program, str(old)]
    done = subprocess.run(command, env=tenant.environment(), capture_output=True, text=True, timeout=DEADLINE)
    assert (done.stdout, done.stderr) == ("77 False\n", "")


def test_another_librarys_function_of_the_same_name(tenant: Tenant, tmp_path: Path) -> None:
    """Return the function of a profiler's library, if dlsym searches this library.

    The profiler exports a name of the driver. The program passes the profiler's handle to dlsym.
    """
    tenant.quota(1 << 20)
    source = tmp_path / "other.c"
    source.write_text("int cuMemAlloc_v2(void) { return 88; }\n")
    other = compile_c(tmp_path / "libother.so", str(source), "-shared", "-fPIC")
    program = (
        "import ctypes, sys; driver = ctypes.CDLL('libcuda.so.1'); other = ctypes.CDLL(sys.argv[1]);"
        "print(other.cuMemAlloc_v2(), driver.cuMemAlloc_v2(0, 0))"
    )
    command = [sys.executable, "-c", program, str(other)]
    done = subprocess.run(command, env=tenant.environment(), capture_output=True, text=True, timeout=DEADLINE)
    assert done.stderr == ""
    assert done.stdout.split()[0] == "88"
    assert done.stdout.split()[1] != "88"


def test_the_drivers_answer_stays_as_it_is(tenant: Tenant) -> None:
    """Return the driver's errors and status unchanged, even if arguments are missing."""
    tenant.quota(1 << 20)
    name = data(b"cuMemAlloc\0")
    calls = [
        (data(b"cuNoSuchThing\0"), OUT, 13000, 0, OUT),
        (name, OUT, 1000, 0, OUT),
        (name, OUT, 13000, 0, 0),
        (name, 0, 13000, 0, OUT),
        (0, OUT, 13000, 0, OUT),
        (name, OUT, 13000, 99, OUT),
    ]
    with tenant.client() as limited, tenant.client(preload=False) as bare:
        for call in calls:
            got, wanted = (client.call("cuGetProcAddress_v2", *call) for client in (limited, bare))
            assert got[0] == wanted[0], call
            assert got[1][-1:] == wanted[1][-1:] or call[-1] == 0, call


@pytest.mark.parametrize("entry", ["cuGetProcAddress", "cuGetProcAddress_v2"])
def test_cugetprocaddress_finds_itself(tenant: Tenant, entry: str) -> None:
    tenant.quota(1 << 20)
    with tenant.client() as client:
        own = {
            name: int(client.tell(f"find {name}").split()[0]) for name in ("cuGetProcAddress", "cuGetProcAddress_v2")
        }
        status = (OUT,) if entry.endswith("_v2") else ()
        for version, wanted in (
            (11030, "cuGetProcAddress"),
            (12000, "cuGetProcAddress_v2"),
            (13000, "cuGetProcAddress_v2"),
        ):
            found = client.ok(entry, data(b"cuGetProcAddress\0"), OUT, version, 0, *status)[1]
            assert found == own[wanted], version


def test_each_hook_has_a_declaration_of_its_own() -> None:
    """Check that each hook is declared under its own name.

    A macro in CUDA's headers may rename a function to another version, and the hook would then have the wrong type.
    """
    declared = (SOURCE / "base/cuda_abi.h").read_text()
    for line in (SOURCE / "driver/hooks.h").read_text().splitlines():
        if line.startswith(("HOOK(", "HOOK_NVML(", "CALLED(", "CALLED_NVML(")):
            name = line.partition("(")[2].split(",")[0].rstrip(")")
            assert f" {name}(" in declared, name
