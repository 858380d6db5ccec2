# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installs the vGPU limiter on the host it runs on, or takes it away. The role vgpu_limiter runs it.

All of an installation comes as one JSON object on standard input, so that a run that changes nothing costs one
command on the host, not one for each file:

    {"state": "present", "source": {name: text}, "built": {name: {"content": base64, "sha256": text or null}},
     "run": text, "selinux": text, "apparmor": text, "services": {unit: tenant}}

One of `source` (built here) and `built` is empty. Prints {"changed": bool, "done": [text], "missing": [programs]}.
Exit status 3: programs are missing, and nothing was done.

The library has a version in its name and is found through a link, which a rename replaces. So a process that starts
finds the old one or the new one, and one that runs keeps the file that it has mapped.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

BUILD_PROGRAMS = ("cc", "make")
EXIT_MISSING = 3

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
#: There where systemd runs the host (sd_booted(3)).
SYSTEMD = "run/systemd/system"
#: There as long as systemd has not read drop-ins that changed. A boot, which removes it, reads them.
UNREAD = "run/openfleet-gpu/vgpu-drop-ins-changed"
DROP_IN, TENANTS_DROP_IN = "50-openfleet-vgpu.conf", "51-openfleet-vgpu-tenant.conf"
TENANTS = "etc/openfleet-gpu/vgpu"
REGIONS = "run/openfleet-gpu/vgpu"

UNIT_NAME = re.compile(r"[A-Za-z0-9:_.@\\-]+\.service\Z")
TENANT_NAME = re.compile(r"(?!\.\.?\Z)[A-Za-z0-9._-]+\Z")

#: e_machine of an ELF file.
MACHINES = {"x86_64": 62, "aarch64": 183}


class Installation:
    """The files below `root`; with `check` nothing is changed, only said."""

    def __init__(self, root: Path, check: bool) -> None:
        self.root, self.check = root, check
        self.done: list[str] = []

    def path(self, relative: str) -> Path:
        return self.root / relative

    def write(self, relative: str, content: bytes, mode: int = 0o644) -> bool:
        """True if the file was not so. A reader finds the old file or the new one, never part of one."""
        path = self.path(relative)
        if (
            path.is_file()
            and not path.is_symlink()
            and path.read_bytes() == content
            and stat.S_IMODE(path.stat().st_mode) == mode
        ):
            return False
        self.done.append("write %s" % path)
        if not self.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_name(path.name + ".new")
            put_new(new, content, mode)
            new.replace(path)
        return True

    def link(self, relative: str, to: str) -> bool:
        path = self.path(relative)
        if path.is_symlink() and os.readlink(str(path)) == to:
            return False
        self.done.append("link %s to %s" % (path, to))
        if not self.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_name(path.name + ".new")
            if new.is_symlink():
                new.unlink()
            new.symlink_to(to)
            new.replace(path)
        return True

    def remove(self, relative: str) -> bool:
        path = self.path(relative)
        if not (path.exists() or path.is_symlink()):
            return False
        self.done.append("remove %s" % path)
        if not self.check:
            path.unlink()
        return True

    def prune(self, relative: str) -> None:
        """A directory that is left empty."""
        path = self.path(relative)
        if not self.check and path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def put_new(path: Path, content: bytes, mode: int) -> None:
    """A file that is new: a link that somebody has put in its place is not followed."""
    if path.exists() or path.is_symlink():
        path.unlink()
    descriptor = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), mode)


def run(command: list[str], **more) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **more)
    output = done.stdout.decode(errors="replace")
    if done.returncode:
        sys.exit("%s failed with status %d:\n%s" % (" ".join(command), done.returncode, output))
    return output


def check(target: Installation, bundle: dict) -> None:
    """Refuses what could not be brought about, before anything changes."""
    for unit, tenant in sorted(bundle["services"].items()):
        if not UNIT_NAME.match(unit) or not TENANT_NAME.match(tenant):
            sys.exit(
                "vgpu_limiter_services: %s: %s: it names a unit as notebook.service and a tenant of gpu_layout"
                % (unit, tenant)
            )
    if lacks_module(target, bundle) and not shutil.which("semodule"):
        sys.exit("SELinux is on, and there is no semodule to label the limiter's files: install policycoreutils")


def install(target: Installation, bundle: dict, built: dict[str, bytes]) -> None:
    current = install_library(target, bundle, built)
    target.write(RUN, bundle["run"].encode(), 0o755)
    remove_old_versions(target, current)
    install_services(target, bundle["services"])
    install_labels(target, bundle)


# --- the library and vgpu-top -------------------------------------------------------------------


def install_library(target: Installation, bundle: dict, built: dict[str, bytes]) -> str:
    """Both, unless they are there as they came from what is asked for. Returns the library's name."""
    version = version_of(bundle, built)
    name = "%s.%s" % (LIBRARY, version)
    target.write(PRELOAD, b"/" + LINK.encode() + b"\n")
    target.write(FRONT_CONF, b"/" + str(Path(FRONT_PATH).parent).encode() + b"\n")
    if not is_installed(target, version):
        if target.check:
            target.done.append("install %s" % target.path(DIRECTORY + "/" + name))
        else:
            place(target, name, version, built or compiled(bundle["source"]))
    target.link(LINK, name)
    return name


def version_of(bundle: dict, built: dict[str, bytes]) -> str:
    """The same version is the same source on the same kind of machine, or the same files."""
    if built:
        return digest(*(built[name] for name in sorted(built)))
    parts = [platform.machine(), *(part for item in sorted(bundle["source"].items()) for part in item)]
    return digest(*(part.encode() for part in parts))


def place(target: Installation, name: str, version: str, built: dict[str, bytes]) -> None:
    library = "%s/%s" % (DIRECTORY, name)
    target.write(library, built[LIBRARY], 0o755)
    refuse_what_does_not_load(target.path(library))
    target.write(FRONT_PATH, built[FRONT], 0o755)
    target.write(TOP, built["vgpu-top"], 0o755)
    files = (library, FRONT_PATH, TOP)
    sums = {relative: hashlib.sha256(target.path(relative).read_bytes()).hexdigest() for relative in files}
    target.write(MANIFEST, (json.dumps({"version": version, "sha256": sums}, indent=2) + "\n").encode())


def is_installed(target: Installation, version: str) -> bool:
    try:
        manifest = json.loads(target.path(MANIFEST).read_bytes().decode())
        return manifest["version"] == version and all(
            hashlib.sha256(target.path(relative).read_bytes()).hexdigest() == checksum
            for relative, checksum in manifest["sha256"].items()
        )
    except (OSError, ValueError, KeyError):
        return False


def content_of(name: str, given: dict) -> bytes:
    """A file that was built elsewhere, if it is the one that was meant, and of this machine's kind."""
    content = base64.b64decode(given["content"])
    checksum = hashlib.sha256(content).hexdigest()
    if given["sha256"] and given["sha256"].lower() != checksum:
        sys.exit(
            "The SHA-256 of %s is %s, and vgpu_limiter_files says %s. Find out which of the two is right."
            % (name, checksum, given["sha256"])
        )
    machine = platform.machine()
    if content[:4] != b"\x7fELF" or int.from_bytes(content[18:20], "little") != MACHINES.get(machine):
        sys.exit(
            "%s is no program or library for %s, which this host is. Build it on a host of its kind, "
            "or set vgpu_limiter_source: host" % (name, machine)
        )
    return content


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def compiled(source: dict[str, str]) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="openfleet-vgpu-") as directory:
        for name, text in source.items():
            (Path(directory) / name).write_text(text, encoding="utf-8")
        run(["make", "-s", "-j2", "-C", directory, "BUILD=build"])
        return {name: (Path(directory) / "build" / name).read_bytes() for name in BUILT}


def refuse_what_does_not_load(library: Path) -> None:
    """Where it cannot load a library at all, the dynamic loader only warns, and starts the program without."""
    done = subprocess.run(
        [shutil.which("true") or "/bin/true"],
        env={"LD_PRELOAD": str(library), "LC_ALL": "C"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode or done.stdout:
        library.unlink()
        told = done.stdout.decode(errors="replace").strip() or "status %d" % done.returncode
        sys.exit("The library cannot be loaded on this host, so it was not installed: %s" % told)


def remove_old_versions(target: Installation, current: str) -> None:
    """Those that no process has mapped."""
    old = [path.name for path in sorted(target.path(DIRECTORY).glob(LIBRARY + ".*")) if path.name != current]
    used = mapped(old) if old else set()
    for name in old:
        if name not in used:
            target.remove("%s/%s" % (DIRECTORY, name))


def mapped(names: list[str]) -> set[str]:
    """Those of the files that some process has mapped, by whatever path: containers may have them elsewhere."""
    found: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == "1":
            continue  # no tenant; and root of a container may not look at it
        try:
            lines = (process / "maps").read_text(errors="replace").splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except OSError:
            return set(names)  # not known: all of them may be in use
        for line in lines:
            if LIBRARY in line:
                found.add(line.replace(" (deleted)", "").rpartition("/")[2])
    return found & set(names)


# --- services that are tenants ------------------------------------------------------------------


def install_services(target: Installation, services: dict[str, str]) -> None:
    """Drop-ins, which systemd then reads: a service of which it has not read them would start without a quota.

    Where an earlier run was cut off between the two, the files are as they should be, and only the mark tells.
    """
    if not target.path(SYSTEMD).is_dir():
        write_drop_ins(target, services)  # systemd reads them when it comes
        return
    foreseen = Installation(target.root, check=True)
    write_drop_ins(foreseen, services)
    mark = target.path(UNREAD)
    if not foreseen.done and not mark.exists():
        return
    if not target.check:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    write_drop_ins(target, services)
    target.done.append("reload systemd")
    if not target.check:
        run(["systemctl", "daemon-reload"])
        mark.unlink()
        target.prune(str(Path(UNREAD).parent))


def write_drop_ins(target: Installation, services: dict[str, str]) -> None:
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
        target.link("%s/%s" % (folder, TENANTS_DROP_IN), "/%s/%s/systemd.conf" % (TENANTS, tenant))
    for path in sorted(target.path(UNITS).glob("*.service.d")):
        folder = str(path.relative_to(target.root))
        if folder not in wanted:
            removed = [target.remove("%s/%s" % (folder, name)) for name in (DROP_IN, TENANTS_DROP_IN)]
            if any(removed):
                target.prune(folder)


# --- labels for confined containers and services ------------------------------------------------


def lacks_module(target: Installation, bundle: dict) -> bool:
    """Where SELinux is off, nothing is lacking."""
    given = target.path(SELINUX)
    return target.path("sys/fs/selinux/enforce").exists() and not (
        given.is_file() and given.read_bytes() == bundle["selinux"].encode()
    )


def install_labels(target: Installation, bundle: dict) -> None:
    """The mode of SELinux is never touched."""
    if lacks_module(target, bundle):
        module = bundle["selinux"].encode()
        if not target.check:
            with tempfile.TemporaryDirectory(prefix="openfleet-vgpu-") as directory:
                file = Path(directory) / Path(SELINUX).name
                file.write_bytes(module)
                run(["semodule", "--install", str(file)])
            relabel(target)
        # Last, so that what fails or is interrupted before it is done again.
        target.write(SELINUX, module)
    if target.path(APPARMOR).parent.is_dir():
        target.write(APPARMOR, bundle["apparmor"].encode())


def relabel(target: Installation) -> None:
    there = [str(target.path(p)) for p in (DIRECTORY, TENANTS, REGIONS) if target.path(p).exists()]
    if there and shutil.which("restorecon"):
        run(["restorecon", "-R", *there])


# --- removal ------------------------------------------------------------------------------------


def uninstall(target: Installation) -> None:
    """Running processes keep what they have mapped."""
    tenants = sorted(path.parent.name for path in target.path(TENANTS).glob("*/quota"))
    # A dry run comes here with the tenants that the layout would have taken away before.
    if tenants and not target.check:
        sys.exit(
            "The host has tenants, whose processes would start without a quota: %s. "
            "Take them out of gpu_layout first, or use the playbook reset." % ", ".join(tenants)
        )
    install_services(target, {})
    if target.path(SELINUX).exists():
        module = target.path(SELINUX).stem
        if not target.check and shutil.which("semodule") and module in run(["semodule", "-l"]).split():
            run(["semodule", "--remove", module])
        target.remove(SELINUX)
    target.remove(APPARMOR)
    target.remove(RUN)
    target.remove(TOP)
    target.remove(MANIFEST)
    # The link goes first: no process finds a library that is about to go.
    target.remove(LINK)
    folder = Path(FRONT_PATH).parent
    for path in [*sorted(target.path(str(folder)).glob("*")), *sorted(target.path(DIRECTORY).glob("*"))]:
        if path.name != folder.name:
            target.remove(str(path.relative_to(target.root)))
    target.prune(str(folder))
    target.prune(DIRECTORY)
    target.prune(str(Path(DIRECTORY).parent))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, only say what would change")
    parser.add_argument("--root", type=Path, default=Path("/"), help="install below this directory")
    options = parser.parse_args()
    os.umask(0o022)
    bundle = json.load(sys.stdin)
    target = Installation(options.root, options.check)
    missing: list[str] = []
    if bundle["state"] == "absent":
        uninstall(target)
    else:
        check(target, bundle)
        built = {name: content_of(name, given) for name, given in bundle["built"].items()}
        if not built and not is_installed(target, version_of(bundle, built)):
            missing = [program for program in BUILD_PROGRAMS if not shutil.which(program)]
        if missing and options.check:
            target.done.append("install packages for %s" % ", ".join(missing))
        if not missing or options.check:
            install(target, bundle, built)
    print(json.dumps({"changed": bool(target.done), "done": target.done, "missing": missing}))
    return EXIT_MISSING if missing else 0


if __name__ == "__main__":
    sys.exit(main())
