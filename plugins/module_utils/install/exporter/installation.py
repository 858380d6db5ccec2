# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Install or remove an exporter for GPU metrics.

This includes its files, packages and unit, and a test scrape. Never prints passwords. `Sources` has the files of the
embedded exporter's program: texts by file name.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any, Mapping

from ..files import Installation
from ..sources import Sources, digest
from ..trees import remove_tree
from .host import CONFIG, PENDING, PROGRAM, RECORD, UNIT, UNITS, Record, booted, output, reload, run, systemctl
from .packages import bring, take_away, to_remove
from .passwords import hashes
from .refusals import refuse_address, refuse_paths, refuse_quadlet
from .scrape import certificate_is_old, check_health

# All files that may be installed, relative to the root. Files that the current settings do not need are removed.
QUADLETS = "etc/containers/systemd"
UNIT_FILES = (UNITS + "/" + UNIT, QUADLETS + "/dcgm-exporter.container")
# This link enables the unit of the first kind. The quadlet generator enables the other one.
WANTED = UNITS + "/multi-user.target.wants/" + UNIT
WEB_CONFIG = CONFIG + "/web-config.json"
# This file has the origin of the Python packages. It is written last.
STAMP = PROGRAM + "/packages/.requirements"
SOURCES = PROGRAM + "/openfleet_exporter"
STATE = ("var/lib/openfleet-gpu-exporter", "var/lib/private/openfleet-gpu-exporter")


def web_config(target: Installation, bundle: Mapping[str, Any]) -> str:
    try:
        current = json.loads(target.path(WEB_CONFIG).read_text())["basic_auth_users"]
    except (OSError, ValueError, KeyError, TypeError):
        current = {}
    config = dict(bundle["web_config"])
    if bundle["users"]:
        config["basic_auth_users"] = hashes(bundle["users"], current)
    return json.dumps(config, indent=2, sort_keys=True) + "\n"


def has_packages(target: Installation, embedded: dict) -> bool:
    stamp = target.path(STAMP)
    return stamp.is_file() and stamp.read_text() == embedded["stamp"]


def install_packages(target: Installation, embedded: dict) -> None:
    """Install the Python packages of the embedded exporter.

    They come from an archive or from a package index. The old packages are kept until all new ones are installed.
    """
    folder, new = target.path(PROGRAM + "/packages"), target.path(PROGRAM + "/packages.new")
    if not target.doing("install Python packages into %s" % folder):
        return
    if new.exists():
        shutil.rmtree(str(new))
    new.mkdir(mode=0o755, parents=True)
    if embedded["source"] == "index":
        requirements = new / "requirements.txt"
        requirements.write_text(embedded["requirements"])
        # The address may contain a password, and every user can read command lines.
        index = {"PIP_INDEX_URL": embedded["index_url"]} if embedded["index_url"] else {}
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--require-hashes",
            "--only-binary=:all:",
        ]
        run([*command, "--target", str(new), "--requirement", str(requirements)], more=index)
    else:
        with zipfile.ZipFile(embedded["archive"]) as archive:
            archive.extractall(str(new))
        # Compile now, because the service may not write bytecode into this folder.
        run([sys.executable, "-m", "compileall", "-q", "-j", "1", str(new)])
    (new / Path(STAMP).name).write_text(embedded["stamp"])
    if folder.exists():
        shutil.rmtree(str(folder))
    new.replace(folder)


def wanted_files(target: Installation, bundle: Mapping[str, Any], sources: Sources) -> dict[str, tuple[bytes, int]]:
    """Return the content and mode of each file.

    Raises InstallError if a password cannot be hashed.
    """
    # Resolve the path, so that the unit does not depend on the interpreter's name.
    python = os.path.realpath(sys.executable)
    files = {
        path: (entry["content"].replace("@python@", python).encode(), int(entry["mode"], 8))
        for path, entry in bundle["files"].items()
    }
    if bundle["embedded"]:
        texts = _program(target)
        if digest(texts) != sources.digest:
            texts = sources.texts()
        files.update(("%s/%s" % (SOURCES, name), (text.encode(), 0o644)) for name, text in texts.items())
    if bundle["web_config"] or bundle["users"]:
        files[WEB_CONFIG] = (web_config(target, bundle).encode(), 0o600)
    return files


def _program(target: Installation) -> dict[str, str]:
    """Return the installed program of the embedded exporter."""
    return {path.name: path.read_text(encoding="utf-8") for path in target.path(SOURCES).glob("*.py")}


def install(
    target: Installation, bundle: Mapping[str, Any], files: dict[str, tuple[bytes, int]], pending: bool
) -> None:
    """Install the files and the unit.

    `pending` is true if an interrupted run may not have restarted the service.
    """
    for path in sorted(set(files) - set(UNIT_FILES)):
        target.write(path, *files[path])
    units = [target.remove(path) for path in UNIT_FILES if path not in files]
    units += [target.write(path, *files[path]) for path in UNIT_FILES if path in files]
    if UNIT_FILES[0] not in files:
        units.append(target.remove(WANTED))
    for folder in (CONFIG, PROGRAM):
        remove_strangers(target, folder, set(files), bool(bundle["embedded"]))
    for path in bundle["directories"]:
        if not target.path(path).is_dir() and target.doing("make %s" % target.path(path)):
            Record(target).add("directories", [path])
            target.path(path).mkdir(mode=0o755, parents=True)
    if not booted(target):
        target.finish()
        return
    if any(units) or pending:
        reload(target)
    # The quadlet generator enables its unit, so it needs no link.
    if UNIT_FILES[0] in files and output(["systemctl", "is-enabled", UNIT])[1].strip() != "enabled":
        systemctl(target, "enable", "--no-reload", "--quiet", UNIT)
    if target.done or pending or output(["systemctl", "is-active", UNIT])[0] or certificate_is_old(bundle):
        systemctl(target, "restart", UNIT)
    target.finish()


def remove_strangers(target: Installation, folder: str, wanted: set, embedded: bool) -> None:
    """Remove files from the role's folders that only former settings needed."""
    top = target.path(folder)
    for path in sorted(top.rglob("*")) if top.is_dir() else ():
        relative = str(path.relative_to(target.root))
        if path.is_dir() or relative in (*wanted, PENDING, RECORD) or "__pycache__" in path.parts:
            continue
        if relative.startswith(PROGRAM + "/packages") and embedded:
            continue
        target.remove(relative)
    if folder == PROGRAM and not any(path.startswith(PROGRAM) for path in wanted):
        remove_tree(target, PROGRAM)


def uninstall(target: Installation) -> None:
    """Remove everything that the role installed, whatever the settings are."""
    packages, directories = to_remove(target), Record(target).names("directories")
    units = [path for path in UNIT_FILES if target.path(path).exists()]
    if units and booted(target):
        if UNIT_FILES[0] in units:
            systemctl(target, "disable", "--no-reload", "--quiet", "--now", UNIT)
        else:
            # Podman before 4.4 did not generate this unit from the quadlet.
            systemctl(target, "stop", UNIT, unknown=True)
    for path in (*UNIT_FILES, PROGRAM, *STATE):
        remove_tree(target, path)
    take_away(target, packages)
    # Remove this folder last, because it has the record of the installation.
    remove_tree(target, CONFIG)
    for folder in (str(Path(CONFIG).parent), *directories):
        target.prune(target.path(folder), report=False)
    if units and booted(target):
        reload(target)


def bring_about(bundle: Mapping[str, Any], target: Installation, sources: Sources) -> dict[str, str]:
    """Apply the requested state.

    If an archive of Python packages is still missing, nothing is installed, and the result names the architecture that
    the archive must have.
    """
    refuse_paths(target, [*bundle["host_files"], *bundle["directories"]])
    if bundle["state"] == "absent":
        uninstall(target)
        return {"archive": ""}
    pending = target.mark(PENDING)
    files = wanted_files(target, bundle, sources)
    if booted(target):
        refuse_address(bundle["address"])
        if UNIT_FILES[1] in files:
            refuse_quadlet(target.check)
    embedded = bundle["embedded"]
    if embedded and not has_packages(target, embedded):
        if embedded["source"] != "index" and not embedded["archive"] and not target.check:
            return {"archive": platform.machine()}
        install_packages(target, embedded)
    bring(target, bundle)
    install(target, bundle, files, pending)
    if bundle["health"] and booted(target) and not target.check:
        check_health(bundle["health"])
    return {"archive": ""}
