# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the scoring of `make bench BENCH=rightsize`: input, counts, missing traces."""

from __future__ import annotations

import gzip

import pytest

np = pytest.importorskip("numpy")

from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.model import Fleet
from tests.benchmark import bench_rightsize, sizing_paths
from tests.benchmark import sizing_trace as trace

GIB = trace.GIB
TEXT = """timestamp,container,duty_percent,memory_used_bytes
57.0,b,10.0,1073741824.0
0.0,a,50.0,2147483648.0
0.0,b,,
57.0,a,,3221225472.0
"""


def table(duty, gib):
    names = ["c%d" % i for i in range(len(duty))]
    return Fleet.of(names, np.arange(len(duty[0])) * 57.0, duty, np.array(gib, float) * GIB)


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_is_read_with_its_gaps(tmp_path, packed):
    path = tmp_path / ("trace.csv.gz" if packed else "trace.csv")
    path.write_bytes(gzip.compress(TEXT.encode()) if packed else TEXT.encode())
    found = trace.read(str(path), 48 * GIB)
    assert found.names == ("a", "b")
    assert found.times.tolist() == [0, 57]
    assert np.array_equal(found.duty, [[50, np.nan], [np.nan, 10]], equal_nan=True)
    assert np.array_equal(found.memory, [[2 * GIB, 3 * GIB], [np.nan, GIB]], equal_nan=True)
    assert found.card.tolist() == [48 * GIB] * 2


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", TEXT + "1,c,much,1\n", TEXT + "1,c,1000,1\n"])
def test_invalid_trace_is_reported(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    figures = list(bench_rightsize.figures({"TRACE": str(path)}))
    assert {value for _, value, _ in figures} == {None}
    assert all("trace.csv" in reason for _, _, reason in figures)


def test_without_a_trace_every_figure_has_a_reason():
    figures = list(bench_rightsize.figures({}))
    assert [name for name, _, _ in figures] == list(bench_rightsize.all_names())
    assert {(value, reason) for _, value, reason in figures} == {
        (None, "no trace: make bench BENCH=rightsize TRACE=FILE")
    }
    assert len({name for name, _, _ in figures}) == len(figures)


def test_gpus_over_memory_and_saturated_samples_are_counted():
    found = table(
        [[60, 60, 10, 0], [50, 40, 10, 0], [100, 100, 100, 100]], [[40, 1, 1, 1], [41, 1, 1, 1], [80, 80, 80, 80]]
    )
    verdict = trace.judge([("c0", "c1"), ("c2",)], found, 80 * GIB)
    # Memory of 40 + 41 GiB is too much, and 80 GiB is not. Time of 60 + 50 % is too much, and 60 + 40 % is not. One of
    # eight samples is saturated.
    assert (verdict.gpus, verdict.over, verdict.saturated) == (2, 1, 12.5)
    assert not verdict.holds
    assert trace.judge([("c0",), ("c1",), ("c2",)], found, 80 * GIB).holds


@pytest.mark.parametrize("groups", [[("c0",)], [("c0", "c1"), ("c1",)]])
def test_plan_that_loses_or_doubles_a_container_is_refused(groups):
    with pytest.raises(ValueError, match="no GPU, or on two"):
        trace.judge(groups, table([[1.0], [1.0]], [[1], [1]]), 80 * GIB)


def test_forward_plans_on_the_first_part_and_reverse_on_the_last():
    found = table([list(range(10))], [[1, np.nan, 3, 4, 5, 6, np.nan, 8, 9, 10]])
    seen, to_come = trace.halves(found, False)
    assert (seen.duty[0].tolist(), to_come.duty[0].tolist()) == ([0, 1, 2, 3, 4, 5], [6, 7, 8, 9])
    # The memory at the cut continues in the second half.
    assert to_come.memory[0].tolist() == [6 * GIB, 8 * GIB, 9 * GIB, 10 * GIB]
    assert [part.duty[0].tolist() for part in trace.halves(found, True)] == [[6, 7, 8, 9], [0, 1, 2, 3, 4, 5]]


def test_simple_rules_work_as_described():
    """Two containers never run at the same time and use 30 GiB each.

    The joint rule puts them on one card. The rule with sums of percentiles does not.
    """
    found = table([[80] * 10 + [0] * 10, [0] * 10 + [80] * 10], [[30] * 20] * 2)
    assert len(trace.joint_rule(found, 80 * GIB)) == 1
    assert len(trace.krr_rule(found, 80 * GIB)) == 2
    # 60 GiB times 1.3 are 78 GiB, which is more than 77 GiB.
    assert len(trace.joint_rule(found, 77 * GIB)) == 2


def test_a_small_trace_gives_every_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(bench_rightsize, "LEAST_SAMPLES", 100)
    chance = np.random.default_rng(1)
    rows = ["%d,c%d,%.1f,%d" % (57 * i, k, 5 * chance.random(), (5 + k) * GIB) for i in range(1400) for k in range(4)]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(["timestamp,container,duty_percent,memory_used_bytes", *rows]))
    figures = {name: value for name, value, _ in bench_rightsize.figures({"TRACE": str(path), "CASES": "1"})}
    assert list(figures) == list(bench_rightsize.all_names())
    assert figures["rightsize_over_memory_forward_80"] == 0
    assert figures["rightsize_gpus_total"] < 16
    assert figures["rightsize_idle_false_flags"] == 0
    assert figures["rightsize_idle_recall"] == 1.0


# --- Sizes of single workloads ---


def test_slower_curves_have_the_same_samples():
    found = table([[1.0, 2.0, 3.0]], [[4, 5, 6]])
    slow = sizing_paths.stretched(found, 5)
    assert slow.times.tolist() == [0, 5 * 57, 10 * 57]
    assert slow.duty is found.duty and slow.memory is found.memory


def test_gpus_for_shapes_are_packed():
    three = sizing_paths.shape_for(sizing_paths.Need(30 * GIB, 40, 1, ""), sizing_paths.MIG, "H100-80GB")
    whole = sizing_paths.shape_for(None, sizing_paths.MIG, "H100-80GB")
    assert (str(three), str(whole)) == ("3g.40gb", "a whole GPU")
    assert sizing_paths.gpus_for("H100-80GB", ((three, 4), (whole, 1))) == 3
    assert sizing_paths.capacity(whole, "H100-80GB")[0] == float("inf")
    assert sizing_paths.capacity(three, "H100-80GB") == (pytest.approx(39.5 * GIB), pytest.approx(300 / 7))


def test_workloads_beyond_their_new_memory_are_counted(monkeypatch):
    """Give each workload 30 GiB, and count the one that later needs more."""
    monkeypatch.setattr(sizing_paths, "SPLITS", (0.5,))
    found = table([[5.0] * 10] * 2, [[20] * 10, [20] * 5 + [41] * 5])
    rule = lambda seen: [sizing_paths.Need(30 * GIB, 5, 1, "") for _name in seen.names]  # noqa: E731
    score = sizing_paths.scores(found, rule, 1, 1.0, 1)["default"]
    # These are two speeds, two directions, two models and two workloads. The instances have 39.5 and 32.2 GiB.
    assert score.shrunk == 16
    # If the plan is made from the first part, the second workload needs more memory than it gets.
    assert score.over_memory == 4
    assert score.percent(score.over_memory) == 25
