# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collect the files that turn a host without a network into a control host.

Usage: control_host.py FOLDER PYTHON MACHINE. PYTHON is a version (3.11) and MACHINE an architecture (x86_64). The
script replaces FOLDER. It then writes the collection there, and wheels of ansible-core (this machine's version) and its
dependencies. It copies wheels that an earlier run downloaded from a folder next to FOLDER.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: The C library of Debian 12 is newer than the version that these wheels require.
PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")


def run(*command: object, **more: object) -> None:
    done = subprocess.run(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **more
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stdout}")


def wheels(beside: Path, python: str, machine: str) -> Path:
    """Return the directory with the wheels.

    Dependencies of ansible-core have the same versions as on this machine.
    """
    here = sorted({f"{one.name}=={one.version}" for one in importlib.metadata.distributions() if one.name})
    recipe = hashlib.sha256("\n".join([python, machine, *PLATFORMS, *here]).encode()).hexdigest()[:16]
    made = beside / f"control-host-wheels-{recipe}"
    if not made.exists():
        with tempfile.TemporaryDirectory(prefix="control-host-", dir=beside) as folder:
            constraints = Path(folder, "constraints")
            constraints.write_text("\n".join(here))
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
            command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
            command += [f"--platform={one}_{machine}" for one in PLATFORMS]
            command += ["--dest", f"{folder}/wheels", "--constraint", constraints]
            run(*command, "ansible-core")
            Path(folder, "wheels").rename(made)
    return made


def main() -> None:
    folder, python, machine = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(wheels(folder.parent, python, machine), folder)
    run(Path(sys.executable).with_name("ansible-galaxy"), "collection", "build", "--output-path", folder, cwd=ROOT)


if __name__ == "__main__":
    main()
