#!/usr/bin/env python3
# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that comments, docstrings, messages and pages are plain English.

language/rules.py contains the rules. language/exceptions.toml lists accepted violations with reasons.
language/remaining.txt records the numbers of violations in files that still have some. If a file has more violations
than recorded, the check fails. It also fails if a file has fewer violations. In this case, run `make language-record`
to lower the recorded number.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Iterable

import tomllib

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from language.record import Accepted, count, lowered, raised, read, without_exceptions, write
from language.rules import Hit, check

RECORD = ROOT / "tools/language/remaining.txt"
EXCEPTIONS = ROOT / "tools/language/exceptions.toml"
SUFFIXES = {".py", ".md", ".yml", ".yaml", ".c", ".h", ".j2", ".sh", ".toml", ".cfg"}


def main(arguments: list[str]) -> int:
    """Check the files and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", help="only these files or folders")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--list", action="store_true", help="print every violation, recorded ones too")
    mode.add_argument("--record", action="store_true", help="lower the recorded numbers to the present ones")
    mode.add_argument(
        "--record-all", action="store_true", help="record the present numbers, for a new rule or a renamed file"
    )
    options = parser.parse_args(arguments)
    if options.files and (options.record or options.record_all):
        parser.error("--record and --record-all take no files")
    names = source_files(options.files)
    hits, unused = without_exceptions({name: violations(name) for name in names}, read_exceptions())
    if options.list:
        show(hits, {(name, hit.kind) for name, found in hits.items() for hit in found})
        return 0
    counts, recorded = count(hits), read(RECORD) if RECORD.exists() else {}
    if options.record_all:
        write(RECORD, counts)
        return 0
    if options.files:
        recorded = {name: kinds for name, kinds in recorded.items() if name in hits}
        unused = []
    above, lower = raised(counts, recorded), lowered(counts, recorded)
    show(hits, {(name, kind) for name, kind, _number, _limit in above})
    for name, kind, number, limit in above:
        print(f"{name}: {number} of kind {kind}, {limit} recorded. Rewrite {number - limit} lines above.")
    if options.record:
        write(RECORD, lower)
    stale = [] if options.record else [name for name in sorted(recorded) if lower.get(name) != recorded[name]]
    for name in stale:
        print(f"{name}: fewer violations than recorded. Run `make language-record` and commit {shown(RECORD)}.")
    for each in unused:
        print(f"{shown(EXCEPTIONS)}: no violation matches {each.file} {each.kind} {each.text!r}. Remove the exception.")
    return int(bool(above or stale or unused))


def source_files(chosen: Iterable[str] = ()) -> list[str]:
    """Return the source files that git tracks or would add.

    `chosen` restricts the result to files or folders. Raises CalledProcessError if git fails.
    """
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *chosen]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    return sorted({name for name in listed if name and is_source(name)})


def is_source(name: str) -> bool:
    """Return whether the file is a source, page, schema or script."""
    path = ROOT / name
    if path.is_symlink() or not path.is_file():
        return False
    if PurePosixPath(name).suffix in SUFFIXES or path.name == "Makefile":
        return True
    if name.startswith("docs/") and name.endswith(".json"):
        return True
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def violations(name: str) -> list[Hit]:
    """Return the violations in a file. Raises SyntaxError if it is not valid Python."""
    return check(name, (ROOT / name).read_text("utf-8"))


def read_exceptions() -> list[Accepted]:
    """Return the accepted violations.

    Raises TypeError if an entry has no file, has no reason or has an unknown key.
    """
    return [Accepted(**entry) for entry in tomllib.loads(EXCEPTIONS.read_text("utf-8"))["exception"]]


def shown(path: Path) -> str:
    """Return the path relative to the root of the checkout."""
    return str(path.relative_to(ROOT))


def show(hits: dict[str, list[Hit]], chosen: set[tuple[str, str]]) -> None:
    """Print the violations of the chosen (file, kind)."""
    for name, found in hits.items():
        for hit in found:
            if (name, hit.kind) in chosen:
                print(f"{name}:{hit.line}: {hit.kind}: {hit.excerpt!r}: {hit.advice}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
