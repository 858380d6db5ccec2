# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the exports and dependencies of the library with various compiler flags."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.limiter.limiter_lab import LIBRARY, OUT, SOURCE, Built, CudaError, Tenant, run_make

OLDEST_GLIBC = (2, 17)

POINTS = """
    accept close connect creat fsync lockf msgrcv msgsnd nanosleep open openat pause poll pread pthread_cond_wait
    pthread_join pwrite read readv recv recvfrom recvmsg select sem_wait send sendmsg sendto sigsuspend sleep usleep
    write writev fopen fclose fread fwrite fprintf syslog
"""


def output(*command: object) -> str:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True).stdout


#: The compiler flags of the role, and flags that a distribution or a developer may use.
USUAL, OTHERS = "-O2 -g", ("-O2 -s", "-O1 -g", "-O3 -flto -s")


@pytest.fixture(scope="session", params=[USUAL, *(pytest.param(each, marks=pytest.mark.thorough) for each in OTHERS)])
def library(request: pytest.FixtureRequest, build_folder: Path, built: Built) -> Path:
    """Return the library, built with the given compiler flags."""
    if request.param == USUAL:
        return built.library
    folder = build_folder / ("flags" + request.param.replace(" ", ""))
    run_make(SOURCE, folder, f"CFLAGS={request.param}")
    return folder / LIBRARY


def hook_names() -> set[str]:
    return set(re.findall(r"^HOOK\w*\((\w+)", (SOURCE / "driver/hooks.h").read_text(), re.MULTILINE))


def test_only_what_is_intercepted_is_exported(library: Path) -> None:
    lines = output("nm", "-D", "--defined-only", library).split("\n")
    exported = {line.split()[2].split("@")[0] for line in lines if line}
    assert exported == hook_names()


@pytest.mark.parametrize("name", [LIBRARY, "vgpu-top"])
def test_it_needs_no_newer_c_library(library: Path, name: str) -> None:
    """Check that the file needs no C library newer than those in use.

    Supported hosts have Rocky 8 to 10, Debian 12 or 13, or Ubuntu 22.04 or 24.04. Containers may have older
    distributions.
    """
    needed = output("readelf", "--version-info", "--wide", library.parent / name)
    versions = re.findall(r"Name: GLIBC_([\d.]+)", needed)
    assert versions
    assert max(tuple(map(int, version.split("."))) for version in versions) <= OLDEST_GLIBC
    unversioned = re.findall(r"Name: (?!GLIBC_)(\S+)", needed)
    assert set(unversioned) <= {LIBRARY}


def test_vgpu_top_runs(library: Path) -> None:
    """Check that vgpu-top does not need the start function of newer C libraries."""
    assert json.loads(output(library.parent / "vgpu-top", "--json"))["version"] == 1


def test_it_needs_the_c_library_alone(library: Path) -> None:
    dynamic = output("readelf", "--dynamic", "--wide", library)
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    assert needed <= {
        "libc.so.6",
        "libdl.so.2",
        "libpthread.so.0",
        "librt.so.1",
        "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1",
    }
    assert "TEXTREL" not in dynamic
    assert "BIND_NOW" in dynamic
    assert not re.search(r"\((RPATH|RUNPATH)\)", dynamic)


def test_a_thread_is_cancelled_nowhere_but_in_its_sleep(library: Path) -> None:
    """Use no function in which POSIX lets a thread be cancelled, except a sleep.

    Of these functions, only the sleep is called, and the library holds no lock then. fcntl is also a cancellation
    point, but only for commands that wait.
    """
    points = POINTS.split()
    names = {line.split()[-1].split("@")[0] for line in output("nm", "-D", "--undefined-only", library).splitlines()}
    assert "clock_nanosleep" in names
    assert not names & {
        form for name in points for form in (name, f"{name}64", f"__{name}", f"__{name}_2", f"__{name}64_2")
    }


def test_nothing_runs_when_it_is_loaded(library: Path) -> None:
    """Allow no constructors and destructors beyond those that gcc adds."""
    sections = output("readelf", "--sections", "--wide", library)
    for name in (".init_array", ".fini_array"):
        size = re.search(rf"\s{re.escape(name)}\s+\S+\s+\S+\s+\S+\s+(\S+)", sections)
        assert size and int(size.group(1), 16) == 8, f"{name}: more than gcc's own"


def test_its_stack_is_not_executable(library: Path) -> None:
    assert re.search(r"GNU_STACK.*RW\s", output("readelf", "--program-headers", "--wide", library))


def test_it_limits(library: Path, tenant: Tenant) -> None:
    tenant.quota(1 << 20)
    with tenant.client(LD_PRELOAD=str(library)) as client:
        client.free(client.alloc(1 << 20))
        with pytest.raises(CudaError):
            client.alloc((1 << 20) + 1)
        assert client.call("cuMemAllocAsync", OUT, 1 << 30, 0)[0] == 2
        assert tenant.peak() == 1 << 20


@pytest.mark.parametrize("name", ["dlsym", "dlvsym"])
def test_a_search_ends_in_a_jump(library: Path, name: str) -> None:
    """Jump to the C library's dlsym, so that the limiter is not the caller.

    With RTLD_NEXT, dlsym searches the libraries after the library of the caller.
    """
    code = output("objdump", f"--disassemble={name}", "--no-show-raw-insn", library)
    jump = r"\b(jmp\s+\*|jmp\s+[0-9a-f]+ <\*ABS|br\s+x)"
    assert re.search(jump, code), code


def test_minus_o0_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="-O1 or higher"):
        run_make(SOURCE, tmp_path / "build", "CFLAGS=-O0")
