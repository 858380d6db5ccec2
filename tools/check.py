#!/usr/bin/env python3
# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the changed files: style, types, language and unit tests.

Without arguments, the uncommitted changes are checked. If there are none, the last commit is checked.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, Sequence

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from choose_tests import choose

#: Maximum number of test files in one check. The check only lists further files, and `make test-fast` runs them.
TEST_FILES = 8
#: Up to this number of test files, one process is faster, because starting a second one takes longer than it saves.
ONE_PROCESS = 3


@dataclass(frozen=True)
class Result:
    """A command's result: output, exit status and duration in seconds."""

    name: str
    output: str
    status: int
    seconds: float


def main(arguments: Sequence[str]) -> int:
    """Check the files and return the exit status."""
    parser = argparse.ArgumentParser(description="Check style, types, language and unit tests of what changed.")
    parser.add_argument("files", nargs="*", help="files or folders instead of what changed")
    parser.add_argument("--base", default="", help="check what changed since this commit, for example main")
    parser.add_argument("--no-tests", action="store_true", help="run no tests")
    parser.add_argument("--all", action="store_true", help="run all chosen tests, however many")
    options = parser.parse_args(arguments)
    names = listed(options.files) if options.files else changed(options.base)
    if not names:
        print("check: no changed files")
        return 0
    commands = linters([name for name in names if (ROOT / name).is_file()])
    if not options.no_tests:
        chosen = choose(ROOT, names)
        tests = chosen if options.all else chosen[:TEST_FILES]
        commands.update(unit_tests(tests, tests if options.all else names))
        if len(tests) < len(chosen):
            print("check: not run: %s (ALL=1 runs them)" % " ".join(chosen[len(tests) :]))
    return report(names, run_all(commands))


def unit_tests(tests: Sequence[str], changed: Sequence[str]) -> dict[str, list[str]]:
    """Return the commands that run the test files, by name.

    The commands leave out slow tests of unchanged files.
    """
    own = [test for test in tests if test in changed]
    others = [test for test in tests if test not in changed]
    commands = {}
    for name, files, marks in (("changed tests", own, "not alone"), ("tests", others, "not alone and not slow")):
        if files:
            commands[name] = [
                *(sys.executable, "-m", "pytest", "--quiet", "--no-header", "-m", marks),
                *("-p", "no:cacheprovider", *(["-n", "auto"] if len(files) > ONE_PROCESS else []), *files),
            ]
    return commands


def changed(base: str) -> list[str]:
    """Return the files that differ from the commit, including new files.

    Without `base`, the result lists the uncommitted changes. If there are none, it lists the last commit's files.
    Raises CalledProcessError if git fails.
    """
    for commit in [base] if base else ["HEAD", "HEAD~1"]:
        start = git("merge-base", commit, "HEAD")[0] if base else commit
        names = {
            *git("diff", "--name-only", "--no-renames", start),
            *git("ls-files", "--others", "--exclude-standard"),
        }
        if names:
            return sorted(names)
    return []


def listed(files: Iterable[str]) -> list[str]:
    """Return the tracked and untracked files in these files and folders."""
    return sorted({*git("ls-files", "--cached", "--others", "--exclude-standard", "--", *files)})


def git(*arguments: str) -> list[str]:
    """Return the lines that git prints. Raises CalledProcessError if it fails."""
    done = subprocess.run(
        ["git", "-c", "core.quotePath=false", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.splitlines()


def linters(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the commands that check the files, by name."""
    python = [name for name in names if name.endswith(".py")]
    yaml = [name for name in names if name.endswith((".yml", ".yaml"))]
    programs = Path(sys.executable).parent
    commands = {"language": [sys.executable, "tools/check_language.py", *names]} if names else {}
    if python:
        commands["ruff check"] = [str(programs / "ruff"), "check", "--quiet", *python]
        commands["ruff format"] = [str(programs / "ruff"), "format", "--check", "--quiet", *python]
    if yaml:
        commands["yamllint"] = [str(programs / "yamllint"), "--strict", *yaml]
    if any(name.startswith(("plugins/", "tools/")) for name in python):
        commands["types"] = [sys.executable, "tools/check_types.py"]
    return commands


def run_all(commands: dict[str, list[str]]) -> list[Result]:
    """Run the commands concurrently, one per processor."""
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        # Start the tests first, because they take longest.
        order = sorted(commands, key=lambda name: not name.endswith("tests"))
        return list(pool.map(lambda name: run(name, commands[name]), order))


def run(name: str, command: list[str]) -> Result:
    """Run a command in the checkout and return its result."""
    started = time.monotonic()
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Result(name, done.stdout, done.returncode, time.monotonic() - started)


def report(names: Sequence[str], results: Sequence[Result]) -> int:
    """Print failures, and one line for each command. Return the exit status."""
    for result in results:
        if failed(result):
            print(f"=== {result.name}\n{result.output.rstrip()}\n")
    for result in results:
        print(f"{result.seconds:6.1f} s  {result.name:13} {'FAILED' if failed(result) else summary(result)}")
    wrong = [result.name for result in results if failed(result)]
    files = "1 file" if len(names) == 1 else f"{len(names)} files"
    print(f"check: {files}, {'FAILED: ' + ', '.join(wrong) if wrong else 'passed'}")
    return int(bool(wrong))


def failed(result: Result) -> bool:
    """Return whether the command failed.

    pytest exits with 5 if it deselected all tests. This is not a failure.
    """
    return result.status not in ((0, 5) if result.name.endswith("tests") else (0,))


def summary(result: Result) -> str:
    """Return the last line of pytest's output, or `passed` for other commands."""
    return result.output.rstrip().rpartition("\n")[2] if result.name.endswith("tests") else "passed"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
