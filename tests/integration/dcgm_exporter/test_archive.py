# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""roles/dcgm_exporter/files/make_archive.py, with wheels in a directory instead of an index."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

MAKE = Path(__file__).resolve().parents[3] / "roles" / "dcgm_exporter" / "files" / "make_archive.py"


def wheel(folder: Path, name: str, version: str, tag: str) -> None:
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    members = {
        f"{module}/__init__.py": f"__version__ = '{version}'\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = ""
    for path, text in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        record += f"{path},sha256={digest},{len(text)}\n"
    members[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / f"{module}-{version}-{tag}.whl", "w") as made:
        for path, text in members.items():
            made.writestr(path, text)


def pins():
    lines = MAKE.with_name("embedded-requirements.txt").read_text().splitlines()
    return [line.split("==") for line in lines if "==" in line]


def make(archive: Path, wheels: Path, machine: str = "aarch64"):
    command = [sys.executable, str(MAKE), str(archive), machine, str(wheels)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def wheels(tmp_path):
    """For the oldest Python that hosts may have; two of another architecture than this machine may be."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, version in pins():
        binary = name in ("bcrypt", "psutil")
        wheel(folder, name, version, "cp38-abi3-manylinux2014_aarch64" if binary else "py3-none-any")
    return folder


def test_one_archive_for_an_architecture(tmp_path, wheels):
    archive = tmp_path / "cache" / "exporter.zip"
    done = make(archive, wheels)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(archive) as made:
        names = set(made.namelist())
    assert {f"{name.replace('-', '_')}/__init__.py" for name, _ in pins()} <= names
    # It is made once, however many hosts ask.
    before = archive.stat().st_mtime_ns
    assert make(archive, tmp_path / "no-such-directory").returncode == 0
    assert archive.stat().st_mtime_ns == before


def test_what_is_missing_is_named_and_nothing_is_left(tmp_path, wheels):
    next(wheels.glob("psutil-*")).unlink()
    archive = tmp_path / "cache" / "exporter.zip"
    done = make(archive, wheels)
    assert done.returncode != 0
    assert "psutil" in done.stderr and "dcgm_exporter_embedded_packages" in done.stderr
    assert [path.name for path in archive.parent.iterdir()] == ["exporter.zip.lock"]


@pytest.mark.parametrize("machine", ["../../../tmp/x", "x86_64/../..", "--target=/tmp", "riscv64", ""])
def test_an_architecture_that_it_does_not_know_is_refused(tmp_path, wheels, machine):
    done = make(tmp_path / "cache" / "exporter.zip", wheels, machine=machine)
    assert done.returncode != 0
    assert f"no packages for the architecture {machine!r}" in done.stderr
    assert not (tmp_path / "cache").exists()


def test_wheels_of_another_architecture_are_not_taken(tmp_path, wheels):
    done = make(tmp_path / "exporter.zip", wheels, machine="x86_64")
    assert done.returncode != 0 and "x86_64" in done.stderr
