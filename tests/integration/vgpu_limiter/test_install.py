# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the module vgpu_limiter in a directory that represents a host."""

from __future__ import annotations

import base64
import ctypes
import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.plugin_utils import limiter_sources
from tests.integration.install_module import result
from tests.integration.vgpu_limiter.vgpu_limiter_host import DIRECTORY, FILES, Host, source_of, write_source

NOTHING = {"changed": False, "done": [], "missing": []}


def version_in(path: Path) -> str:
    function = ctypes.CDLL(str(path)).openfleet_version
    function.restype = ctypes.c_char_p
    return function().decode()


def built(tmp_path: Path, version: str) -> dict:
    """Return a prebuilt library and vgpu-top."""
    folder = tmp_path / "built"
    folder.mkdir(exist_ok=True)
    write_source(folder, version)
    subprocess.run(["make", "-s", "-B", "-C", str(folder), "BUILD=build"], check=True)
    given = {}
    for name in ("libopenfleet-vgpu.so", "libcuda.so.1", "vgpu-top"):
        content = (folder / "build" / name).read_bytes()
        given[name] = base64.b64encode(content).decode()
    return given


# --- install, repeat, check mode, remove --------------------------------------------------------


@pytest.mark.host_python
def test_bare_host_gets_everything_and_a_second_run_changes_nothing(host):
    assert host.installed(host.bundle())["changed"]
    name = host.library().name
    assert (
        name.startswith("libopenfleet-vgpu.so.") and os.readlink(host.root / DIRECTORY / "libopenfleet-vgpu.so") == name
    )
    assert host.files() == {
        f"{DIRECTORY}/{name}",
        f"{DIRECTORY}/libopenfleet-vgpu.so",
        f"{DIRECTORY}/ld.so.preload",
        f"{DIRECTORY}/front.conf",
        f"{DIRECTORY}/front/libcuda.so.1",
        f"{DIRECTORY}/manifest.json",
        "usr/bin/vgpu-run",
        "usr/bin/vgpu-top",
    }
    # A container's dynamic loader finds libcuda.so.1 through this path.
    assert (host.root / DIRECTORY / "front.conf").read_text() == "/usr/lib/openfleet-gpu/vgpu/front\n"
    # A container mounts this file as /etc/ld.so.preload.
    assert (host.root / DIRECTORY / "ld.so.preload").read_text() == "/usr/lib/openfleet-gpu/vgpu/libopenfleet-vgpu.so\n"
    assert {stat.S_IMODE((host.root / "usr/bin" / name).stat().st_mode) for name in ("vgpu-run", "vgpu-top")} == {0o755}
    before = {path: (host.root / path).lstat().st_mtime_ns for path in host.files()}
    assert host.installed(host.bundle()) == NOTHING
    assert {path: (host.root / path).lstat().st_mtime_ns for path in host.files()} == before


def test_files_are_world_readable_for_any_umask(host):
    umask = os.umask(0o077)
    try:
        host.installed(host.bundle(services={"a.service": "a"}))
    finally:
        os.umask(umask)
    for path in (host.root / "usr").rglob("*"):
        assert path.is_symlink() or path.stat().st_mode & stat.S_IROTH, path
        assert not path.is_dir() or path.stat().st_mode & stat.S_IXOTH, path


def test_dry_run_predicts_and_changes_nothing(host):
    foretold = host.installed(host.bundle(), check=True)
    assert foretold["changed"] and not host.root.exists()
    host.installed(host.bundle())
    assert host.installed(host.bundle(), check=True) == NOTHING
    name = host.library().name
    upgrade = host.installed(host.bundle("two"), check=True)
    assert any(step.endswith(name) and step.startswith("remove ") for step in upgrade["done"])
    assert host.library().name == name
    away = host.installed(host.bundle(state="absent"), check=True)
    assert {step.partition(" ")[2] for step in away["done"]} == {str(host.root / path) for path in host.files()}


def test_removal_leaves_nothing(host):
    host.installed(host.bundle(services={"a.service": "a"}))
    assert host.installed(host.bundle(state="absent"))["changed"]
    assert host.files() == set()
    assert not (host.root / "usr/lib/openfleet-gpu").exists()
    assert not (host.root / "etc/systemd/system/a.service.d").exists()
    assert host.installed(host.bundle(state="absent")) == NOTHING


def test_library_stays_while_tenants_exist(host):
    host.installed(host.bundle())
    host.tenant("notebook-a", quota="version 1\n")
    there = host.files()
    assert "notebook-a" in host.refused(host.bundle(state="absent"))
    assert host.files() == there
    assert host.installed(host.bundle(state="absent"), check=True)["changed"]


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param("usr/bin/vgpu-top", marks=pytest.mark.thorough),
        pytest.param("usr/bin/vgpu-run", marks=pytest.mark.thorough),
        "library",
        "link",
        f"{DIRECTORY}/front/libcuda.so.1",
    ],
)
def test_damaged_or_missing_files_are_repaired(host, damaged):
    host.installed(host.bundle())
    path = {
        "library": host.library(),
        "link": host.root / DIRECTORY / "libopenfleet-vgpu.so",
    }.get(damaged, host.root / damaged)
    path.unlink()
    if damaged == "library":
        path.write_bytes(b"")
    assert host.installed(host.bundle())["changed"]
    assert version_in(host.library()) == f"{host.root} one"
    assert host.installed(host.bundle()) == NOTHING


# --- versions -----------------------------------------------------------------------------------


def test_old_version_is_removed_when_no_process_maps_it(host):
    host.installed(host.bundle("one"))
    first = host.library()
    # A tenant's process has loaded the library.
    program = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print('mapped', flush=True); sys.stdin.read()"
    tenant = subprocess.Popen(
        [sys.executable, "-c", program, str(first)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert tenant.stdout.readline() == "mapped\n"
        assert host.installed(host.bundle("two"))["changed"]
        assert version_in(host.library()) == f"{host.root} two"
        assert first.exists()
        assert host.installed(host.bundle("two")) == NOTHING
        assert tenant.poll() is None
    finally:
        tenant.communicate()
    assert host.installed(host.bundle("two"))["done"] == [f"remove {first}"]
    assert host.installed(host.bundle("two")) == NOTHING


def test_library_exists_at_any_time(host, tmp_path):
    """Replace the library atomically.

    A tenant that starts during an upgrade gets a complete library, either the old or the new one.
    """
    host.installed(host.bundle("one"))
    link = host.root / DIRECTORY / "libopenfleet-vgpu.so"
    stop = tmp_path / "stop"
    program = (
        "import os, sys\nlooks = 0\n"
        "while not os.path.exists(sys.argv[2]):\n"
        "    data = open(sys.argv[1], 'rb').read()\n"
        "    assert data[:4] == b'\\x7fELF' and len(data) > 1000, data[:10]\n"
        "    looks += 1\n"
        "print(looks)"
    )
    looking = subprocess.Popen(
        [sys.executable, "-c", program, str(link), str(stop)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for version in ("two", "three", "four"):
        host.installed(host.bundle(version))
    stop.touch()
    told, problem = looking.communicate()
    assert looking.returncode == 0, problem
    assert int(told) > 0


def test_unloadable_library_is_not_installed(host):
    host.installed(host.bundle("one"))
    there = host.files()
    # The dynamic loader resolves the missing symbol only when a program loads the library.
    broken = "int missing(void);\nint (*pointer)(void) = missing;\n"
    bundle = host.bundle(source=source_of("broken", {"parts/library.c": broken}))
    assert "cannot be loaded" in host.refused(bundle)
    assert host.files() == there
    assert version_in(host.library()) == f"{host.root} one"


def test_failed_build_keeps_the_current_library(host):
    host.installed(host.bundle("one"))
    there = host.files()
    assert "error" in host.refused(host.bundle(source=source_of("x", {"parts/library.c": "this is no C\n"})))
    assert host.files() == there


# --- prebuilt files -----------------------------------------------------------------------------


def test_prebuilt_files_need_no_compiler(host, tmp_path):
    given = built(tmp_path, "theirs")
    bundle = host.bundle(source={}, built=given)
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "true").symlink_to("/bin/true")
    host.environment["PATH"] = str(programs)
    assert host.installed(bundle)["changed"]
    assert version_in(host.library()) == "theirs"
    assert host.installed(bundle) == NOTHING


def test_prebuilt_files_are_verified_on_the_controller(tmp_path):
    given = built(tmp_path, "theirs")
    folder = tmp_path / "built/build"
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in given}
    files = [{"path": str(folder / name), "sha256": checksum.upper()} for name, checksum in sums.items()]
    read = limiter_sources.sources(limiter_sources.built(files))
    assert {name: read["built/" + name] for name in given} == given and "vgpu-run" in read
    assert not any(name.startswith("src/") for name in read)
    with pytest.raises(FleetError, match=r"vgpu_limiter_files: .*vgpu-top.*has 0{64}"):
        limiter_sources.built([{"path": str(folder / "vgpu-top"), "sha256": "0" * 64}])
    with pytest.raises(FleetError, match=r"it lacks libcuda\.so\.1 and vgpu-top"):
        limiter_sources.built(files[:1])
    with pytest.raises(FleetError, match=r"gone: it cannot be read"):
        limiter_sources.built([{"path": str(folder / "gone")}])


def test_without_prebuilt_files_the_roles_source_is_built():
    """Build from the role's sources, and send no other files.

    Build results or documentation must not cause rebuilds on hosts.
    """
    source = FILES / "src"
    made_of = [path for path in source.rglob("*") if path.name == "Makefile" or path.suffix in (".c", ".h")]
    read = limiter_sources.sources({})
    assert set(read) == {"src/%s" % path.relative_to(source) for path in made_of} | {
        "vgpu-run",
        "openfleet-vgpu.cil",
        "openfleet-vgpu.apparmor",
    }
    assert "src/formats/quota.c" in read


@pytest.mark.host_python
def test_file_for_another_architecture_is_refused(host, tmp_path):
    given = built(tmp_path, "theirs")
    content = bytearray(base64.b64decode(given["libopenfleet-vgpu.so"]))
    content[18:20] = (8).to_bytes(2, "little")  # MIPS, which elf.h calls EM_MIPS
    given["libopenfleet-vgpu.so"] = base64.b64encode(content).decode()
    assert "libopenfleet-vgpu.so is not a program or library for" in host.refused(host.bundle(source={}, built=given))
    assert not host.root.exists()


def test_missing_compiler_changes_nothing(host, tmp_path):
    host.environment["PATH"] = str(tmp_path)
    done = host.run(host.bundle())
    assert result(done) == {"changed": False, "done": [], "missing": ["cc", "make"]}
    assert not host.root.exists()


def test_installed_library_needs_no_compiler(host, tmp_path):
    host.installed(host.bundle())
    host.environment["PATH"] = str(tmp_path)
    assert host.installed(host.bundle()) == NOTHING


# --- services -----------------------------------------------------------------------------------


def test_units_become_tenants_and_stop_being_ones(host):
    folder = host.root / "etc/systemd/system"
    host.installed(host.bundle(services={"a.service": "tenant-a", "job@.service": "b"}))
    text = (folder / "a.service.d/50-openfleet-vgpu.conf").read_text()
    # The path has no prefix `-`, so the unit does not start if the tenant is missing.
    assert "EnvironmentFile=/etc/openfleet-gpu/vgpu/tenant-a/env\n" in text
    link = folder / "a.service.d/51-openfleet-vgpu-tenant.conf"
    assert os.readlink(link) == "/etc/openfleet-gpu/vgpu/tenant-a/systemd.conf"
    other = folder / "job@.service.d/own.conf"
    other.write_text("[Service]\n")
    host.installed(host.bundle(services={"a.service": "c"}))
    assert "/vgpu/c/env" in (folder / "a.service.d/50-openfleet-vgpu.conf").read_text()
    assert [path.name for path in (folder / "job@.service.d").iterdir()] == ["own.conf"]
    host.installed(host.bundle())
    assert not (folder / "a.service.d").exists() and other.exists()


@pytest.mark.parametrize("services", [{"../a.service": "a"}, {"a": "a"}, {"a.service": "../b"}, {"a.service": ".."}])
def test_invalid_names_of_units_and_tenants_are_refused(host, services):
    assert "vgpu_limiter_services" in host.refused(host.bundle(services=dict(services, **{"0.service": "a"})))
    # The module has not written the valid entries before the invalid one either, and has not installed the library.
    assert not host.root.exists()


@pytest.fixture
def booted(host: Host, tmp_path) -> Path:
    """Return the call log of a stand-in for systemctl, on a host with systemd.

    The stand-in fails if the file `broken` exists.
    """
    (host.root / "run/systemd/system").mkdir(parents=True)
    calls, programs = tmp_path / "calls", tmp_path / "programs"
    programs.mkdir()
    calls.write_text("")
    program = programs / "systemctl"
    program.write_text(f'#!/bin/sh\necho "$*" >>{calls}\n! [ -e {tmp_path}/broken ]\n')
    program.chmod(0o755)
    host.environment["PATH"] = f"{programs}:{os.environ['PATH']}"
    return calls


def test_systemd_reloads_only_after_changed_drop_ins(host, booted):
    host.installed(host.bundle())
    assert booted.read_text() == ""
    named = host.bundle(services={"a.service": "a"})
    assert host.installed(named, check=True)["changed"] and booted.read_text() == ""
    host.installed(named)
    assert host.installed(named) == NOTHING
    assert booted.read_text().splitlines() == ["daemon-reload"]
    host.installed(host.bundle(state="absent"))
    assert booted.read_text().splitlines() == ["daemon-reload"] * 2
    assert host.files() == set()


@pytest.mark.parametrize("then", ["present", "absent"])
def test_next_run_repeats_a_failed_reload(host, booted, tmp_path, then):
    """Repeat a failed reload of systemd in the next run.

    The drop-ins are already correct, but without the reload the service would start without a quota.
    """
    host.installed(host.bundle(services={"a.service": "a"}))
    wanted = host.bundle(services={"a.service": "b"} if then == "present" else {}, state=then)
    (tmp_path / "broken").touch()
    assert "daemon-reload" in host.refused(wanted)
    (tmp_path / "broken").unlink()
    booted.write_text("")
    assert "reload systemd" in host.installed(wanted, check=True)["done"] and booted.read_text() == ""
    assert "reload systemd" in host.installed(wanted)["done"]
    assert booted.read_text().splitlines() == ["daemon-reload"]
    assert host.installed(wanted) == NOTHING


def test_run_interrupted_between_drop_ins_is_completed(host, booted):
    services = {"a.service": "a", "b.service": "b"}
    # The module cannot write the second drop-in, because a file blocks its directory.
    units = host.root / "etc/systemd/system"
    units.mkdir(parents=True)
    (units / "b.service.d").write_text("")
    assert host.run(host.bundle(services=services)).returncode == 1
    assert (units / "a.service.d").is_dir() and booted.read_text() == ""
    (units / "b.service.d").unlink()
    host.installed(host.bundle(services={"a.service": "a"}))
    assert booted.read_text().splitlines() == ["daemon-reload"]


# --- SELinux labels -----------------------------------------------------------------------------


@pytest.fixture
def labelled(host: Host, tmp_path) -> Path:
    """Return the call log of stand-ins for SELinux tools, on a host with SELinux."""
    (host.root / "sys/fs/selinux").mkdir(parents=True)
    (host.root / "sys/fs/selinux/enforce").write_text("1")
    calls, modules, programs = tmp_path / "calls", tmp_path / "modules", tmp_path / "programs"
    programs.mkdir()
    modules.write_text("")
    for name in ("semodule", "restorecon", "setenforce"):
        program = programs / name
        program.write_text(
            "#!/bin/sh\n"
            f'echo "{name} $*" >>{calls}\n'
            f'case {name}$1 in semodule-l) cat {modules} ;; semodule--install) grep -q container_file_t "$2" && '
            f"echo openfleet-vgpu >{modules} ;; semodule--remove) : >{modules} ;; esac\n"
        )
        program.chmod(0o755)
    host.environment["PATH"] = f"{programs}:{os.environ['PATH']}"
    return calls


def test_labels_are_set_once_and_removed(host, labelled):
    host.tenant("a", quota="version 1\n")
    assert host.installed(host.bundle(), check=True)["changed"] and not labelled.exists()
    host.installed(host.bundle())
    first, second = labelled.read_text().splitlines()
    assert first.startswith("semodule --install ") and first.endswith("/openfleet-vgpu.cil")
    assert second == f"restorecon -R {host.root / DIRECTORY} {host.root / 'etc/openfleet-gpu/vgpu'}"
    labelled.unlink()
    assert host.installed(host.bundle()) == NOTHING
    assert not labelled.exists()
    (host.root / "etc/openfleet-gpu/vgpu/a/quota").unlink()
    host.installed(host.bundle(state="absent"))
    assert labelled.read_text().splitlines() == ["semodule -l", "semodule --remove openfleet-vgpu"]


def test_removed_selinux_module_does_not_block(host, labelled, tmp_path):
    host.installed(host.bundle())
    (tmp_path / "modules").write_text("")
    host.installed(host.bundle(state="absent"))
    assert "--remove" not in labelled.read_text()


def test_selinux_without_its_tool_is_reported(host, labelled, tmp_path):
    host.environment["PATH"] = "/nowhere"
    before = host.files()
    assert "Install policycoreutils" in host.refused(host.bundle(source={}, built=built(tmp_path, "theirs")))
    assert host.files() == before


def test_next_run_sets_labels_that_failed(host, labelled, tmp_path):
    restorecon = tmp_path / "programs" / "restorecon"
    works = restorecon.read_text()
    restorecon.write_text("#!/bin/sh\nexit 1\n")
    assert "restorecon" in host.refused(host.bundle())
    restorecon.write_text(works)
    labelled.unlink()
    host.installed(host.bundle())
    assert "restorecon -R" in labelled.read_text()


def test_a_host_without_selinux_gets_no_module(host):
    host.installed(host.bundle())
    assert not list(host.root.rglob("*.cil"))


def test_apparmor_profiles_can_include_the_tenants_rules(host):
    folder = host.root / "etc/apparmor.d/abstractions"
    folder.mkdir(parents=True)
    host.installed(host.bundle())
    rules = (folder / "openfleet-vgpu").read_text()
    assert "/etc/openfleet-gpu/vgpu/{,**} r," in rules
    host.installed(host.bundle(state="absent"))
    assert list(folder.iterdir()) == []
