# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Download NVML clients from Debian's archive and PyPI into .cache/clients.

The module installs nothing on the machine. apt uses its own package lists and cache there, so the machine's own files
do not change. The mirror is LAB_MIRROR or the machine's mirror.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from tests.lab.debian_mirror import debian_mirror

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "clients"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class NotOffered(Exception):
    """The archive no longer has this version."""


def unpack(packages: list[dict]) -> Path:
    """Return a folder with the unpacked Debian packages.

    Each package is {package, version, suite, component}. Raise NotOffered with the package and version, or with the
    program that this machine lacks. Raise CalledProcessError if the archive does not respond.
    """
    name = "_".join(f"{wanted['package']}-{wanted['version']}" for wanted in packages[:1])
    with _made_once(name) as (folder, complete):
        if not complete:
            for wanted in packages:
                archive = _download(wanted, folder)
                subprocess.run(["dpkg-deb", "-x", str(archive), str(folder)], check=True)
                archive.unlink()
    return folder


def install(requirement: str) -> Path:
    """Return a folder with a PyPI package and its dependencies, for PYTHONPATH."""
    with _made_once(requirement.replace("==", "-")) as (folder, complete):
        if not complete:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), requirement]
            subprocess.run(pip, check=True)
    return folder


@contextmanager
def _made_once(name: str) -> Iterator[tuple[Path, bool]]:
    """Yield a folder with this name, and whether an earlier call completed it.

    Other processes wait until the block ends.
    """
    folder = CACHE / name
    folder.mkdir(parents=True, exist_ok=True)
    stamp = CACHE / f"{name}.complete"
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder, stamp.exists()
        stamp.touch()


def _download(wanted: dict, into: Path) -> Path:
    if not Path(KEYRING).exists():
        raise NotOffered("this machine has no keys of Debian's archive: install debian-archive-keyring")
    suite, component = wanted["suite"], wanted["component"]
    with _made_once(f"apt-{suite}-{component}") as (lists, complete):
        apt = _apt(lists, suite, component)
        if not complete:
            subprocess.run(["apt-get", *apt, "--quiet", "update"], check=True, capture_output=True)
    madison = subprocess.run(
        ["apt-cache", *apt, "madison", wanted["package"]], check=True, capture_output=True, text=True
    ).stdout
    offered = [line.split("|")[1].strip() for line in madison.splitlines()]
    versions = [version for version in offered if version.split("-")[0].split("+")[0] == wanted["version"]]
    if not versions:
        raise NotOffered(f"{suite}/{component} has no {wanted['package']} {wanted['version']}, only {offered}")
    before = set(into.glob("*.deb"))
    download = ["apt-get", *apt, "--quiet", "download", f"{wanted['package']}={versions[0]}"]
    subprocess.run(download, check=True, cwd=into, capture_output=True)
    (archive,) = set(into.glob("*.deb")) - before
    return archive


def _apt(folder: Path, suite: str, component: str) -> list[str]:
    """Return apt options for one suite's component.

    apt then ignores all of this machine's settings.
    """
    for name in ("lists/partial", "archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "status").touch()
    sources = folder / "sources.list"
    sources.write_text(f"deb [arch=amd64 signed-by={KEYRING}] {_mirror()} {suite} {component}\n")
    settings = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder,
        "APT::Sandbox::User": "root",
        "APT::Architecture": "amd64",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
    }
    return [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]


def _mirror() -> str:
    found = debian_mirror()
    if not found:
        raise NotOffered("this machine's apt knows no mirror of Debian: name one with LAB_MIRROR")
    return found
