# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check which ways to load the driver are limited (docs/vgpu-enforced.md)."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.limiter.account import MIB
from tests.limiter.limiter_lab import DEADLINE, Tenant, buffer, compile_c

HERE = Path(__file__).resolve().parent
DOCUMENT = HERE.parents[1] / "docs/vgpu-enforced.md"
HELD, NOT_HELD = 2, 0

PROGRAM = """
import ctypes, os, sys
way, driver, wrapper = sys.argv[1:]
libc = ctypes.CDLL(None)
for name in ("dlopen", "dlmopen", "dlsym", "dlvsym"):
    getattr(libc, name).restype = ctypes.c_void_p
libc.dlsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
libc.dlvsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
libc.dlmopen.argtypes = [ctypes.c_long, ctypes.c_char_p, ctypes.c_int]
def function(address):
    assert address
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(address)
LM_ID_NEWLM = -1
handle = libc.dlmopen(LM_ID_NEWLM, driver.encode(), os.RTLD_NOW) if way == "dlmopen" else ctypes.CDLL(driver)._handle
call = lambda name: function(libc.dlsym(handle, name))
context, address = ctypes.c_void_p(), ctypes.c_uint64()
assert call(b"cuInit")(0, 0) == 0
assert call(b"cuDevicePrimaryCtxRetain")(ctypes.addressof(context), 0) == 0
assert call(b"cuCtxSetCurrent")(context, 0) == 0
if way == "dlvsym":
    # The version that the C library's dlsym has had from its beginning.
    first = b"GLIBC_2.17" if os.uname().machine == "aarch64" else b"GLIBC_2.2.5"
    assert not libc.dlvsym(handle, b"cuMemAlloc_v2", first)
    # Each way to it: of all that is loaded, of the C library, what comes next; and by a dlvsym that was found so itself.
    search = lambda address: ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(address)
    searchv = lambda address: ctypes.CFUNCTYPE(ctypes.c_void_p, *[ctypes.c_void_p] + [ctypes.c_char_p] * 2)(address)
    own = ctypes.CDLL("libc.so.6")._handle
    again = searchv(libc.dlvsym(own, b"dlvsym", first))
    found = [libc.dlvsym(where, b"dlsym", first) for where in (libc._handle, own, -1)]
    found += [again(own, b"dlsym", first), searchv(libc.dlsym(own, b"dlvsym"))(own, b"dlsym", first)]
    answers = {search(each)(handle, b"cuMemAlloc_v2") for each in found}
    assert len(answers) == 1, answers
    allocate = function(answers.pop())
elif way in ("bind", "deepbind"):
    deep = os.RTLD_DEEPBIND if way == "deepbind" else 0
    allocate = function(ctypes.CDLL(wrapper, mode=os.RTLD_NOW | deep).allocate and
                        libc.dlsym(ctypes.CDLL(wrapper)._handle, b"allocate"))
else:
    allocate = call(b"cuMemAlloc_v2")
print(allocate(ctypes.addressof(address), 2 << 20))
"""


def answer(
    tenant: Tenant, way: str, driver: str | Path | None = None, environment: dict[str, str] | None = None
) -> int:
    """Load the driver in one way, and return the result of an allocation over quota."""
    tenant.quota(MIB)
    source = tenant.root / "wrapper.c"
    declared = "#include <stddef.h>\nint cuMemAlloc_v2(void *, size_t);\n"
    source.write_text(declared + "int allocate(void *to, size_t n) { return cuMemAlloc_v2(to, n); }\n")
    wrapper = compile_c(
        tenant.root / "libwrapper.so", str(source), "-shared", "-fPIC", f"-L{tenant.built.stub}", "-l:libcuda.so.1"
    )
    command = [sys.executable, "-c", PROGRAM, way, str(driver or tenant.built.stub / "libcuda.so.1"), str(wrapper)]
    variables = environment or tenant.environment()
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_dlsym_is_held(tenant: Tenant) -> None:
    assert answer(tenant, "dlsym") == HELD


def test_a_library_that_links_with_the_driver_is_held(tenant: Tenant) -> None:
    assert answer(tenant, "bind") == HELD


def test_the_full_version_file_is_held(tenant: Tenant) -> None:
    """Limit a program that opens the driver's versioned file.

    The versioned file has the soname libcuda.so.1.
    """
    full = tenant.root / "libcuda.so.580.82.07"
    shutil.copy(tenant.built.stub / "libcuda.so.1", full)
    assert answer(tenant, "dlsym", full) == HELD


def test_the_c_librarys_dlsym_by_dlvsym_is_held(tenant: Tenant) -> None:
    assert answer(tenant, "dlvsym") == HELD


def test_rtld_deepbind_is_not_held(tenant: Tenant) -> None:
    assert answer(tenant, "deepbind") == NOT_HELD


def test_dlmopen_is_not_held(tenant: Tenant) -> None:
    assert answer(tenant, "dlmopen") == NOT_HELD


OPENS = """
import ctypes, sys
class Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * 64)]
driver, context, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
assert driver.cuInit(0) == 0 and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert driver.cuCtxSetCurrent(context) == 0
handle = Handle.from_buffer_copy(bytes.fromhex(sys.argv[1]))
assert driver.cuIpcOpenMemHandle_v2(ctypes.byref(address), handle, 1) == 0
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
print(free.value, total.value)
assert driver.cuIpcCloseMemHandle(address) == 0
"""


def test_memory_of_ipc_counts_once(tenant: Tenant) -> None:
    tenant.quota(8 * MIB)
    with tenant.client() as maker:
        handle = maker.ok("cuIpcGetMemHandle", buffer(64), maker.alloc(5 * MIB))
        command = [sys.executable, "-c", OPENS, handle.hex()]
        done = subprocess.run(command, env=tenant.environment(), capture_output=True, text=True, timeout=DEADLINE)
        assert done.stdout.split() == [str(3 * MIB), str(8 * MIB)], done.stderr
        assert maker.memory() == (3 * MIB, 8 * MIB)


def rows() -> list[list[str]]:
    """Return the cells of each row of the table."""
    section = DOCUMENT.read_text().partition("## What is enforced and what is not")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_each_row_of_the_table_names_a_test_or_a_reason() -> None:
    defined = {
        (path.name, name)
        for path in HERE.glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert len(rows()) > 20
    for what, held, proof, reason in rows():
        assert held in ("enforced", "not enforced", "partly"), what
        tests = re.findall(r"`(test_\w+\.py)::(test_\w+)`", proof)
        assert set(tests) <= defined, (what, proof)
        assert tests or proof == "not tested", what
        assert tests or reason, f"{what}: why it is not tested, or not enforced"
        assert reason or held == "enforced", f"{what}: why it is not enforced"
