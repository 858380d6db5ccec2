# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the hashes of Python packages that are installed as root: `make hashes`.

Run this after changing a version. The files in LOCKS contain exact versions. pip downloads every wheel that a supported
host may choose: for each supported version of CPython, on manylinux, for x86_64 and aarch64. Afterwards pip resolves
each file for each Python and architecture in hash-checking mode. So the run fails if a dependency has no hash. pip uses
the index in its configuration.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURES = ("x86_64", "aarch64")
#: Platform tags for the glibc versions of supported distributions.
PLATFORMS = ("manylinux2014", "manylinux_2_28", "manylinux_2_34")
PIN = re.compile(r"([A-Za-z0-9._-]+)==([A-Za-z0-9._!+-]+)")
#: File name of a wheel: NAME-VERSION(-BUILD)-PYTHONS-ABIS-PLATFORMS.whl
#: https://packaging.python.org/en/latest/specifications/binary-distribution-format/#file-name-convention
WHEEL = re.compile(r"[\w.]+-[\w.!+]+(?:-\d\w*)?-(?P<pythons>[\w.]+)-(?P<abis>[\w.]+)-(?P<platforms>[\w.]+)\.whl")
#: A package's file that a role also installs alone, and the file with its hash.
SINGLE = ("pynvml.py", "roles/gpu_layout/files/pynvml.sha256")


@dataclass(frozen=True)
class Lock:
    """A file with hashes for Python 3.`minors`.

    pip resolves the file from a dependency group of pyproject.toml and from other files. If neither is given, the file
    itself lists all packages.
    """

    path: str
    minors: range
    group: str = ""
    files: tuple[str, ...] = ()

    def pins(self) -> list[tuple[str, str]]:
        """Return the names and exact versions from which the file is resolved."""
        texts = [(ROOT / file).read_text() for file in self.files or (() if self.group else (self.path,))]
        if self.group:
            texts += tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"][self.group]
        return PIN.findall(without_comments("\n".join(texts)))


#: Hosts have Python 3.8 or newer. Controllers have a Python that ansible-core 2.19 or newer supports.
LOCKS = (
    Lock("roles/gpu_layout/files/nvml-requirements.txt", range(8, 15)),
    Lock("roles/dcgm_exporter/files/embedded-requirements.txt", range(8, 15)),
    # Nodes whose pods get leases have Python 3.9 or newer, because gRPC has no wheels for Python 3.8.
    Lock("roles/gpu_kubernetes/files/dra-requirements.txt", range(9, 15)),
    Lock("requirements-locked.txt", range(11, 15), "controller", ("requirements-bundle.txt",)),
)


def pip(*arguments: str) -> str:
    """Run pip and return its output. Exits with pip's message if pip fails."""
    command = [sys.executable, "-m", "pip", *arguments, "--disable-pip-version-check", "--no-input"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        # URLs in the output may contain passwords.
        sys.exit("make hashes: pip failed:\n" + re.sub(r"//[^/\s]*@", "//***@", done.stdout + done.stderr))
    return done.stdout


def target(minor: int, platforms: list[str]) -> list[str]:
    chosen = ["--only-binary=:all:", "--implementation=cp", "--python-version=3.%d" % minor]
    return chosen + ["--platform=%s" % platform for platform in platforms]


def resolve(requirements: Path, minor: int, architecture: str, scratch: Path, *more: str) -> dict[str, str]:
    """Return the versions by name that pip would install."""
    report, platforms = scratch / "report.json", ["%s_%s" % (name, architecture) for name in reversed(PLATFORMS)]
    pip("install", "--quiet", "--dry-run", "--ignore-installed", "--target=%s" % (scratch / "nowhere"), *more,
        "--report=%s" % report, *target(minor, platforms), "--requirement=%s" % requirements)  # fmt: skip
    found = json.loads(report.read_text())["install"]
    return {normal(each["metadata"]["name"]): each["metadata"]["version"] for each in found}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def wheels(name: str, version: str, minors: range, folder: Path) -> dict[str, str]:
    """Download all wheels that a supported host may choose.

    Returns their SHA-256 by file name.
    """
    stem = "%s-%s-" % (re.sub(r"[-_.]+", "[-_.]+", re.escape(normal(name)).replace(r"\-", "-")), re.escape(version))
    # This output lists all of the index's files, including files that pip does not use on this machine.
    listed = pip(
        "download", "-vv", "--no-deps", "--only-binary=:all:", "--dest=%s" % folder, "%s==%s" % (name, version)
    )
    for file in sorted(set(re.findall(r"(?i)(?<=/)%s[\w.]+-[\w.]+-[\w.]+\.whl" % stem, listed))):
        tags = WHEEL.fullmatch(file)
        minor = tags and usable(tags, minors)
        if not tags or minor is None or (folder / file).exists():
            continue
        platforms = [each for each in tags["platforms"].split(".") if wanted(each)]
        # If each kind of tag has only one value, pip chooses exactly this file.
        abi = tags["abis"].split(".")[-1]
        pip("download", "--quiet", "--no-deps", "--dest=%s" % folder, "--abi=%s" % abi,
            *target(minor, platforms[:1]), "%s==%s" % (name, version))  # fmt: skip
    found = {}
    for path in folder.glob("*.whl"):
        tags = WHEEL.fullmatch(path.name)
        if tags and usable(tags, minors) is not None:
            found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    if not found:
        sys.exit("make hashes: %s %s has no wheel for a supported host" % (name, version))
    return found


def wanted(platform: str) -> bool:
    return platform == "any" or (platform.startswith("manylinux") and platform.endswith(ARCHITECTURES))


def usable(tags: re.Match[str], minors: range) -> int | None:
    """Return the minor version of a supported Python for the wheel, or None."""
    if not any(map(wanted, tags["platforms"].split("."))):
        return None
    for python in tags["pythons"].split("."):
        if python in ("py3", "py38") and "none" in tags["abis"].split("."):
            return minors[0]
        minor = int(python[3:]) if re.fullmatch(r"cp3\d+", python) else None
        if minor is not None and "abi3" in tags["abis"].split(".") and minor < minors.stop:
            return max(minor, minors[0])
        # Free-threaded builds such as cp313t are not supported.
        if minor in minors and python in tags["abis"].split("."):
            return minor
    return None


def renew(lock: Lock, scratch: Path) -> str:
    """Return the new text of the file. Exits if a dependency is missing in the file."""
    path = ROOT / lock.path
    versions: dict[str, str] = {}
    plain = scratch / "plain.txt"
    plain.write_text("".join("%s==%s\n" % pin for pin in lock.pins()))
    pairs = [(minor, architecture) for minor in lock.minors for architecture in ARCHITECTURES]
    for minor, architecture in pairs:
        for name, version in resolve(plain, minor, architecture, scratch).items():
            if versions.setdefault(name, version) != version:
                sys.exit(
                    "make hashes: %s needs %s %s and %s for different Pythons"
                    % (lock.path, name, versions[name], version)
                )
    pinned = {normal(name) for name, _version in PIN.findall(plain.read_text())}
    if not lock.group and set(versions) != pinned:
        sys.exit("make hashes: %s lacks %s" % (lock.path, ", ".join(sorted(set(versions) - pinned))))
    lines = []
    for name, version in sorted(versions.items()):
        folder = scratch / name
        found = wheels(name, version, lock.minors, folder)
        print("%s: %s %s, %d wheels" % (lock.path, name, version, len(found)), flush=True)
        hashes = " \\\n".join("    --hash=sha256:%s" % digest for digest in sorted(set(found.values())))
        lines.append("%s==%s \\\n%s\n" % (name, version, hashes))
        single(folder)
    text = header(path) + "".join(lines)
    plain.write_text(text)
    for minor, architecture in pairs:
        resolve(plain, minor, architecture, scratch, "--require-hashes")
    return text


def without_comments(text: str) -> str:
    return "".join(line.partition("#")[0] + "\n" for line in text.splitlines())


def header(path: Path) -> str:
    """Return the comments at the start of the file.

    People write these comments by hand.
    """
    lines = path.read_text().splitlines(keepends=True)
    return "".join(lines[: next((at for at, line in enumerate(lines) if not line.startswith("#")), len(lines))])


def single(folder: Path) -> None:
    """Write the hash of the file that the role installs on its own."""
    for wheel in folder.glob("nvidia_ml_py-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            digest = hashlib.sha256(archive.read(SINGLE[0])).hexdigest()
        (ROOT / SINGLE[1]).write_text("%s  %s\n" % (digest, SINGLE[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", help="only these files")
    chosen = parser.parse_args().files
    for lock in LOCKS:
        if not chosen or lock.path in chosen:
            with tempfile.TemporaryDirectory(prefix="hashes-") as scratch:
                (ROOT / lock.path).write_text(renew(lock, Path(scratch)))


if __name__ == "__main__":
    main()
