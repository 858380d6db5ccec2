# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build an archive of Python packages on the controller.

usage: make_archive.py FILE MACHINE [WHEELS]

The archive has the embedded exporter's packages: only pure Python wheels, and wheels for the stable ABI of Python 3.8
or later and glibc 2.17 or later. So any host of the architecture can use it. Fails if a wheel's hash is not in
embedded-requirements.txt. Keeps an existing file. Later concurrent calls wait for the first one.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("embedded-requirements.txt")
PYTHON = "3.8"
PLATFORM = "manylinux2014_%s"
#: Architectures that a host may report. The name becomes part of a path and of pip's arguments.
ARCHITECTURES = ("x86_64", "aarch64")


def make(archive: Path, machine: str, wheels: str) -> None:
    source = ["--no-index", "--find-links", wheels] if wheels else []
    with tempfile.TemporaryDirectory(prefix="exporter-", dir=str(archive.parent)) as folder:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += [
            "--no-compile",
            "--require-hashes",
            "--only-binary=:all:",
            "--implementation",
            "cp",
            "--python-version",
            PYTHON,
        ]
        command += ["--platform", PLATFORM % machine, *source, "--target", folder + "/packages"]
        done = subprocess.run(
            [*command, "--requirement", str(REQUIREMENTS)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(
                "pip on the controller could not get the embedded exporter's packages (files/%s) for %s:\n%s"
                "Without an index, set dcgm_exporter_embedded_packages to wheels and dcgm_exporter_embedded_wheels to a "
                "directory with the wheels.\n" % (REQUIREMENTS.name, machine, done.stdout)
            )
        new = Path(folder, "new.zip")
        packages = Path(folder, "packages")
        with zipfile.ZipFile(str(new), "w", zipfile.ZIP_DEFLATED) as bundled:
            for path in sorted(packages.rglob("*")):
                if path.is_file():
                    bundled.write(str(path), str(path.relative_to(packages)))
        new.replace(archive)


def main() -> int:
    archive, machine = Path(sys.argv[1]), sys.argv[2]
    if machine not in ARCHITECTURES:
        sys.exit("make_archive: no packages for the architecture %r: %s" % (machine, " or ".join(ARCHITECTURES)))
    archive.parent.mkdir(parents=True, exist_ok=True)
    with archive.with_name(archive.name + ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            make(archive, machine, sys.argv[3] if len(sys.argv) > 3 else "")
            print("made")
    return 0


if __name__ == "__main__":
    sys.exit(main())
