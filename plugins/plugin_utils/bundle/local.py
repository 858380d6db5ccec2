# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What does not come from a repository of packages: files that the inventory names, Python wheels, the collection itself."""

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

from ...module_utils.command import run_to_end
from . import fetch
from .model import BundleError, Item, without_password

_LAST_LINES = 4


def named(path: str, allowed: Sequence[str], what: str, hosts: set[str]) -> Item:
    """A file that an inventory names, with one of the checksums that it may have, if any is known. Raises BundleError."""
    here = Path(path).expanduser()
    if not path or not here.is_file():
        raise BundleError(
            path or what, "the inventory names it as %s, and it is not there" % what, "Fetch it to this machine first."
        )
    found = fetch.digest(here)
    _check(path, found, allowed, what)
    return Item("files/%s" % here.name, what, found, here.stat().st_size, local=here, hosts=set(hosts))


def fetched(url: str, content: bytes, allowed: Sequence[str], what: str, hosts: set[str]) -> Item:
    """A file that came from an address that an inventory names, with one of these checksums. Raises BundleError."""
    found = hashlib.sha256(content).hexdigest()
    _check(without_password(url), found, allowed, what)
    path = "files/%s" % url.rpartition("/")[2]
    return Item(path, what, found, len(content), url=url, content=content, hosts=set(hosts))


def _check(path: str, found: str, allowed: Sequence[str], what: str) -> None:
    if allowed and found not in allowed:
        raise BundleError(
            path,
            "its SHA-256 is %s, and the inventory expects %s" % (found, " or ".join(allowed)),
            "Fetch it again, or mend the inventory%s."
            % (" (gpu_layout_nvml_hashes)" if what == "nvidia-ml-py" else ""),
        )


# -- Python ------------------------------------------------------------------------------------------------------------


def python_is() -> str:
    """What wheels are fetched for, unless pip is told otherwise."""
    return "Python %d.%d on %s" % (*sys.version_info[:2], sysconfig.get_platform())


@dataclass(frozen=True)
class Question:
    """What pip is asked for: lines of a requirements file, with hashes or without. `name` is for messages."""

    name: str
    requirements: str
    options: tuple[str, ...] = ()
    hosts: frozenset[str] = frozenset()

    @property
    def hashed(self) -> bool:
        return "--hash=" in self.requirements

    def asked(self) -> list[str]:
        """It in a few lines, for a manifest."""
        lines = [line.strip().rstrip(" \\") for line in self.requirements.splitlines()]
        lines = [line for line in lines if not line.startswith("--hash=")]
        digest = hashlib.sha256(self.requirements.encode()).hexdigest()
        return [*lines, "hashes %s" % digest[:16]] if self.hashed else lines


def wheels(question: Question, folder: Path, what: str) -> list[Item]:
    """Have pip fetch them, and what they need, into an empty folder. Raises BundleError.

    Wheels alone, so that the other side has to build nothing. pip verifies what it fetches by the hashes; without any it takes
    its index's word.
    """
    folder.mkdir(parents=True)
    requirements = folder.with_name(folder.name + ".txt")
    requirements.write_text(question.requirements)
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--only-binary=:all:"]
    command += ["--require-hashes"] if question.hashed else []
    _run(
        [*command, "--dest", str(folder), *question.options, "--requirement", str(requirements)],
        "pip cannot fetch %s" % question.name,
        "It asks the index that it is set up for on this machine; gpu_bundle_pip_options adds to its options.",
    )
    return [
        Item(
            "python/%s" % path.name,
            what,
            fetch.digest(path),
            path.stat().st_size,
            local=path,
            told="pip",
            hosts=set(question.hosts),
        )
        for path in sorted(folder.iterdir())
    ]


# -- The collection ----------------------------------------------------------------------------------------------------


def collection(root: Path, folder: Path, bundle: Path) -> Item:
    """The collection as ansible-galaxy installs it, made in an empty folder. The one that is in the bundle stays where it
    has the same content: two archives of the same files differ. Raises BundleError."""
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
            "it has neither galaxy.yml nor MANIFEST.json, so no archive can be made of it",
            "Install the collection with ansible-galaxy, or leave `collection` out of gpu_bundle_parts.",
        )
    path = "collection/%s" % made.name
    there = bundle / path
    if there.is_file() and _manifest(there) == _manifest(made):
        made = there
    return Item(
        path, "the collection", fetch.digest(made), made.stat().st_size, local=made, told="made of this collection"
    )


def _packed(root: Path, folder: Path) -> Path:
    """An installed collection as the archive that it came from: its manifest lists its files with their checksums."""
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
                about = tarfile.TarInfo(entry["name"])
                about.type, about.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(about)
    return made


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    about = tarfile.TarInfo(name)
    about.size, about.mode = len(content), mode & 0o777
    archive.addfile(about, io.BytesIO(content))


def _manifest(path: Path) -> Any:
    """It has the checksum of the list of all files, which has theirs."""
    try:
        with tarfile.open(path) as archive:
            member = archive.extractfile("MANIFEST.json")
            return json.loads(member.read()) if member else None
    except (tarfile.TarError, KeyError, ValueError, OSError):
        return None


def _run(command: Sequence[str], problem: str, cure: str) -> None:
    # In this process' locale: ansible-galaxy refuses one without UTF-8.
    done = run_to_end(command, env={name: os.environ.get(name, "") for name in ("LANG", "LC_ALL")})
    if done.returncode:
        said = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        errors = [line for line in said if line.startswith("ERROR")] or said
        raise BundleError(problem, "; ".join(errors[-_LAST_LINES:]) or "it gave no reason", cure)


def recorded(manifest: Mapping[str, Any], name: str, asked: Sequence[str], bundle: Path) -> list[Item] | None:
    """What an earlier run got for the same question, where all of it is still there: then pip need not be asked again."""
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
            told=entry["from"],
            hosts=set(entry["hosts"]),
        )
        for entry in entries
    ]
