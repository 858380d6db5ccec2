#!/usr/bin/env python3
# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run benchmarks, and print their results (figures) as `name value unit` lines.

Other output goes to standard error.

usage: run.py [GROUP]      every group if none is named

If it cannot measure a figure, it prints `name n/a reason`.

A group is a module bench_GROUP.py in this folder. Its FIGURES lists the names of its figures, and figures(options)
yields (name, value, unit) or (name, None, reason). The environment variables SEED, SIZE, CASES, FAULTS, TRACE, PODS and
NODES set the options. SMALL=1 measures as little as possible. This proves that each figure can be measured, but the
values mean nothing.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Iterator

HERE = Path(__file__).resolve().parent
#: Groups with lab hosts. podman can only manage containers from the PID namespace that it started them in.
ON_LAB_HOSTS = ("kubernetes", "site", "slurm")
OPTIONS = ("SEED", "SIZE", "CASES", "FAULTS", "TRACE", "PODS", "NODES", "SMALL")

sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "collections")]

from tests import apart


def groups() -> list[str]:
    """Return the groups' names."""
    return sorted(path.stem.replace("bench_", "", 1) for path in HERE.glob("bench_*.py"))


def as_line(name: str, value: float | int | None, unit: str) -> str:
    """Return a figure's output line.

    Without a value, the unit is the reason.
    """
    if value is None:
        return f"{name} n/a {unit}"
    return f"{name} {value if isinstance(value, int) else f'{value:.4g}'} {unit}"


def main(arguments: list[str]) -> int:
    unknown = [name for name in arguments if name not in groups()]
    if unknown:
        print(f"bench: there is no group {unknown[0]!r}; the groups are {', '.join(groups())}", file=sys.stderr)
        return 2
    options = {name: os.environ[name] for name in OPTIONS if os.environ.get(name)}
    for group in arguments or groups():
        print(f"bench: group {group}", file=sys.stderr, flush=True)
        if group not in ON_LAB_HOSTS and apart.can_make_namespace():
            # Modules search for GPU holders among all processes of the machine.
            command = [*apart.COMMAND, sys.executable, str(HERE / "run.py"), group]
            status = subprocess.run(command, env={**os.environ, apart.VARIABLE: "1"}, check=False).returncode
            if status:
                return status
            continue
        for name, value, unit in figures(group, options):
            print(as_line(name, value, unit), flush=True)
    return 0


def figures(group: str, options: dict[str, str]) -> Iterator[tuple]:
    """Yield a group's figures.

    If the group fails, each missing figure has no value, and the error as the reason.
    """
    module = importlib.import_module(f"tests.benchmark.bench_{group}")
    missing = list(module.FIGURES)
    try:
        for figure in module.figures(options):
            yield figure
            if figure[0] in missing:
                missing.remove(figure[0])
    except Exception as error:
        traceback.print_exc()
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        yield from ((name, None, reason) for name in missing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
