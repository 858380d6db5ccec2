# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installs the simulated GPUs on the host it runs on, or takes them away. The role gpu_simulator runs it.

All of an installation comes as one JSON object on standard input, so that a run that changes nothing costs one
command on the host, not one for each file:

    {"state": "present", "hide_real_gpus": false, "kernel_files": false, "configuration": {…},
     "source": {name: text}, "tool": {name: text}, "models": {name: text}}

Prints {"changed": bool, "done": [text], "missing": [programs]}. Exit status 3: programs are missing,
and nothing was done.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

LIBRARY_NAME = "libnvidia-ml.so.1"
BUILD_PROGRAMS = ("cc", "make")
EXIT_MISSING = 3

#: Both are there where a real driver is loaded and this host may use it. A container sees the former of its machine's
#: driver, and the real library makes the latter without any driver.
REAL_DRIVER = ("proc/driver/nvidia/version", "dev/nvidiactl")

#: Everything an installation consists of, below the root given.
LIBRARY_DIRECTORY = "usr/local/lib/gpusim"
TOOL = "usr/local/bin/gpusim"
SHARE_DIRECTORY = "usr/local/share/gpusim"
CONFIGURATION_DIRECTORY = "etc/gpusim"
LOADER_CONFIGURATION = "etc/ld.so.conf.d/000-gpusim.conf"
STATE_DIRECTORY = "var/lib/gpusim"
KERNEL_FILES_UNIT = "etc/systemd/system/gpusim-kernel-files.service"
KERNEL_FILES_AT_BOOT = "etc/systemd/system/multi-user.target.wants/gpusim-kernel-files.service"

KERNEL_FILES_SERVICE = f"""[Unit]
Description=Files of the simulated NVIDIA driver in /proc/driver and /dev/nvidia-caps

[Service]
Type=oneshot
RemainAfterExit=yes
# Left open on purpose: it mounts over the host's own /proc/driver and makes nodes, which a sandbox would keep to itself.
ExecStart=/{TOOL} kernel-files

[Install]
WantedBy=multi-user.target
"""


class Installation:
    """The files below `root`; with `check` nothing is changed, only said."""

    def __init__(self, root: Path, check: bool) -> None:
        self.root, self.check = root, check
        self.done: list[str] = []

    def path(self, relative: str) -> Path:
        return self.root / relative

    def has(self, relative: str, content: bytes, mode: int = 0o644) -> bool:
        path = self.path(relative)
        return path.is_file() and path.read_bytes() == content and stat.S_IMODE(path.stat().st_mode) == mode

    def write(self, relative: str, content: bytes, mode: int = 0o644) -> bool:
        """True if the file was not so. A reader finds the old file or the new one, never part of one."""
        path = self.path(relative)
        if self.has(relative, content, mode):
            return False
        self.done.append(f"write {path}")
        if not self.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_name(path.name + ".new")
            new.write_bytes(content)
            new.chmod(mode)
            new.replace(path)
        return True

    def remove(self, relative: str) -> bool:
        path = self.path(relative)
        if not (path.exists() or path.is_symlink()):
            return False
        self.done.append(f"remove {path}")
        if not self.check:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        return True

    def refresh_loader(self) -> None:
        """Below another root only where that is a system with a dynamic loader of its own."""
        if self.path("etc/ld.so.conf").exists() and not self.check:
            # It lies where the PATH of others than root does not look.
            run([shutil.which("ldconfig") or "/sbin/ldconfig", "-r", str(self.root)])


def run(command: list[str], **more) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)
    output = done.stdout.decode(errors="replace")
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed with status {done.returncode}:\n{output}")
    return output


def install(target: Installation, bundle: dict) -> None:
    install_library(target, bundle["source"])
    target.write(TOOL, archive(bundle), 0o755)
    models = {f"{SHARE_DIRECTORY}/models/{name}": text for name, text in bundle["models"].items()}
    for relative, text in models.items():
        target.write(relative, text.encode())
    for path in sorted(target.path(f"{SHARE_DIRECTORY}/models").glob("*.json")):
        relative = str(path.relative_to(target.root))
        if relative not in models:
            target.remove(relative)
    configuration = json.dumps(bundle["configuration"], indent=2, sort_keys=True) + "\n"
    lay_out(target, configuration)
    if bundle.get("kernel_files"):
        install_kernel_files(target)
    else:
        remove_kernel_files(target)
    # Last, so that the file never says what the tool refused to lay out.
    target.write(f"{CONFIGURATION_DIRECTORY}/gpus.json", configuration.encode())


def install_kernel_files(target: Installation) -> None:
    """Written now and at each boot. What lies below another root is not mounted on: it is no running system."""
    target.write(KERNEL_FILES_UNIT, KERNEL_FILES_SERVICE.encode())
    link = target.path(KERNEL_FILES_AT_BOOT)
    if not link.is_symlink():
        target.done.append(f"write {link}")
        if not target.check:
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(f"/{KERNEL_FILES_UNIT}")
    if target.done and not target.check and target.root == Path("/"):
        run([sys.executable, str(target.path(TOOL)), "kernel-files"])


def remove_kernel_files(target: Installation) -> None:
    """Also from /proc and /dev, while the tool is there to do so."""
    target.remove(KERNEL_FILES_AT_BOOT)
    if not target.path(KERNEL_FILES_UNIT).exists():
        return
    if not target.check and target.root == Path("/"):
        run([sys.executable, str(target.path(TOOL)), "kernel-files", "--remove"])
    target.remove(KERNEL_FILES_UNIT)


def install_library(target: Installation, source: dict[str, str]) -> None:
    """Built with the host's own compiler for its own C library, and found by its loader; not again while all is so."""
    library = f"{LIBRARY_DIRECTORY}/{LIBRARY_NAME}"
    stamp = f"{LIBRARY_DIRECTORY}/source.sha256"
    wanted = (digest(source) + "\n").encode()
    found_in = f"/{LIBRARY_DIRECTORY}\n".encode()
    built = target.path(library).is_file() and target.has(stamp, wanted)
    if built and target.has(LOADER_CONFIGURATION, found_in):
        return
    if target.check:
        target.done.append(f"install {target.path(library)}")
        return
    content = target.path(library).read_bytes() if built else compiled(source)
    # The stamp goes first and comes last: whatever is interrupted in between is done again.
    target.path(stamp).unlink(missing_ok=True)
    target.write(library, content, 0o755)
    link = target.path(f"{LIBRARY_DIRECTORY}/libnvidia-ml.so")
    if not link.is_symlink():
        link.symlink_to(LIBRARY_NAME)
    target.write(LOADER_CONFIGURATION, found_in)
    target.refresh_loader()
    target.write(stamp, wanted)


def compiled(source: dict[str, str]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="gpusim-build-") as directory:
        for name, text in source.items():
            (Path(directory) / name).write_text(text, encoding="utf-8")
        run(["make", "-s", "-j2", "-C", directory, "BUILD=build"])
        return (Path(directory) / "build" / LIBRARY_NAME).read_bytes()


def digest(source: dict[str, str]) -> str:
    parts = [*platform.libc_ver(), platform.machine(), *(part for item in sorted(source.items()) for part in item)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def archive(bundle: dict) -> bytes:
    """The tool as one executable file. The same input gives the same bytes, so that it is written only on a change."""
    members = {f"gpusim/{name}": text for name, text in bundle["tool"].items()}
    members["__main__.py"] = members.pop("gpusim/__main__.py")
    content = io.BytesIO(b"#!/usr/bin/env python3\n")
    content.seek(0, io.SEEK_END)
    with zipfile.ZipFile(content, "a", zipfile.ZIP_DEFLATED) as bundled:
        for name, text in sorted(members.items()):
            bundled.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), text, zipfile.ZIP_DEFLATED)
    return content.getvalue()


def lay_out(target: Installation, configuration: str) -> None:
    """The state file belongs to the tool. It can be asked for a prediction only once it is installed."""
    states = target.path(STATE_DIRECTORY)
    if target.check and target.done:
        target.done.append("lay out the GPUs if they are not as configured")
        return
    if not target.check:
        states.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "GPUSIM_LIBRARY": str(target.path(f"{LIBRARY_DIRECTORY}/{LIBRARY_NAME}")),
        "GPUSIM_STATE": str(states / "state"),
        "GPUSIM_MODELS": str(target.path(f"{SHARE_DIRECTORY}/models")),
    }
    command = [sys.executable, str(target.path(TOOL)), "init", "--config", "-"] + ["--check"] * target.check
    said = run(command, env=environment, input=configuration.encode()).strip()
    if not said.startswith("unchanged"):
        target.done.append(said.partition(": ")[2])


def uninstall(target: Installation) -> None:
    """Running clients keep what they have mapped."""
    remove_kernel_files(target)
    # The library's directory goes after the refresh, which is done again as long as it is there.
    if target.remove(LOADER_CONFIGURATION) or target.path(LIBRARY_DIRECTORY).exists():
        target.refresh_loader()
    for relative in (LIBRARY_DIRECTORY, TOOL, SHARE_DIRECTORY, CONFIGURATION_DIRECTORY, STATE_DIRECTORY):
        target.remove(relative)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, only say what would change")
    parser.add_argument("--root", type=Path, default=Path("/"), help="install below this directory")
    options = parser.parse_args()
    bundle = json.load(sys.stdin)
    target = Installation(options.root, options.check)
    missing: list[str] = []
    if bundle["state"] == "absent":
        uninstall(target)
    else:
        if not bundle["hide_real_gpus"] and all(target.path(sign).exists() for sign in REAL_DRIVER):
            sys.exit(
                "This host has real NVIDIA GPUs, which simulated ones would hide from every client. "
                "Leave the host out, or set gpu_simulator_hide_real_gpus: true"
            )
        missing = [program for program in BUILD_PROGRAMS if not shutil.which(program)]
        if missing and options.check:
            target.done.append(f"install packages for {', '.join(missing)}")
        if not missing or options.check:
            install(target, bundle)
    print(json.dumps({"changed": bool(target.done), "done": target.done, "missing": missing}))
    return EXIT_MISSING if missing else 0


if __name__ == "__main__":
    sys.exit(main())
