# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that `make bench` prints a reason for each value that it cannot measure."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmark"


@pytest.fixture
def bench(monkeypatch):
    """Load run.py, which extends the import path."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("bench_run", BENCHMARK / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_failed_group_prints_missing_figures_with_the_reason(bench, monkeypatch, capsys):
    def figures(options):
        yield "first", 1, "s"
        raise OSError("no such\nfile")

    monkeypatch.setitem(
        sys.modules, "tests.benchmark.bench_made_up", SimpleNamespace(FIGURES=("first", "second"), figures=figures)
    )
    lines = [bench.as_line(*figure) for figure in bench.figures("made_up", {})]
    assert lines == ["first 1 s", "second n/a OSError: no such file"]
    assert "Traceback" in capsys.readouterr().err


def test_every_group_names_its_figures():
    names = [path.read_text().count("\nFIGURES = ") for path in BENCHMARK.glob("bench_*.py")]
    assert names and set(names) == {1}
