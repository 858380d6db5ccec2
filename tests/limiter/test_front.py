# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the front, a libcuda.so.1 that containers find before the driver's file.

The front depends on the limiter and on the driver, in this order.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import files as vgpu_files
from tests.limiter.account import MIB
from tests.limiter.limiter_lab import DEADLINE, LIBRARY, OUT, SOURCE, Tenant, compile_c, run_make
from tests.limiter.mounts import UNSHARE, can_mount, client_in_container
from tests.limiter.test_reach import HELD, NOT_HELD, answer

FRONT = "libcuda.so.1"
OUT_OF_MEMORY = 2
WAYS = ("dlsym", "dlvsym", "bind", "deepbind", "dlmopen")


def behind_the_front(tenant: Tenant, preload: bool, **more: str) -> dict[str, str]:
    """Return an environment in which the loader finds the front first.

    The limiter may be preloaded too.
    """
    return {**tenant.environment(preload), "LD_LIBRARY_PATH": f"{tenant.built.front}:{tenant.built.stub}", **more}


@pytest.mark.parametrize("preload", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_the_driver_is_held(tenant: Tenant, way: str, preload: bool) -> None:
    assert answer(tenant, way, FRONT, behind_the_front(tenant, preload)) == HELD


@pytest.mark.parametrize("way", ["deepbind", "dlmopen"])
def test_who_opens_the_drivers_file_itself_passes_the_front_by(tenant: Tenant, way: str) -> None:
    driver = tenant.built.stub / FRONT
    assert answer(tenant, way, driver, behind_the_front(tenant, preload=True)) == NOT_HELD


@pytest.mark.parametrize("preload", [True, False])
def test_a_program_that_is_linked_with_the_driver(tenant: Tenant, preload: bool) -> None:
    """Run a program that is linked with the driver, and loads the front instead.

    Names are searched in the front's dependencies: first in the limiter, then in the driver.
    """
    linked = tenant.built.program("linked", f"-L{tenant.built.stub}", f"-l:{FRONT}")
    tenant.quota(MIB)
    for size, result in ((MIB, "0"), (MIB + 1, "2")):
        done = subprocess.run(
            [str(linked), str(size)],
            env=behind_the_front(tenant, preload),
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        found = dict(line.split(": ", 1) for line in done.stdout.splitlines())
        assert (done.returncode, found["linked"]) == (0, result), done.stderr
        assert found["default"] == found["the driver's"] == LIBRARY
        # The stub's file is also called FRONT. The function comes from the stub, because the front itself has no
        # functions.
        assert found["the driver's cuInit"] == FRONT


EVERY_NAME = """
import ctypes, sys
front, driver = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(sys.argv[1])
address = lambda library, name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value
names = sys.argv[2].split()
print(sum(address(front, name) == address(driver, name) for name in names), len(names))
"""


def test_each_name_that_is_not_intercepted_is_the_drivers_own(tenant: Tenant) -> None:
    """Find the driver's function for each name that the limiter does not hook.

    The front needs no list of names, whatever the driver exports.
    """
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", tenant.built.stub / FRONT], capture_output=True, text=True, check=True
    )
    own = subprocess.run(
        ["nm", "-D", "--defined-only", tenant.built.library], capture_output=True, text=True, check=True
    )
    intercepted = {line.split()[2].split("@")[0] for line in own.stdout.splitlines()}
    names = {line.split()[2] for line in listed.stdout.splitlines()} - intercepted
    assert len(names) > 300
    command = [sys.executable, "-c", EVERY_NAME, str(tenant.built.stub / FRONT), " ".join(sorted(names))]
    done = subprocess.run(
        command, env=behind_the_front(tenant, preload=False), capture_output=True, text=True, timeout=DEADLINE
    )
    assert done.stdout.split() == [str(len(names))] * 2, done.stderr


OLD_DRIVER = "int cuInit(unsigned flags) { return flags; }\n"
ASKS = """
import ctypes
libc, front = ctypes.CDLL(None), ctypes.CDLL("libcuda.so.1")
libc.dlsym.restype, libc.dlsym.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
print(*(bool(libc.dlsym(front._handle, name)) for name in (b"cuInit", b"cuMemAllocAsync", b"cuMemAlloc_v2")))
"""


def test_a_name_that_the_driver_lacks_is_not_found(tenant: Tenant, tmp_path: Path) -> None:
    """Find no function that the driver lacks, although the limiter has its name.

    Programs use dlsym to detect features of the driver.
    """
    tenant.quota(MIB)
    (tmp_path / "old.c").write_text(OLD_DRIVER)
    shape = ("-shared", "-fPIC", f"-Wl,-soname,{FRONT}")
    old = compile_c(tmp_path / "old" / FRONT, str(tmp_path / "old.c"), *shape)
    paths = (f"FRONT_LIBRARY={tenant.built.library}", f"FRONT_DRIVER={old}")
    run_make(SOURCE, tmp_path / "front", *paths, str(tmp_path / "front" / FRONT))
    variables = {**tenant.environment(), "LD_LIBRARY_PATH": str(tmp_path / "front")}
    done = subprocess.run([sys.executable, "-c", ASKS], env=variables, capture_output=True, text=True, timeout=DEADLINE)
    assert done.stdout.split() == ["True", "False", "False"], done.stderr


def test_the_quota_holds_with_and_without_preload(tenant: Tenant) -> None:
    """Share one quota between programs, however they load the library.

    Each program loads the library through the front, through preload, or through both.
    """
    tenant.quota(8 * MIB)
    path = {"LD_LIBRARY_PATH": behind_the_front(tenant, preload=False)["LD_LIBRARY_PATH"]}
    with tenant.client(**path) as both, tenant.client(preload=False, **path) as front, tenant.client() as preloaded:
        clients = (both, front, preloaded)
        for client in clients:
            client.alloc(2 * MIB)
        for client in clients:
            assert client.memory() == (2 * MIB, 8 * MIB)
            assert client.call("cuMemAlloc_v2", OUT, 2 * MIB + 1)[0] == OUT_OF_MEMORY
    assert tenant.peak() == 6 * MIB


def test_it_needs_the_library_and_then_the_driver(tenant: Tenant) -> None:
    """Check that the front's dependencies are the paths in a container.

    The front contains no code.
    """
    folder = tenant.built.library.parent
    shown = subprocess.run(
        ["readelf", "--dynamic", "--wide", folder / FRONT], capture_output=True, text=True, check=True
    ).stdout
    assert re.findall(r"\(NEEDED\).*\[(.*)\]", shown) == [
        "/" + vgpu_files.LIBRARY,
        "/" + vgpu_files.DRIVER_INSIDE,
    ]
    assert re.findall(r"\(SONAME\).*\[(.*)\]", shown) == [FRONT]
    assert not re.search(r"\((RPATH|RUNPATH|TEXTREL|INIT|INIT_ARRAY)\)", shown)


# --- The order of files in /etc/ld.so.conf.d, which decides in a container ---


def ldconfig(files: str = "") -> str:
    """Return shell commands that rebuild the loader's cache in a mount namespace.

    This changes no file of the machine.
    """
    own = "/var/cache/ldconfig"
    return f"test ! -d {own} || mount -t tmpfs none {own}\n/sbin/ldconfig -X {files}"


def found_first(folder: Path, named: dict[str, Path]) -> str:
    """Return the libcuda.so.1 that the loader finds with these files of ld.so.conf.d."""
    included = folder / "ld.so.conf.d"
    included.mkdir(parents=True)
    for name, where in named.items():
        (included / name).write_text(f"{where}\n")
    (folder / "ld.so.conf").write_text(f"include {included}/*.conf\n")
    files = f"-f {folder / 'ld.so.conf'} -C {folder / 'ld.so.cache'}"
    script = f"{ldconfig(files)}\n/sbin/ldconfig -p {files}"
    shown = subprocess.run([*UNSHARE, "sh", "-ec", script], capture_output=True, text=True, check=True).stdout
    return re.findall(r"^\s*libcuda\.so\.1 .*=> (\S+)$", shown, re.MULTILINE)[0]


@pytest.mark.skipif(not can_mount(), reason="this user cannot mount, not even in a namespace of its own")
def test_the_front_is_found_before_the_driver_and_after_a_compatibility_package(tenant: Tenant) -> None:
    """Test with the names that nvidia-container-toolkit and images give these files.

    The toolkit writes 00-nvcr-*.conf and 00-compat-*.conf, and images have 00-cuda-compat.conf.
    """
    front, stub = tenant.built.front, tenant.built.stub
    ours = Path(vgpu_files.FRONT_CONF_INSIDE).name
    compat = tenant.root / "compat"
    compat.mkdir()
    shutil.copy(stub / FRONT, compat / "libcuda.so.999.1")
    (compat / FRONT).symlink_to("libcuda.so.999.1")
    driver = {"00-nvcr-123456789.conf": stub, ours: front}
    assert found_first(tenant.root / "plain", driver) == str(front / FRONT)
    for name in ("00-compat-987.conf", "00-cuda-compat.conf"):
        assert found_first(tenant.root / name, {**driver, name: compat}) == str(compat / FRONT)


@pytest.mark.skipif(not can_mount(), reason="this user cannot mount, not even in a namespace of its own")
@pytest.mark.parametrize("preload", [True, False])
def test_a_program_of_a_container_finds_the_front(tenant: Tenant, preload: bool) -> None:
    """Start a program without the tenant's variables, as docker exec or env -i does.

    The program opens libcuda.so.1 by its soname.
    """
    tenant.quota(8 * MIB)
    hook = f"""
        mkdir /etc/ld.so.conf.d && echo 'include /etc/ld.so.conf.d/*.conf' >/etc/ld.so.conf
        echo {tenant.built.front} >/{vgpu_files.FRONT_CONF_INSIDE}
        echo {tenant.built.stub} >/etc/ld.so.conf.d/00-nvcr-1.conf
        {ldconfig()}
    """
    with client_in_container(tenant, preload=preload, driver=FRONT, hook=hook) as client:
        library = client.tell("find cuMemAlloc_v2").split()[1]
        assert Path(library).name == LIBRARY
        assert client.memory() == (8 * MIB, 8 * MIB)
        assert client.call("cuMemAlloc_v2", OUT, 8 * MIB + 1)[0] == OUT_OF_MEMORY
        client.alloc(8 * MIB)
    assert tenant.peak() == 8 * MIB
