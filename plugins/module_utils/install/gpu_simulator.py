# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Install or remove simulated GPUs.

This includes the NVML library, the tool gpusim, the model files and the host's GPUs. `Sources` has texts by name:
`src/NAME` for the library, `gpusim/NAME` for the tool, and `models/NAME`.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Mapping

from ..processes.command import program
from .files import Installation, InstallError
from .manifest import Manifest
from .sources import Sources
from .trees import link, remove_tree

LIBRARY_NAME = "libnvidia-ml.so.1"
BUILD_PROGRAMS = ("cc", "make")

# If both files exist, a real driver is loaded and this host may use it. One file alone proves nothing: a container has
# the first file if its machine has a driver, and the real library creates the second file even without a driver.
DRIVER_VERSION, CONTROL_NODE = "proc/driver/nvidia/version", "dev/nvidiactl"
# Text in a driver version that gpusim wrote (kernel_files.py).
SIMULATED = "simulated"

# Files of an installation, relative to the root.
LIBRARY_DIRECTORY = "usr/local/lib/gpusim"
LIBRARY = LIBRARY_DIRECTORY + "/" + LIBRARY_NAME
# Digest of the sources from which the library was built.
STAMP = LIBRARY_DIRECTORY + "/source.sha256"
MANIFEST = LIBRARY_DIRECTORY + "/manifest.json"
TOOL = "usr/local/bin/gpusim"
SHARE_DIRECTORY = "usr/local/share/gpusim"
MODELS = SHARE_DIRECTORY + "/models"
CONFIGURATION_DIRECTORY = "etc/gpusim"
LOADER_CONFIGURATION = "etc/ld.so.conf.d/000-gpusim.conf"
STATE_DIRECTORY = "var/lib/gpusim"
KERNEL_FILES_SERVICE_NAME = "gpusim-kernel-files.service"
KERNEL_FILES_UNIT = "etc/systemd/system/" + KERNEL_FILES_SERVICE_NAME
KERNEL_FILES_AT_BOOT = "etc/systemd/system/multi-user.target.wants/" + KERNEL_FILES_SERVICE_NAME
# This folder exists while systemd runs: sd_booted(3).
SYSTEMD_RUNS = Path("/run/systemd/system")

KERNEL_FILES_SERVICE = """[Unit]
Description=Files of the simulated NVIDIA driver in /proc, /sys and /dev/nvidia-caps

[Service]
# Left open on purpose: it mounts over the host's /proc and /sys and creates nodes, which a sandbox would hide.
# ExecStartPre writes the files before later units start.
ExecStartPre=/%(tool)s kernel-files
ExecStart=/%(tool)s kernel-files --follow
Restart=on-failure

[Install]
WantedBy=multi-user.target
""" % {"tool": TOOL}


def install(target: Installation, wanted: Mapping[str, Any], sources: Sources) -> dict[str, Any]:
    """Apply the parameters of the module.

    If build programs are missing, nothing is changed, and the result names the programs.
    """
    if not wanted["hide_real_gpus"] and _has_real_driver(target):
        raise InstallError(
            "this host",
            "it has real NVIDIA GPUs, which simulated ones would hide from every client",
            "Leave the host out, or set gpu_simulator_hide_real_gpus: true.",
        )
    missing: list[str] = []
    manifest = Manifest(target, MANIFEST, *platform.libc_ver(), platform.machine(), sources.digest)
    if not manifest.files or not manifest.holds(*manifest.files) or set(_models(target)) - set(manifest.files):
        missing = [name for name in BUILD_PROGRAMS if not program(name)]
        if missing and not target.check:
            return {"missing": missing}
        given = sources.texts()
        if missing:
            target.done.append("install packages for %s" % ", ".join(missing))
        _install_files(target, given, manifest)
    configuration = json.dumps(wanted["configuration"], indent=2, sort_keys=True) + "\n"
    _lay_out(target, configuration)
    if wanted["kernel_files"]:
        _install_kernel_files(target)
    else:
        _remove_kernel_files(target)
    # Write this file last, because the tool may refuse GPUs, which must not be in the file.
    target.write(CONFIGURATION_DIRECTORY + "/gpus.json", configuration.encode())
    return {"missing": missing}


def _has_real_driver(target: Installation) -> bool:
    if not all(target.path(sign).exists() for sign in (DRIVER_VERSION, CONTROL_NODE)):
        return False
    return SIMULATED not in target.path(DRIVER_VERSION).read_text(encoding="utf-8", errors="replace")


def _models(target: Installation) -> list[str]:
    return [str(path.relative_to(target.root)) for path in sorted(target.path(MODELS).glob("*.json"))]


def _install_files(target: Installation, given: Mapping[str, str], manifest: Manifest) -> None:
    _install_library(target, _part(given, "src/"))
    target.write(TOOL, _archive(_part(given, "gpusim/")), 0o755)
    models = {"%s/%s" % (MODELS, name): text for name, text in _part(given, "models/").items()}
    for relative, text in models.items():
        target.write(relative, text.encode())
    for relative in _models(target):
        if relative not in models:
            target.remove(relative)
    if not target.check:
        manifest.record([LIBRARY, STAMP, LOADER_CONFIGURATION, TOOL, *models])


def _part(given: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name[len(prefix) :]: text for name, text in sorted(given.items()) if name.startswith(prefix)}


def _install_library(target: Installation, source: Mapping[str, str]) -> None:
    """Build the library and configure the loader, unless they are current.

    The host's own compiler and C library are used.
    """
    parts = [*platform.libc_ver(), platform.machine(), *(part for item in sorted(source.items()) for part in item)]
    stamp = hashlib.sha256("\0".join(parts).encode()).hexdigest() + "\n"
    loader_line = "/%s\n" % LIBRARY_DIRECTORY
    built = target.path(LIBRARY).is_file() and _text(target, STAMP) == stamp
    if built and _text(target, LOADER_CONFIGURATION) == loader_line:
        return
    if target.check:
        target.done.append("install %s" % target.path(LIBRARY))
        return
    content = target.path(LIBRARY).read_bytes() if built else _compiled(target, source)
    # Remove the stamp first and write it last, so that an interrupted installation is repeated.
    target.path(STAMP).unlink(missing_ok=True)
    target.write(LIBRARY, content, 0o755)
    link(target, LIBRARY_DIRECTORY + "/libnvidia-ml.so", LIBRARY_NAME)
    target.write(LOADER_CONFIGURATION, loader_line.encode())
    _refresh_loader(target)
    target.write(STAMP, stamp.encode())


def _text(target: Installation, relative: str) -> str | None:
    path = target.path(relative)
    return path.read_text() if path.is_file() else None


def _compiled(target: Installation, source: Mapping[str, str]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="gpusim-build-") as directory:
        for name, text in source.items():
            Path(directory, name).write_text(text, encoding="utf-8")
        target.run("make", "-s", "-j2", "-C", directory, "BUILD=build")
        return Path(directory, "build", LIBRARY_NAME).read_bytes()


def _refresh_loader(target: Installation) -> None:
    """Run ldconfig for the root, unless the root has no dynamic loader."""
    if target.path("etc/ld.so.conf").exists():
        target.run(program("ldconfig") or "/sbin/ldconfig", "-r", str(target.root))


def _archive(tool: Mapping[str, str]) -> bytes:
    """Return the tool as one executable file.

    Equal sources give equal bytes, so an unchanged file is not written again.
    """
    members = {"gpusim/%s" % name: text for name, text in tool.items()}
    members["__main__.py"] = members.pop("gpusim/__main__.py")
    content = io.BytesIO(b"#!/usr/bin/env python3\n")
    content.seek(0, io.SEEK_END)
    with zipfile.ZipFile(content, "a", zipfile.ZIP_DEFLATED) as bundled:
        for name, text in sorted(members.items()):
            bundled.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), text, zipfile.ZIP_DEFLATED)
    return content.getvalue()


def _lay_out(target: Installation, configuration: str) -> None:
    """Create the GPUs with the tool.

    Predicted changes are known only if the tool is installed.
    """
    if target.check and target.done:
        target.done.append("create the configured GPUs again if they differ")
        return
    states = target.path(STATE_DIRECTORY)
    if not target.check:
        states.mkdir(parents=True, exist_ok=True)
    environment = {
        "GPUSIM_LIBRARY": str(target.path(LIBRARY)),
        "GPUSIM_STATE": str(states / "state"),
        "GPUSIM_MODELS": str(target.path(MODELS)),
    }
    command = [sys.executable, str(target.path(TOOL)), "init", "--config", "-"] + ["--check"] * target.check
    output = target.ask(*command, env=environment, input=configuration).strip()
    if not output.startswith("unchanged"):
        target.done.append(output.partition(": ")[2])


def _install_kernel_files(target: Installation) -> None:
    """Write the files now, at each boot, and each time instances change.

    On a root that is not the host's own, only installs the unit.
    """
    target.write(KERNEL_FILES_UNIT, KERNEL_FILES_SERVICE.encode())
    link(target, KERNEL_FILES_AT_BOOT, "/" + KERNEL_FILES_UNIT)
    if target.done and target.is_host:
        # First run the tool directly, so that its errors appear here and not only in the journal.
        target.run(sys.executable, str(target.path(TOOL)), "kernel-files")
        target.reload(SYSTEMD_RUNS.exists())
        # The service may still run with the previous tool, so restart it.
        _systemctl(target, "restart", KERNEL_FILES_SERVICE_NAME)


def _remove_kernel_files(target: Installation) -> None:
    """Remove the unit, and the simulated files in /proc, /sys and /dev.

    The tool removes the files, so it must still be installed.
    """
    target.remove(KERNEL_FILES_AT_BOOT)
    if not target.path(KERNEL_FILES_UNIT).exists():
        return
    if target.is_host:
        _systemctl(target, "stop", KERNEL_FILES_SERVICE_NAME)
        target.run(sys.executable, str(target.path(TOOL)), "kernel-files", "--remove")
    target.remove(KERNEL_FILES_UNIT)
    target.reload(target.is_host and SYSTEMD_RUNS.exists())


def _systemctl(target: Installation, *arguments: str) -> None:
    if SYSTEMD_RUNS.exists():
        target.systemctl(*arguments, log_of=KERNEL_FILES_SERVICE_NAME)


def uninstall(target: Installation) -> None:
    """Remove everything. Running clients keep using the library that they have mapped."""
    _remove_kernel_files(target)
    # Refresh the loader before the folder is removed, so that an interrupted removal repeats the refresh.
    if target.remove(LOADER_CONFIGURATION) or target.path(LIBRARY_DIRECTORY).exists():
        _refresh_loader(target)
    for relative in (LIBRARY_DIRECTORY, TOOL, SHARE_DIRECTORY, CONFIGURATION_DIRECTORY, STATE_DIRECTORY):
        remove_tree(target, relative)
