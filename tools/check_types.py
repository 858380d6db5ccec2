#!/usr/bin/env python3
# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check types with mypy's strict mode.

type_check/remaining.txt lists the files that do not pass yet. The check fails if another file has an error. The check
also fails if a listed file passes. In this case, run `make types-record` to remove the file from the list.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import Iterable, Sequence

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tools/type_check/remaining.txt"
PLUGINS = "ansible_collections.openfleet.gpu.plugins"
#: Packages that mypy checks: the plugins, and the tools of this check.
PACKAGES = (
    *(f"{PLUGINS}.{name}" for name in ("module_utils", "plugin_utils", "modules", "action", "filter", "callback")),
    "language",
    "type_check",
)
MODULES = ("check", "check_language", "check_types", "choose_tests")
#: Format: `FILE:LINE: error: MESSAGE  [CODE]`. The path is relative to the collection or to the root.
ERROR = re.compile(
    r"^(?:.*?ansible_collections/openfleet/gpu/)?(?P<file>[^:]+):(?P<line>\d+): error: .*$", re.MULTILINE
)

HEADER = """\
# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Files that do not pass mypy's strict mode yet. `make types-record` removes those that do. Add none.
"""


def main(arguments: Sequence[str]) -> int:
    """Check the types and return the exit status."""
    parser = argparse.ArgumentParser(description="Check types with mypy's strict mode.")
    parser.add_argument("files", nargs="*", help="print the errors of these files, recorded ones too")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--record", action="store_true", help="remove files that pass from the list")
    mode.add_argument(
        "--record-all", action="store_true", help="list the files that do not pass, for a new version of mypy"
    )
    options = parser.parse_args(arguments)
    output = run_mypy()
    errors = errors_by_file(output)
    if not errors and "Success" not in output:
        print(output)
        return 1
    recorded = read(RECORD) if RECORD.exists() else set()
    if options.record or options.record_all:
        write(RECORD, errors.keys() if options.record_all else recorded & errors.keys())
        recorded = read(RECORD)
    for name in sorted(errors.keys() & options.files):
        print("\n".join(errors[name]))
    new, passing = sorted(errors.keys() - recorded), sorted(recorded - errors.keys())
    for name in new:
        print("\n".join(errors[name]))
        print(f"{name}: it must pass mypy's strict mode.")
    for name in passing:
        print(f"{name}: it passes. Run `make types-record` and commit {RECORD.relative_to(ROOT)}.")
    return int(bool(new or passing))


def run_mypy() -> str:
    """Return the output of mypy for the whole collection."""
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--no-color-output"]
    for package in PACKAGES:
        command += ["-p", package]
    for module in MODULES:
        command += ["-m", module]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout


def errors_by_file(output: str) -> dict[str, list[str]]:
    """Return the errors by file, from the output of mypy."""
    errors: dict[str, list[str]] = {}
    for match in ERROR.finditer(output):
        start = match.start("file") - match.start()
        errors.setdefault(match["file"], []).append(match.group()[start:])
    return errors


def read(path: Path) -> set[str]:
    """Return the files on the list."""
    return {line for line in path.read_text("utf-8").splitlines() if line and not line.startswith("#")}


def write(path: Path, names: Iterable[str]) -> None:
    """Write the list, sorted."""
    path.write_text(HEADER + "".join(name + "\n" for name in sorted(names)), "utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
