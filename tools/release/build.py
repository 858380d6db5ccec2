#!/usr/bin/env python3
# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the tarball of a release from the committed files of this checkout.

The program sets the version in galaxy.yml and adds the fragments to the changelog. It makes the README's links
absolute, because Galaxy shows the README alone. The checkout itself does not change. `make release` runs this program.
"""

from __future__ import annotations

import argparse
import os
import posixpath
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
#: A link or an image of Markdown to a file of the repository, with its target.
_LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)\s]+)")
_FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_VERSION = re.compile(r"^version: .*$", re.MULTILINE)


def absolute(text: str, address: str) -> str:
    """Return a page of the root folder with links that name the repository."""

    def link(match: re.Match[str]) -> str:
        return f"{match[1]}{address}/{posixpath.normpath(match[2])}"

    return "".join(part if n % 2 else _LINK.sub(link, part) for n, part in enumerate(_FENCE.split(text)))


def export(folder: Path) -> None:
    """Write the committed files of this checkout to a folder."""
    archive = folder.parent / "checkout.tar"
    subprocess.run(["git", "archive", f"--output={archive}", "HEAD"], cwd=ROOT, check=True)
    with tarfile.open(archive) as file:
        file.extractall(folder)
    archive.unlink()


def prepare(folder: Path, version: str, date: str) -> None:
    """Set the version, write the changelog, and make the links of the README absolute."""
    galaxy = folder / "galaxy.yml"
    galaxy.write_text(_VERSION.sub(f"version: {version}", galaxy.read_text(encoding="utf-8")), encoding="utf-8")
    address = yaml.safe_load(galaxy.read_text(encoding="utf-8"))["repository"]
    readme = folder / "README.md"
    readme.write_text(absolute(readme.read_text(encoding="utf-8"), address), encoding="utf-8")
    _run("antsibull-changelog", "release", "--version", version, "--date", date, folder=folder)


def _run(program: str, *arguments: str, folder: Path) -> None:
    programs = Path(sys.executable).parent
    # The settings of this checkout do not apply.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    done = subprocess.run(
        [str(programs / program), *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{program} failed:\n{done.stdout}{done.stderr}")


def build(version: str, output: Path) -> Path:
    """Build the tarball, and return its path."""
    date = subprocess.run(
        ["git", "log", "-1", "--format=%cs"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    with tempfile.TemporaryDirectory() as name:
        # antsibull-changelog and ansible-doc find the plugins of a collection by this path.
        folder = Path(name).resolve() / "ansible_collections" / "openfleet" / "gpu"
        folder.mkdir(parents=True)
        export(folder)
        prepare(folder, version, date)
        output.mkdir(parents=True, exist_ok=True)
        _run("ansible-galaxy", "collection", "build", "--force", "--output-path", str(output.resolve()), folder=folder)
    return output / f"openfleet-gpu-{version}.tar.gz"


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the tarball of a release.")
    parser.add_argument("version", help="for example 0.9.0")
    parser.add_argument("folder", type=Path, help="directory for the tarball")
    arguments = parser.parse_args()
    print(build(arguments.version, arguments.folder))


if __name__ == "__main__":
    main()
