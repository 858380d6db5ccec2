# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run each group of `make bench` once with SMALL=1.

Each figure must have a value or a known reason.
"""

from __future__ import annotations

import importlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
LONGEST_SECONDS = 900
#: Accepted reasons for a result without a value, by the start of its name: a tool is missing on this machine, or only
#: `make demo` measures the time.
REASONS = {
    "demo_": ["not measured yet: "],
    "mig_": ["partitioning needs root"],
    "lease_": ["partitioning needs root"],
    "kubernetes_": ["KUBERNETES=skip", "there is no Go"],
    "dra_": ["KUBERNETES=skip", "there is no Go", "SMALL=1 builds no image of Debian 13"],
}


@pytest.fixture
def inputs(tmp_path):
    """Write a small trace, requests and hosts; return the options that name them."""
    choose = random.Random(1)
    pods = ["w0,1,1000", "w1,2,1000", *(f"p{number},1,{choose.choice((140, 280, 460))}" for number in range(12))]
    duty = [(60 * minute, name) for minute in range(1440) for name in range(4)]
    rows = [f"{at},c{name},{10 if at // 60 % (40 + name) < 20 else 0},{(name + 5) << 30}" for at, name in duty]
    files = {
        "PODS": ["name,num_gpu,gpu_milli", *pods],
        "NODES": ["sn,cpu_milli,memory_mib,gpu,model", "n0,96000,393216,8,G2", "n1,96000,393216,8,T4"],
        "TRACE": ["timestamp,container,duty_percent,memory_used_bytes", *rows],
    }
    demands = [f"p{number},{number % 9}000,4096,1,{choose.choice((140, 280, 460))}," for number in range(40)]
    lists = {
        f"pod-list-{name}.csv": [
            "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec",
            *demands,
            f"w,9000,1,2,1000,{spec}",
        ]
        for name, spec in (("default", ""), ("gpushare40", "G2|T4"))
    }
    for name, lines in (files | lists).items():
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    return {name: str(tmp_path / name) for name in files}


def groups() -> list[str]:
    return sorted(path.stem.replace("bench_", "", 1) for path in HERE.glob("bench_*.py"))


def measured(group: str, options: dict[str, str]) -> dict[str, str]:
    """Run a group. Return the output after each figure's name."""
    environment = {**os.environ, "SMALL": "1", **options}
    done = subprocess.run(
        [sys.executable, str(HERE / "run.py"), group],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    print(done.stderr[-4000:], file=sys.stderr)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def without_reason(printed: dict[str, str]) -> list[str]:
    """Return the results without a value and without a known reason."""
    missing = {name: rest.removeprefix("n/a ") for name, rest in printed.items() if rest.startswith("n/a ")}
    known = [
        name
        for name, reason in missing.items()
        for prefix, reasons in REASONS.items()
        if name.startswith(prefix) and reason.startswith(tuple(reasons))
    ]
    return [f"{name}: {reason}" for name, reason in missing.items() if name not in known]


@pytest.mark.parametrize("group", groups())
def test_each_group_measures_all_its_figures(group, inputs, monkeypatch):
    printed = measured(group, inputs)
    assert without_reason(printed) == []
    assert set(printed) == set(importlib.import_module(f"tests.benchmark.bench_{group}").FIGURES)


def test_a_figure_without_a_value_needs_a_known_reason():
    printed = {"mig_module_noop": "n/a ModuleNotFoundError: No module named 'documented'", "mig_transitions": "5 count"}
    assert without_reason(printed) == ["mig_module_noop: ModuleNotFoundError: No module named 'documented'"]
    assert without_reason({"demo_cold": "n/a not measured yet: `make clean demo` measures it"}) == []
    assert len(without_reason({"demo_cold": "n/a OSError: gone"})) == 1


@pytest.mark.parametrize("seed", range(20))
def test_transitions_of_the_dra_driver_keep_four_kinds_of_sharing(seed):
    bench = importlib.import_module("tests.benchmark.bench_kubernetes")
    moves = bench.random_moves(seed, bench.TRANSITIONS)
    assert len(moves) == bench.TRANSITIONS + 1 and moves == bench.random_moves(seed, bench.TRANSITIONS)
    for entries in moves:
        assert sorted(entry["sharing"] for entry in entries) == sorted(bench.KINDS)
    assert all(old != new for old, new in zip(moves, moves[1:]))
