# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build an archive of the plugin for leases on the controller.

usage: make_lease_archive.py FOLDER PYTHON MACHINE [WHEELS]

PYTHON is the version of the host's Python, such as 3.11, and MACHINE its architecture. The archive has the plugin and
the packages in dra-requirements.txt. Fails if a wheel's hash is not in that file. Prints the archive's path, which has
a digest of its sources. Keeps an existing archive. Later concurrent calls wait for the first one.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

FILES = Path(__file__).parent
REQUIREMENTS = FILES / "dra-requirements.txt"
PACKAGE = FILES / "openfleet_dra"
#: Versions for which the requirements have wheels. Version and machine become parts of pip's arguments.
PYTHON = re.compile(r"3\.(?:9|1[0-4])")
MACHINES = ("x86_64", "aarch64")
_MAIN = "from openfleet_dra.command import main\n\nraise SystemExit(main())\n"


def digest(python: str, machine: str) -> str:
    """Return a digest of an archive's sources."""
    found = hashlib.sha256(("%s %s\n" % (python, machine)).encode())
    for path in [REQUIREMENTS, *sorted(PACKAGE.glob("*.py"))]:
        found.update(b"%s %d\n" % (path.name.encode(), path.stat().st_size) + path.read_bytes())
    return found.hexdigest()


def make(archive: Path, python: str, machine: str, wheels: str) -> None:
    """Write the archive. Exit with a message if a package is missing."""
    source = ["--no-index", "--find-links", wheels] if wheels else []
    with tempfile.TemporaryDirectory(prefix="dra-", dir=str(archive.parent)) as folder:
        packages = Path(folder, "packages")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--no-compile", "--require-hashes", "--only-binary=:all:", "--implementation", "cp"]
        command += ["--python-version", python, "--platform", "manylinux2014_%s" % machine, *source]
        command += ["--target", str(packages), "--requirement", str(REQUIREMENTS)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            sys.exit(
                "pip on the controller could not get the packages of the plugin for leases (files/%s) for Python %s on %s:\n%s"
                "Without an index, set gpu_kubernetes_lease_wheels to a directory with the wheels.\n"
                % (REQUIREMENTS.name, python, machine, done.stdout)
            )
        new = Path(folder, "new.zip")
        with zipfile.ZipFile(str(new), "w", zipfile.ZIP_DEFLATED) as bundled:
            for root, prefix in ((packages, ""), (PACKAGE, "openfleet_dra/")):
                for path in sorted(root.rglob("*")):
                    if path.is_file() and "__pycache__" not in path.parts:
                        bundled.write(str(path), prefix + str(path.relative_to(root)))
            bundled.writestr("__main__.py", _MAIN)
            # Files are extracted in this order, so this file shows that all others are complete.
            bundled.writestr("complete", "")
        new.replace(archive)


def main() -> int:
    folder, python, machine = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    if not PYTHON.fullmatch(python) or machine not in MACHINES:
        sys.exit(
            "the plugin for leases supports Python 3.9 to 3.14 on %s, not %.40r on %.40r. Set gpu_kubernetes_lease_python."
            % (" and ".join(MACHINES), python, machine)
        )
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / ("dra-%s.zip" % digest(python, machine)[:16])
    with archive.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            make(archive, python, machine, sys.argv[4] if len(sys.argv) > 4 else "")
    print(archive)
    return 0


if __name__ == "__main__":
    sys.exit(main())
