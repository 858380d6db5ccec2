# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test make_archive.py with wheels in a directory instead of a package index.

The script is roles/dcgm_exporter/files/make_archive.py.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.python_pins import Pin, read
from tests.unit.wheel_files import wheel

FILES = Path(__file__).resolve().parents[3] / "roles" / "dcgm_exporter" / "files"


def pins():
    return [(pin.name, pin.version) for pin in read((FILES / "embedded-requirements.txt").read_text())]


def make(archive: Path, wheels: Path, machine: str = "aarch64"):
    """Run the script with the requirements file in its own folder."""
    command = [sys.executable, str(wheels.parent / "make_archive.py"), str(archive), machine, str(wheels)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def wheels(tmp_path):
    """Write wheels for the oldest Python that hosts may have.

    Two of the wheels are for another architecture. The requirements have the hashes.
    """
    folder = tmp_path / "wheels"
    folder.mkdir()
    requirements = ""
    for name, version in pins():
        binary = name in ("bcrypt", "psutil")
        digest = wheel(folder, name, version, "cp38-abi3-manylinux2014_aarch64" if binary else "py3-none-any")
        requirements += str(Pin(name, version, (digest,)))
    shutil.copy(FILES / "make_archive.py", tmp_path)
    (tmp_path / "embedded-requirements.txt").write_text(requirements)
    return folder


def test_one_archive_per_architecture(tmp_path, wheels):
    archive = tmp_path / "cache" / "exporter.zip"
    done = make(archive, wheels)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(archive) as made:
        names = set(made.namelist())
    assert {f"{name.replace('-', '_')}.py" for name, _ in pins()} <= names
    # The role builds the archive only once for any number of hosts.
    before = archive.stat().st_mtime_ns
    for path in wheels.iterdir():
        path.unlink()
    assert make(archive, wheels).returncode == 0
    assert archive.stat().st_mtime_ns == before


def test_missing_files_are_named_and_nothing_is_written(tmp_path, wheels):
    next(wheels.glob("psutil-*")).unlink()
    archive = tmp_path / "cache" / "exporter.zip"
    done = make(archive, wheels)
    assert done.returncode != 0
    assert "psutil" in done.stderr and "dcgm_exporter_embedded_packages" in done.stderr
    assert [path.name for path in archive.parent.iterdir()] == ["exporter.zip.lock"]


def test_altered_wheel_is_refused_and_nothing_is_written(tmp_path, wheels):
    """Alter a wheel, but keep its name, its version and a valid archive format."""
    name, version = pins()[1]
    wheel(wheels, name, version, code="import os")
    archive = tmp_path / "cache" / "exporter.zip"
    done = make(archive, wheels)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr and name in done.stderr
    assert [path.name for path in archive.parent.iterdir()] == ["exporter.zip.lock"]


def test_a_requirement_without_a_hash_is_refused(tmp_path, wheels):
    requirements = tmp_path / "embedded-requirements.txt"
    lines = requirements.read_text().split(" \\\n", 1)
    requirements.write_text(lines[0] + "\n" + lines[1].partition("\n")[2])
    done = make(tmp_path / "exporter.zip", wheels)
    assert done.returncode != 0 and "--require-hashes mode" in done.stderr


@pytest.mark.parametrize("machine", ["../../../tmp/x", "x86_64/../..", "--target=/tmp", "riscv64", ""])
def test_unknown_architecture_is_refused(tmp_path, wheels, machine):
    done = make(tmp_path / "cache" / "exporter.zip", wheels, machine=machine)
    assert done.returncode != 0
    assert f"no packages for the architecture {machine!r}" in done.stderr
    assert not (tmp_path / "cache").exists()


def test_wheels_of_another_architecture_are_ignored(tmp_path, wheels):
    done = make(tmp_path / "exporter.zip", wheels, machine="x86_64")
    assert done.returncode != 0 and "x86_64" in done.stderr
