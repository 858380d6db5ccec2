# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test loads that gpusim puts on a GPU, with NVML clients."""

from __future__ import annotations

import pytest

from tests.integration.patience import PATIENCE_SECONDS

UTILIZATION = "result = N.nvmlDeviceGetUtilizationRates(gpu).gpu"


def test_clients_see_a_constant_load(h100):
    h100.gpusim("load", 0, "--pattern", "constant", "--utilization", 80, "--memory", "4GiB", "--power", 321.5)
    found = h100.nvml("""
        memory = N.nvmlDeviceGetMemoryInfo(gpu)
        result = [N.nvmlDeviceGetUtilizationRates(gpu).gpu, N.nvmlDeviceGetPowerUsage(gpu), memory.total - memory.free]
    """)
    assert found[:2] == [80, 321500]
    assert found[2] >= 4 << 30
    # The load does not affect the other GPU.
    assert h100.nvml("result = N.nvmlDeviceGetUtilizationRates(N.nvmlDeviceGetHandleByIndex(1)).gpu") == 0


def test_power_follows_utilisation_if_not_given(h100):
    idle = h100.nvml("result = N.nvmlDeviceGetPowerUsage(gpu)")
    h100.gpusim("load", 0, "--pattern", "constant", "--utilization", 100)
    assert idle < h100.nvml("result = N.nvmlDeviceGetPowerUsage(gpu)") <= 700000


@pytest.mark.parametrize("pattern", ["square", "sine"])
def test_a_pattern_moves_between_its_bounds(h100, pattern):
    h100.gpusim("load", 0, "--pattern", pattern, "--utilization", "20..60", "--period", 0.4)
    # Read for two and a half periods. On a busy machine, read longer, because the reader can miss parts of a period.
    wanted = 2 if pattern == "square" else 11
    seen = h100.nvml(f"""
        import time
        end = time.monotonic() + 1
        late = time.monotonic() + {PATIENCE_SECONDS}
        result = []
        def enough():
            return {{20, 60}} <= set(result) and len(set(result)) >= {wanted}
        while time.monotonic() < end or not enough() and time.monotonic() < late:
            result.append(N.nvmlDeviceGetUtilizationRates(gpu).gpu)
            time.sleep(0.005)
    """)
    assert min(seen) == 20 and max(seen) == 60
    if pattern == "square":
        assert set(seen) == {20, 60}
    else:
        assert len(set(seen)) > 10


def test_a_recorded_load_is_played_and_repeated(h100, tmp_path):
    recording = tmp_path / "run.csv"
    recording.write_text("utilization_percent,memory_mib,power_watts\n10,1024,100\n50,2048,\n90,1024,300\n")
    h100.gpusim("load", 0, "--pattern", recording, "--interval", 0.1)
    # Return the values, and for each value whether it was read soon after the previous one. On a busy machine the
    # reader can miss values in between.
    seen = h100.nvml(f"""
        import time
        late = time.monotonic() + {PATIENCE_SECONDS}
        result, before = [], None
        while sum(near for _value, near in result) < 6 and time.monotonic() < late:
            asked = time.monotonic()
            value = N.nvmlDeviceGetUtilizationRates(gpu).gpu
            if not result or result[-1][0] != value:
                result.append((value, before is not None and time.monotonic() - before < 0.05))
            before = asked
            time.sleep(0.005)
    """)
    assert {value for value, _near in seen} == {10, 50, 90}
    order = {10: 50, 50: 90, 90: 10}
    nexts = [(one, following) for (one, _), (following, near) in zip(seen, seen[1:]) if near]
    assert len(nexts) >= 6
    assert all(order[one] == following for one, following in nexts)


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (["--utilization", "101"], "'101' is not a number of percent"),
        (["--utilization", "high"], "'high' is not a number of percent"),
        (["--power", "-5"], "'-5' is not a number of watts"),
        (["--memory", "4"], "has no unit"),
        (["--memory", "81GiB"], ""),
        (["--utilization", "10..20"], "a constant load has no range"),
    ],
)
def test_invalid_load_is_refused(h100, arguments, problem):
    option, value = arguments
    assert problem in h100.refused("load", 0, "--pattern", "constant", f"{option}={value}")
    assert h100.nvml(UTILIZATION) == 0


@pytest.mark.parametrize(
    "text, problem",
    [
        ("", "the header is empty"),
        ("gpu,mem\n1,2\n", "the header is gpu,mem"),
        ("utilization_percent\n", "has no samples"),
        ("utilization_percent\n10\nmany\n", "run.csv:3: is not a line of numbers"),
    ],
)
def test_unreadable_recording_names_the_line(h100, tmp_path, text, problem):
    recording = tmp_path / "run.csv"
    recording.write_text(text)
    assert problem in h100.refused("load", 0, "--pattern", recording)
    assert "cannot be read" in h100.refused("load", 0, "--pattern", tmp_path / "none.csv")
    assert "has its own values" in h100.refused("load", 0, "--pattern", recording, "--power", 100)


def test_a_gpu_instance_has_its_own_load(h100, as_root):
    instance = h100.create_instance(9, 0)
    h100.gpusim("load", f"0/{instance}", "--pattern", "constant", "--memory", "8GiB")
    used = h100.nvml("""
        memory = N.nvmlDeviceGetMemoryInfo(N.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0))
        result = [memory.used, memory.total]
    """)
    assert used[0] >= 8 << 30 and used[1] <= 40448 << 20
