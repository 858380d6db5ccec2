# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collect files that are not in package repositories.

These are files that the inventory names, Python wheels, and the collection itself.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import sysconfig
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, Sequence

from ...module_utils.processes.command import run_to_end
from . import fetch
from .model import BundleError, Item, without_password

_LAST_LINES = 4


def named(path: str, allowed: Sequence[str], what: str, hosts: set[str]) -> Item:
    """Return a file that the inventory names by path.

    Raises BundleError if the file does not exist, or has none of the allowed checksums.
    """
    here = Path(path).expanduser()
    if not path or not here.is_file():
        raise BundleError(
            path or what,
            "the inventory names it as %s, but it is not on this machine" % what,
            "Fetch it to this machine first.",
        )
    sha256 = fetch.digest(here)
    _check(path, sha256, allowed, what)
    return Item("files/%s" % here.name, what, sha256, here.stat().st_size, local=here, hosts=set(hosts))


def fetched(url: str, content: bytes, allowed: Sequence[str], what: str, hosts: set[str]) -> Item:
    """Return a file that the inventory names by URL.

    Raises BundleError if it has none of the allowed checksums.
    """
    sha256 = hashlib.sha256(content).hexdigest()
    _check(without_password(url), sha256, allowed, what)
    path = "files/%s" % url.rpartition("/")[2]
    return Item(path, what, sha256, len(content), url=url, content=content, hosts=set(hosts))


def _check(path: str, sha256: str, allowed: Sequence[str], what: str) -> None:
    if allowed and sha256 not in allowed:
        raise BundleError(
            path,
            "its SHA-256 is %s, but the inventory expects %s" % (sha256, " or ".join(allowed)),
            "Fetch it again, or correct the inventory%s."
            % (" (gpu_layout_nvml_hashes)" if what == "nvidia-ml-py" else ""),
        )


# -- Python ------------------------------------------------------------------------------------------------------------


def python_platform() -> str:
    """Return the Python version and platform for which pip fetches by default."""
    return "Python %d.%d on %s" % (*sys.version_info[:2], sysconfig.get_platform())


@dataclass(frozen=True)
class Question:
    """A request to pip.

    `requirements` is the content of a requirements file, with or without hashes. `name` identifies the request in
    messages.
    """

    name: str
    requirements: str
    options: tuple[str, ...] = ()
    hosts: frozenset[str] = frozenset()

    @property
    def hashed(self) -> bool:
        return "--hash=" in self.requirements

    def asked(self) -> list[str]:
        """Return the request in short form, for the manifest."""
        lines = [line.strip().rstrip(" \\") for line in self.requirements.splitlines()]
        lines = [line for line in lines if not line.startswith("--hash=")]
        digest = hashlib.sha256(self.requirements.encode()).hexdigest()
        return [*lines, "hashes %s" % digest[:16]] if self.hashed else lines


def wheels(question: Question, folder: Path, what: str) -> list[Item]:
    """Fetch wheels and their dependencies with pip into an empty folder.

    Does not fetch source packages, which would have to be built at the air-gapped site. pip verifies the wheels with
    the request's hashes. Without hashes, pip trusts its package index. Raises BundleError if pip fails.
    """
    folder.mkdir(parents=True)
    requirements = folder.with_name(folder.name + ".txt")
    requirements.write_text(question.requirements)
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--only-binary=:all:"]
    command += ["--require-hashes"] if question.hashed else []
    _run(
        [*command, "--dest", str(folder), *question.options, "--requirement", str(requirements)],
        "pip cannot fetch %s" % question.name,
        "pip uses the index that is configured on this machine. gpu_bundle_pip_options adds options.",
    )
    return [
        Item(
            "python/%s" % path.name,
            what,
            fetch.digest(path),
            path.stat().st_size,
            local=path,
            source="pip",
            hosts=set(question.hosts),
        )
        for path in sorted(folder.iterdir())
    ]


# -- The collection ----------------------------------------------------------------------------------------------------


def collection(root: Path, folder: Path, bundle: Path) -> Item:
    """Build the collection's archive for ansible-galaxy in an empty folder.

    Keeps the bundle's archive if it has the same files, because two archives of the same files have different bytes.
    Raises BundleError if the archive cannot be built.
    """
    folder.mkdir(parents=True)
    if (root / "galaxy.yml").exists():
        _run(
            [sys.executable, "-m", "ansible", "galaxy", "collection", "build", "--output-path", str(folder), str(root)],
            "ansible-galaxy cannot build the collection in %s" % root,
            "",
        )
        made = next(iter(folder.glob("*.tar.gz")))
    elif (root / "MANIFEST.json").exists():
        made = _packed(root, folder)
    else:
        raise BundleError(
            str(root),
            "it has neither galaxy.yml nor MANIFEST.json, so no archive can be built from it",
            "Install the collection with ansible-galaxy, or remove `collection` from gpu_bundle_parts.",
        )
    path = "collection/%s" % made.name
    previous = bundle / path
    if previous.is_file() and _manifest(previous) == _manifest(made):
        made = previous
    return Item(
        path, "the collection", fetch.digest(made), made.stat().st_size, local=made, source="built from this collection"
    )


def _packed(root: Path, folder: Path) -> Path:
    """Create an archive of an installed collection.

    It has the files in the collection's manifest.
    """
    info = json.loads((root / "MANIFEST.json").read_bytes())["collection_info"]
    made = folder / ("%s-%s-%s.tar.gz" % (info["namespace"], info["name"], info["version"]))
    with tarfile.open(made, "w:gz") as archive:
        for name in ("MANIFEST.json", "FILES.json"):
            _add(archive, name, (root / name).read_bytes())
        for entry in json.loads((root / "FILES.json").read_bytes())["files"]:
            path = root / entry["name"]
            if entry["ftype"] == "file":
                _add(archive, entry["name"], path.read_bytes(), path.stat().st_mode)
            elif entry["name"] != ".":
                member = tarfile.TarInfo(entry["name"])
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(member)
    return made


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), mode & 0o777
    archive.addfile(member, io.BytesIO(content))


def _manifest(path: Path) -> Any:
    """Return an archive's manifest, or None if it is not readable.

    The manifest has checksums of all files in the archive.
    """
    try:
        with tarfile.open(path) as archive:
            member = archive.extractfile("MANIFEST.json")
            return json.loads(member.read()) if member else None
    except (tarfile.TarError, KeyError, ValueError, OSError):
        return None


def _run(command: Sequence[str], problem: str, cure: str) -> None:
    # Keep this process's locale, because ansible-galaxy refuses to run without UTF-8.
    done = run_to_end(command, env={name: os.environ.get(name, "") for name in ("LANG", "LC_ALL")})
    if done.returncode:
        lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        raise BundleError(problem, "; ".join(errors[-_LAST_LINES:]) or "it gave no reason", cure)


def recorded(manifest: Mapping[str, Any], name: str, asked: Sequence[str], bundle: Path) -> list[Item] | None:
    """Return the files that an earlier run fetched for the same request.

    Returns None if there is no such run, or if a file is missing.
    """
    record = manifest.get("python", {}).get(name, {})
    if record.get("asked") != list(asked):
        return None
    entries = [entry for entry in manifest.get("files", []) if entry["path"] in record["files"]]
    if len(entries) != len(record["files"]) or not all(
        fetch.has(bundle / entry["path"], entry["sha256"]) for entry in entries
    ):
        return None
    return [
        Item(
            entry["path"],
            entry["what"],
            entry["sha256"],
            entry["bytes"],
            source=entry["from"],
            hosts=set(entry["hosts"]),
        )
        for entry in entries
    ]
