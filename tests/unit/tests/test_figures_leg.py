# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which legs of `make test` run the benchmark groups."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def script_of(leg: str) -> str:
    """Return the commands of a leg on a machine that has Go."""
    make = ["make", "--dry-run", f"leg-{leg}", "without_kubernetes=", "as_root="]
    return subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def command_of(leg: str) -> list[str]:
    """Return the words of a leg's command."""
    (line,) = (line for line in script_of(leg).splitlines() if line.lstrip().startswith("tests/leg run"))
    return shlex.split(line)[3:]


@pytest.mark.slow
def test_the_figures_of_a_cluster_follow_its_tests():
    shell, option, script = command_of("kubernetes")
    assert (shell, option) == ("bash", "-ec")
    tests, figures = map(shlex.split, script.split("; "))
    assert [path for path in tests if path.startswith("tests/kubernetes/")]
    group = figures[-1]
    assert group.endswith("[kubernetes]")
    # The leg `figures` runs all other groups.
    slurm = group.replace("[kubernetes]", "[slurm]")
    assert command_of("figures") == ["pytest", "--quiet", "--deselect", group, "--deselect", slurm, "tests/benchmark"]
    assert f'pytest --quiet "{slurm}"' in script_of("trixie")
