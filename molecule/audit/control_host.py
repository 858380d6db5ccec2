# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a host without a network a control host: control_host.py FOLDER PYTHON MACHINE

Wheels of ansible-core as it is here, and of what it needs, for that Python (3.11) and machine (x86_64); and the collection. They
lie in FOLDER then, and what was there before is gone. Wheels that were fetched once are taken from beside it.
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
#: The C library of Debian 12 is newer than all of them.
PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")


def run(*command: object, **more: object) -> None:
    done = subprocess.run(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **more
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stdout}")


def wheels(beside: Path, python: str, machine: str) -> Path:
    """The directory with them. What ansible-core needs comes in the versions that are here."""
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
