# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Install or remove the vGPU limiter.

This includes the library, commands, drop-ins for tenants' units, and labels for confined programs. The library's file
name contains its version. A link to the file is replaced atomically, so a process that starts finds either the old or
the new library. A running process keeps the file that it has mapped.

`Sources` has texts by name: `src/PATH` for files to build, `built/NAME` (in Base64) for files that were built
elsewhere, and other names for files that are installed unchanged.
"""

from __future__ import annotations

import base64
import platform
import re
import tempfile
import time
from pathlib import Path
from typing import Any, Mapping

from .. import systemd
from ..holders.tasks import folder_of, live_task
from ..processes.accounts import account_of
from ..processes.command import program
from ..processes.file_worker import NoAnswerError, ask, one_look, task
from ..processes.proc_files import LINE_END
from .files import Installation, InstallError
from .manifest import Manifest
from .sources import Sources
from .trees import link

BUILD_PROGRAMS = ("cc", "make")

# Files of an installation, relative to the root.
DIRECTORY = "usr/lib/openfleet-gpu/vgpu"
LIBRARY = "libopenfleet-vgpu.so"
LINK = DIRECTORY + "/" + LIBRARY
# Containers mount this file as /etc/ld.so.preload.
PRELOAD = DIRECTORY + "/ld.so.preload"
# The library that containers load as libcuda.so.1 in place of the driver's file, and the loader configuration with the
# library's folder.
FRONT = "libcuda.so.1"
FRONT_PATH, FRONT_CONF = DIRECTORY + "/front/" + FRONT, DIRECTORY + "/front.conf"
# Files that a build creates.
BUILT = (LIBRARY, FRONT, "vgpu-top")
# Checksums of the installed files. This file is written last.
MANIFEST = DIRECTORY + "/manifest.json"
RUN, TOP = "usr/bin/vgpu-run", "usr/bin/vgpu-top"
# The SELinux module as installed. The file name is the module's name.
SELINUX = DIRECTORY + "/openfleet-vgpu.cil"
APPARMOR = "etc/apparmor.d/abstractions/openfleet-vgpu"
UNITS = "etc/systemd/system"
# This file exists while changed drop-ins wait for a systemd reload. A boot reads the drop-ins and removes the file.
UNREAD = "run/openfleet-gpu/vgpu-drop-ins-changed"
DROP_IN, TENANTS_DROP_IN = "50-openfleet-vgpu.conf", "51-openfleet-vgpu-tenant.conf"
TENANTS = "etc/openfleet-gpu/vgpu"
REGIONS = "run/openfleet-gpu/vgpu"

# Time limit in seconds for reading the mappings of all processes.
_LOOK_SECONDS = 20.0

UNIT_NAME = re.compile(r"[A-Za-z0-9:_.@\\-]+\.service\Z")
TENANT_NAME = re.compile(r"(?!\.\.?\Z)[A-Za-z0-9._-]+\Z")

# Value of e_machine in ELF files, by architecture.
MACHINES = {"x86_64": 62, "aarch64": 183}


def install(target: Installation, services: Mapping[str, str], built: bool, sources: Sources) -> dict[str, Any]:
    """Install the limiter, from files that were built elsewhere or are built here.

    If build programs are missing, nothing is changed, and the result names the programs.
    """
    _refuse_names(services)
    installed = _Installed(target, sources)
    missing: list[str] = []
    given = None
    if not installed.is_whole():
        if not built and not installed.has_library():
            missing = [name for name in BUILD_PROGRAMS if not program(name)]
        if missing and not target.check:
            return {"missing": missing}
        given = sources.texts()
        _refuse_selinux(target, given)
        binaries = {name: _binary(name, given["built/" + name]) for name in BUILT} if built else {}
        if missing:
            target.done.append("install packages for %s" % ", ".join(missing))
        if not installed.has_library():
            _install_library(target, installed.library, given, binaries)
        target.write(RUN, given["vgpu-run"].encode(), 0o755)
    target.write(PRELOAD, b"/" + LINK.encode() + b"\n")
    target.write(FRONT_CONF, b"/" + str(Path(FRONT_PATH).parent).encode() + b"\n")
    link(target, LINK, Path(installed.library).name)
    if given is not None:
        _install_labels(target, given)
        # Record the files last, so that an interrupted installation is repeated.
        installed.record()
    _remove_old_versions(target, Path(installed.library).name)
    _install_services(target, services)
    return {"missing": missing}


def _refuse_names(services: Mapping[str, str]) -> None:
    for unit, tenant in sorted(services.items()):
        if not UNIT_NAME.match(unit) or not TENANT_NAME.match(tenant):
            raise InstallError(
                "vgpu_limiter_services: %s: %s" % (unit, tenant),
                "this is not a unit name and a tenant name",
                "Write a unit such as notebook.service and a tenant of gpu_layout.",
            )


# --- the library and the commands ---------------------------------------------------------------


class _Installed:
    """The installed files, compared with the manifest."""

    def __init__(self, target: Installation, sources: Sources) -> None:
        self._target = target
        self._manifest = Manifest(target, MANIFEST, platform.machine(), sources.digest)
        self.library = "%s.%s" % (LINK, self._manifest.version)

    def has_library(self) -> bool:
        """Return whether the built files are installed and unchanged."""
        return self._manifest.holds(self.library, FRONT_PATH, TOP)

    def is_whole(self) -> bool:
        """Return whether all files from the sources are installed and unchanged."""
        labels = [SELINUX] if _has_selinux(self._target) else []
        labels += [APPARMOR] if _has_apparmor(self._target) else []
        return self.has_library() and self._manifest.holds(RUN, *labels)

    def record(self) -> None:
        """Write the manifest for the current files."""
        self._manifest.record((self.library, FRONT_PATH, TOP, RUN, SELINUX, APPARMOR))


def _install_library(
    target: Installation, library: str, given: Mapping[str, str], binaries: Mapping[str, bytes]
) -> None:
    """Install the library, libcuda.so.1 for containers, and vgpu-top."""
    if target.check:
        target.done.append("install %s" % target.path(library))
        return
    files = binaries or _compiled(target, given)
    target.write(library, files[LIBRARY], 0o755)
    _refuse_what_does_not_load(target, target.path(library))
    target.write(FRONT_PATH, files[FRONT], 0o755)
    target.write(TOP, files["vgpu-top"], 0o755)


def _binary(name: str, encoded: str) -> bytes:
    """Return a file that was built elsewhere.

    Raises InstallError if it is for another kind of machine.
    """
    content, machine = base64.b64decode(encoded), platform.machine()
    if content[:4] != b"\x7fELF" or int.from_bytes(content[18:20], "little") != MACHINES.get(machine):
        raise InstallError(
            "vgpu_limiter_files",
            "%s is not a program or library for this host (%s)" % (name, machine),
            "Build it on a host with this architecture, or set vgpu_limiter_source: host.",
        )
    return content


def _compiled(target: Installation, given: Mapping[str, str]) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="openfleet-vgpu-") as directory:
        for name, text in given.items():
            if name.startswith("src/"):
                file = Path(directory, name[len("src/") :])
                file.parent.mkdir(exist_ok=True)
                file.write_text(text, encoding="utf-8")
        target.run("make", "-s", "-j2", "-C", directory, "BUILD=build")
        return {name: Path(directory, "build", name).read_bytes() for name in BUILT}


def _refuse_what_does_not_load(target: Installation, library: Path) -> None:
    """Raise InstallError if the library cannot be loaded.

    Otherwise, the dynamic loader would only print a warning and start programs without the library.
    """
    done = target.call([program("true") or "/bin/true"], env={"LD_PRELOAD": str(library)})
    output = (done.stdout + done.stderr).strip()
    if done.returncode or output:
        library.unlink()
        raise InstallError(
            str(library),
            "the library cannot be loaded on this host, so it was not installed: %s"
            % (output or "status %d" % done.returncode),
        )


def _remove_old_versions(target: Installation, current: str) -> None:
    """Remove old versions of the library that no process has mapped."""
    old = [path.name for path in sorted(target.path(DIRECTORY).glob(LIBRARY + ".*")) if path.name != current]
    used = _mapped(old) if old else set()
    for name in old:
        if name not in used:
            target.remove("%s/%s" % (DIRECTORY, name))


def _mapped(names: list[str], proc: str = "/proc") -> set[str]:
    """Return the names of the files that any process has mapped.

    The files' paths do not matter, because containers may mount them elsewhere. Returns all names if the mappings
    cannot be read, for example because a user's file system blocks the read.
    """
    mapped: set[str] = set()
    with one_look(time.monotonic() + _LOOK_SECONDS):
        for process in Path(proc).glob("[0-9]*"):
            if process.name == "1":
                continue  # PID 1 is never a tenant, and root in a container may not read its mappings
            try:
                # If the main thread has ended, read the mappings from another thread's folder.
                folder = folder_of(proc, int(process.name), live_task(proc, int(process.name)))
                mapped.update(ask(account_of(str(process)), _mapped_by, folder + "/maps", names))
            except (FileNotFoundError, ProcessLookupError):
                continue  # the process has ended
            except (OSError, NoAnswerError):
                return set(names)
    return mapped


@task
def _mapped_by(path: str, names: list[str]) -> list[str]:
    """Return the files that a process has mapped.

    Runs in a child process, because /proc/PID/maps may be huge or block.
    """
    mapped = set()
    with open(path, errors="replace", newline=LINE_END) as lines:  # noqa: PTH123
        for line in lines:
            if LIBRARY in line:
                mapped.add(line.rstrip("\n").replace(" (deleted)", "").rpartition("/")[2])
    return sorted(mapped.intersection(names))


# --- services that are tenants ------------------------------------------------------------------


def _install_services(target: Installation, services: Mapping[str, str]) -> None:
    """Write the drop-ins and reload systemd.

    A service would start without a quota if systemd had not loaded its drop-in.
    """
    drop_ins = Installation(target.root, target.check, target.call)
    # systemd reads the drop-ins when it starts.
    booted = systemd.booted(target.root)
    unread = booted and drop_ins.mark(UNREAD)
    _write_drop_ins(drop_ins, services)
    if booted and (drop_ins.done or unread):
        drop_ins.done.append("reload systemd")
        # The links to tenants' drop-ins are unit files, too.
        drop_ins.reload(changed=True)
        target.reloads = True
        drop_ins.finish()
        target.prune(target.path(UNREAD).parent, report=False)
    target.done += drop_ins.done
    target.differences += drop_ins.differences


def _write_drop_ins(target: Installation, services: Mapping[str, str]) -> None:
    """Write drop-ins that run units as tenants.

    A unit whose tenant is missing fails to start, instead of running without a limit.
    """
    wanted = set()
    for unit, tenant in sorted(services.items()):
        folder = "%s/%s.d" % (UNITS, unit)
        wanted.add(folder)
        text = (
            "# Written by openfleet.gpu from vgpu_limiter_services: the unit runs as the tenant %s.\n"
            "[Service]\nEnvironmentFile=/%s/%s/env\nReadWritePaths=-/%s\n" % (tenant, TENANTS, tenant, REGIONS)
        )
        target.write("%s/%s" % (folder, DROP_IN), text.encode())
        # Link to further settings of the tenant's provider, such as a slice. The link's target exists as long as the
        # tenant.
        link(target, "%s/%s" % (folder, TENANTS_DROP_IN), "/%s/%s/systemd.conf" % (TENANTS, tenant))
    for path in sorted(target.path(UNITS).glob("*.service.d")):
        folder = str(path.relative_to(target.root))
        if folder not in wanted:
            removed = [target.remove("%s/%s" % (folder, name)) for name in (DROP_IN, TENANTS_DROP_IN)]
            if any(removed):
                target.prune(path, report=False)


# --- labels for confined containers and services ------------------------------------------------


def _has_selinux(target: Installation) -> bool:
    return target.path("sys/fs/selinux/enforce").exists()


def _has_apparmor(target: Installation) -> bool:
    return target.path(APPARMOR).parent.is_dir()


def _lacks_module(target: Installation, given: Mapping[str, str]) -> bool:
    """Return whether the SELinux module must be installed.

    Returns False on a host without SELinux.
    """
    module = target.path(SELINUX)
    return _has_selinux(target) and not (module.is_file() and module.read_bytes() == given[Path(SELINUX).name].encode())


def _refuse_selinux(target: Installation, given: Mapping[str, str]) -> None:
    if _lacks_module(target, given) and not program("semodule"):
        raise InstallError(
            "this host",
            "SELinux is enabled, but semodule, which labels the limiter's files, is not installed",
            "Install policycoreutils.",
        )


def _install_labels(target: Installation, given: Mapping[str, str]) -> None:
    """Install the labels. Never changes SELinux's mode."""
    if _lacks_module(target, given):
        module = given[Path(SELINUX).name].encode()
        with tempfile.TemporaryDirectory(prefix="openfleet-vgpu-") as directory:
            file = Path(directory, Path(SELINUX).name)
            file.write_bytes(module)
            target.run("semodule", "--install", str(file))
        folders = [str(target.path(path)) for path in (DIRECTORY, TENANTS, REGIONS) if target.path(path).exists()]
        if folders and program("restorecon"):
            target.run("restorecon", "-R", *folders)
        # Write this file last, so that an interrupted installation is repeated.
        target.write(SELINUX, module)
    if _has_apparmor(target):
        target.write(APPARMOR, given["openfleet-vgpu.apparmor"].encode())


# --- removal ------------------------------------------------------------------------------------


def uninstall(target: Installation) -> None:
    """Remove everything. Running processes keep the files that they have mapped."""
    tenants = sorted(path.parent.name for path in target.path(TENANTS).glob("*/quota"))
    # In check mode, the layout still has its tenants.
    if tenants and not target.check:
        raise InstallError(
            "this host",
            "it has tenants, whose processes would start without a quota: %s" % ", ".join(tenants),
            "Remove them from gpu_layout first, or use the playbook reset.",
        )
    _install_services(target, {})
    if target.path(SELINUX).exists():
        module = target.path(SELINUX).stem
        if program("semodule") and module in target.run("semodule", "-l").split():
            target.run("semodule", "--remove", module)
        target.remove(SELINUX)
    # Remove the link before the library, so that no process finds a library that is being removed.
    for path in (APPARMOR, RUN, TOP, MANIFEST, LINK):
        target.remove(path)
    front = target.path(FRONT_PATH).parent
    for path in [*sorted(front.glob("*")), *sorted(target.path(DIRECTORY).glob("*"))]:
        target.remove(str(path.relative_to(target.root)))
    for folder in (front, front.parent, front.parent.parent):
        target.prune(folder, report=False)
