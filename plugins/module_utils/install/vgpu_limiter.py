# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The vGPU limiter: its library and commands, the units that run as tenants, and labels for confined programs; or none of it.

The library has a version in its name and is found through a link, which a rename replaces. So a process that starts finds the old
one or the new one, and one that runs keeps the file that it has mapped.

The sources are texts by name: `src/PATH` to build from, or `built/NAME` in Base64 of files that were built elsewhere, and
the files that are installed as they are.
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
from ..accounts import account_of
from ..command import program
from ..file_worker import NoAnswerError, ask, one_look, task
from ..holders.tasks import folder_of, live_task
from ..proc_files import LINE_END
from .files import Installation, InstallError
from .manifest import Manifest
from .sources import Sources
from .trees import link

BUILD_PROGRAMS = ("cc", "make")

#: Everything an installation consists of, below the root given.
DIRECTORY = "usr/lib/openfleet-gpu/vgpu"
LIBRARY = "libopenfleet-vgpu.so"
LINK = DIRECTORY + "/" + LIBRARY
#: Containers have it as /etc/ld.so.preload.
PRELOAD = DIRECTORY + "/ld.so.preload"
#: What containers find as libcuda.so.1 before the driver's, and the line by which they do: its folder.
FRONT = "libcuda.so.1"
FRONT_PATH, FRONT_CONF = DIRECTORY + "/front/" + FRONT, DIRECTORY + "/front.conf"
#: What a build makes.
BUILT = (LIBRARY, FRONT, "vgpu-top")
#: What was installed, by checksums. It comes last.
MANIFEST = DIRECTORY + "/manifest.json"
RUN, TOP = "usr/bin/vgpu-run", "usr/bin/vgpu-top"
#: What semodule was given; the name is the module's.
SELINUX = DIRECTORY + "/openfleet-vgpu.cil"
APPARMOR = "etc/apparmor.d/abstractions/openfleet-vgpu"
UNITS = "etc/systemd/system"
#: Present while systemd has not read drop-ins that changed. A boot, which removes it, reads them.
UNREAD = "run/openfleet-gpu/vgpu-drop-ins-changed"
DROP_IN, TENANTS_DROP_IN = "50-openfleet-vgpu.conf", "51-openfleet-vgpu-tenant.conf"
TENANTS = "etc/openfleet-gpu/vgpu"
REGIONS = "run/openfleet-gpu/vgpu"

#: For a look at what all processes have mapped.
_LOOK_SECONDS = 20.0

UNIT_NAME = re.compile(r"[A-Za-z0-9:_.@\\-]+\.service\Z")
TENANT_NAME = re.compile(r"(?!\.\.?\Z)[A-Za-z0-9._-]+\Z")

#: e_machine of an ELF file.
MACHINES = {"x86_64": 62, "aarch64": 183}


def install(target: Installation, services: Mapping[str, str], built: bool, sources: Sources) -> dict[str, Any]:
    """Install what was built elsewhere, or build it here. Return the programs that are missing for that, with nothing changed."""
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
        # Last, so that what fails or is interrupted before it is done again.
        installed.record()
    _remove_old_versions(target, Path(installed.library).name)
    _install_services(target, services)
    return {"missing": missing}


def _refuse_names(services: Mapping[str, str]) -> None:
    for unit, tenant in sorted(services.items()):
        if not UNIT_NAME.match(unit) or not TENANT_NAME.match(tenant):
            raise InstallError(
                "vgpu_limiter_services: %s: %s" % (unit, tenant),
                "this is no name of a unit and of a tenant",
                "It names a unit as notebook.service and a tenant of gpu_layout.",
            )


# --- the library and the commands ---------------------------------------------------------------


class _Installed:
    """What the manifest says of the files, and whether it holds."""

    def __init__(self, target: Installation, sources: Sources) -> None:
        self._target = target
        self._manifest = Manifest(target, MANIFEST, platform.machine(), sources.digest)
        self.library = "%s.%s" % (LINK, self._manifest.version)

    def has_library(self) -> bool:
        """Return whether all that a build makes is as it was installed."""
        return self._manifest.holds(self.library, FRONT_PATH, TOP)

    def is_whole(self) -> bool:
        """Return whether all that comes from the sources is as it was installed, and nothing is missing."""
        labels = [SELINUX] if _has_selinux(self._target) else []
        labels += [APPARMOR] if _has_apparmor(self._target) else []
        return self.has_library() and self._manifest.holds(RUN, *labels)

    def record(self) -> None:
        """Write the manifest of what is there now."""
        self._manifest.record((self.library, FRONT_PATH, TOP, RUN, SELINUX, APPARMOR))


def _install_library(
    target: Installation, library: str, given: Mapping[str, str], binaries: Mapping[str, bytes]
) -> None:
    """Write the library with its front and vgpu-top."""
    if target.check:
        target.done.append("install %s" % target.path(library))
        return
    made = binaries or _compiled(target, given)
    target.write(library, made[LIBRARY], 0o755)
    _refuse_what_does_not_load(target, target.path(library))
    target.write(FRONT_PATH, made[FRONT], 0o755)
    target.write(TOP, made["vgpu-top"], 0o755)


def _binary(name: str, encoded: str) -> bytes:
    """Return a file that was built elsewhere. Raises InstallError if it is for another kind of machine."""
    content, machine = base64.b64decode(encoded), platform.machine()
    if content[:4] != b"\x7fELF" or int.from_bytes(content[18:20], "little") != MACHINES.get(machine):
        raise InstallError(
            "vgpu_limiter_files",
            "%s is no program or library for %s, which this host is" % (name, machine),
            "Build it on a host of its kind, or set vgpu_limiter_source: host.",
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
    """Where it cannot load a library at all, the dynamic loader only warns, and starts the program without."""
    done = target.call([program("true") or "/bin/true"], env={"LD_PRELOAD": str(library)})
    said = (done.stdout + done.stderr).strip()
    if done.returncode or said:
        library.unlink()
        raise InstallError(
            str(library),
            "the library cannot be loaded on this host, so it was not installed: %s"
            % (said or "status %d" % done.returncode),
        )


def _remove_old_versions(target: Installation, current: str) -> None:
    """Remove those that no process has mapped."""
    old = [path.name for path in sorted(target.path(DIRECTORY).glob(LIBRARY + ".*")) if path.name != current]
    used = _mapped(old) if old else set()
    for name in old:
        if name not in used:
            target.remove("%s/%s" % (DIRECTORY, name))


def _mapped(names: list[str], proc: str = "/proc") -> set[str]:
    """Those of the files that some process has mapped, by whatever path: containers may have them elsewhere.

    All of them where that is not known: a process that a file system of its user's own keeps waiting answers no look at it.
    """
    found: set[str] = set()
    with one_look(time.monotonic() + _LOOK_SECONDS):
        for process in Path(proc).glob("[0-9]*"):
            if process.name == "1":
                continue  # no tenant; and root of a container may not look at it
            try:
                # A main thread that has ended shows no mappings of its process.
                folder = folder_of(proc, int(process.name), live_task(proc, int(process.name)))
                found.update(ask(account_of(str(process)), _mapped_by, folder + "/maps", names))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended
            except (OSError, NoAnswerError):
                return set(names)
    return found


@task
def _mapped_by(path: str, names: list[str]) -> list[str]:
    """Asked in a child: /proc/PID/maps has as many lines as the user likes, and may never answer."""
    found = set()
    with open(path, errors="replace", newline=LINE_END) as lines:  # noqa: PTH123
        for line in lines:
            if LIBRARY in line:
                found.add(line.rstrip("\n").replace(" (deleted)", "").rpartition("/")[2])
    return sorted(found.intersection(names))


# --- services that are tenants ------------------------------------------------------------------


def _install_services(target: Installation, services: Mapping[str, str]) -> None:
    """Write the drop-ins, which systemd then reads: a service of which it has not read them would start without a quota."""
    drop_ins = Installation(target.root, target.check, target.call)
    # systemd reads them when it starts.
    booted = systemd.booted(target.root)
    unread = booted and drop_ins.mark(UNREAD)
    _write_drop_ins(drop_ins, services)
    if booted and (drop_ins.done or unread):
        drop_ins.done.append("reload systemd")
        drop_ins.run("systemctl", "daemon-reload")
        drop_ins.finish()
        target.prune(target.path(UNREAD).parent, said=False)
    target.done += drop_ins.done
    target.differences += drop_ins.differences


def _write_drop_ins(target: Installation, services: Mapping[str, str]) -> None:
    """They make units run as tenants. A unit whose tenant is gone does not start, rather than without a quota."""
    wanted = set()
    for unit, tenant in sorted(services.items()):
        folder = "%s/%s.d" % (UNITS, unit)
        wanted.add(folder)
        text = (
            "# Written by openfleet.gpu from vgpu_limiter_services: the unit runs as the tenant %s.\n"
            "[Service]\nEnvironmentFile=/%s/%s/env\nReadWritePaths=-/%s\n" % (tenant, TENANTS, tenant, REGIONS)
        )
        target.write("%s/%s" % (folder, DROP_IN), text.encode())
        # What the tenant's provider wants besides, as a slice. It is there as long as the tenant is.
        link(target, "%s/%s" % (folder, TENANTS_DROP_IN), "/%s/%s/systemd.conf" % (TENANTS, tenant))
    for path in sorted(target.path(UNITS).glob("*.service.d")):
        folder = str(path.relative_to(target.root))
        if folder not in wanted:
            removed = [target.remove("%s/%s" % (folder, name)) for name in (DROP_IN, TENANTS_DROP_IN)]
            if any(removed):
                target.prune(path, said=False)


# --- labels for confined containers and services ------------------------------------------------


def _has_selinux(target: Installation) -> bool:
    return target.path("sys/fs/selinux/enforce").exists()


def _has_apparmor(target: Installation) -> bool:
    return target.path(APPARMOR).parent.is_dir()


def _lacks_module(target: Installation, given: Mapping[str, str]) -> bool:
    """Where SELinux is off, nothing is lacking."""
    there = target.path(SELINUX)
    return _has_selinux(target) and not (there.is_file() and there.read_bytes() == given[Path(SELINUX).name].encode())


def _refuse_selinux(target: Installation, given: Mapping[str, str]) -> None:
    if _lacks_module(target, given) and not program("semodule"):
        raise InstallError(
            "this host",
            "SELinux is on, and there is no semodule to label the limiter's files",
            "Install policycoreutils.",
        )


def _install_labels(target: Installation, given: Mapping[str, str]) -> None:
    """The mode of SELinux is never touched."""
    if _lacks_module(target, given):
        module = given[Path(SELINUX).name].encode()
        with tempfile.TemporaryDirectory(prefix="openfleet-vgpu-") as directory:
            file = Path(directory, Path(SELINUX).name)
            file.write_bytes(module)
            target.run("semodule", "--install", str(file))
        there = [str(target.path(path)) for path in (DIRECTORY, TENANTS, REGIONS) if target.path(path).exists()]
        if there and program("restorecon"):
            target.run("restorecon", "-R", *there)
        # Last, so that what fails or is interrupted before it is done again.
        target.write(SELINUX, module)
    if _has_apparmor(target):
        target.write(APPARMOR, given["openfleet-vgpu.apparmor"].encode())


# --- removal ------------------------------------------------------------------------------------


def uninstall(target: Installation) -> None:
    """Remove all of it. Running processes keep what they have mapped."""
    tenants = sorted(path.parent.name for path in target.path(TENANTS).glob("*/quota"))
    # A dry run comes here with the tenants that the layout would have taken away before.
    if tenants and not target.check:
        raise InstallError(
            "this host",
            "it has tenants, whose processes would start without a quota: %s" % ", ".join(tenants),
            "Take them out of gpu_layout first, or use the playbook reset.",
        )
    _install_services(target, {})
    if target.path(SELINUX).exists():
        module = target.path(SELINUX).stem
        if program("semodule") and module in target.run("semodule", "-l").split():
            target.run("semodule", "--remove", module)
        target.remove(SELINUX)
    # The link goes before the library: no process finds one that is about to go.
    for path in (APPARMOR, RUN, TOP, MANIFEST, LINK):
        target.remove(path)
    front = target.path(FRONT_PATH).parent
    for path in [*sorted(front.glob("*")), *sorted(target.path(DIRECTORY).glob("*"))]:
        target.remove(str(path.relative_to(target.root)))
    for folder in (front, front.parent, front.parent.parent):
        target.prune(folder, said=False)
