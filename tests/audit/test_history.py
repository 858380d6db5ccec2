# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Audit days of a fleet with problems in a real Prometheus.

The audit must give each GPU a clear verdict, and never a wrong one.
"""

from __future__ import annotations

import math
import time

import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.holdings import Price
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.make import Order, make
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.prometheus import Access, Prometheus
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.signals import read
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.verdict import Thresholds
from tests.audit.fleet_history import AT_REST, GIB, SENTINEL, WELL, Device, prometheus, since, steady, until

HOURS = 96
HELD = {("gpu:held", "kind", "container"): steady(1)}
NOBODY = {"gpu:processes": steady(0), "gpu:processes:max5m": steady(0)}
NOTHING = {name: steady(math.nan) for name in WELL if name != "gpu:memory_total_bytes"}


def gaps(course, every=4):
    """Return the course with only one sample out of `every`."""
    return lambda hour: course(hour) if round(hour * 12) % every == 0 else None


def activity(course):
    """Return the course for every sign of work."""
    return {"gpu:activity_ratio:max5m": course}


def never(hour):
    """Return no sample."""


def dark(series):
    """Return the courses without samples for ten hours of each day."""
    return {
        name: (lambda hour, course=course: None if hour % 24 < 10 else course(hour)) for name, course in series.items()
    }


def nan_at_night(course):
    return lambda hour: math.nan if hour % 24 < 10 else course(hour)


HOT = ("gpu:throttled:avg5m", "reason", "hw_thermal")
LOST = ("gpu:xid_class_errors:count5m", "class", "lost")


def memory(used, total):
    return {"gpu:memory_total_bytes": steady(total), "gpu:memory_used_bytes:max5m": steady(used)}


FLEET = [
    Device("a", 0, labelled=HELD),
    Device("a", 1, series={**AT_REST, **NOBODY}, labelled=HELD),
    Device("a", 2, series=AT_REST, labelled=HELD),
    Device("a", 3, series={**AT_REST, **NOBODY, "gpu:held:avg5m": steady(0)}, labelled=dict.fromkeys(HELD, steady(0))),
    # The GPU appears idle, but it has only a quarter of the samples.
    Device("a", 4, series={name: gaps(course) for name, course in {**WELL, **AT_REST}.items()}, labelled=HELD),
    # The holder came three hours ago.
    Device(
        "a", 5, labelled=HELD, info=since(HOURS - 3, steady(1)),
        series={name: since(HOURS - 3, course) for name, course in {**WELL, **AT_REST}.items()},
    ),
    # Idle for a day and a half, after days of work.
    Device(
        "a", 6, labelled=HELD,
        series={**AT_REST, **{name: (lambda hour: 0.0 if hour > HOURS - 36 else 0.7) for name in AT_REST if "ratio" in name}},
    ),
    # The GPU is idle all the time, but a holder took it only two hours ago.
    Device("d", 0, series={**AT_REST, **NOBODY, "gpu:held:avg5m": lambda hour: float(hour > HOURS - 2)}, labelled=HELD),
    # The GPU worked within the last hour, whenever the audit runs in the 15 minutes after the last sample.
    Device(
        "a", 7, labelled=HELD,
        series={name: (lambda hour: 0.7 if 0.4 < HOURS - hour < 0.6 else 0.0) for name in AT_REST if "ratio" in name},
    ),
    Device("b", 0, series=NOTHING, labelled=HELD),
    Device("b", 1, series={"gpu:memory_used_bytes:max5m": steady(SENTINEL)}, labelled=HELD),
    Device("b", 2, series={"gpu:busy_ratio:avg5m": steady(97.0), "gpu:compute_active_ratio:avg5m": steady(-1.0)}, labelled=HELD),
    Device("b", 3, jobs=("gpu_exporter", "nvidia_gpu"), labelled=HELD),
    Device("b", 4, series={"gpu:lost": steady(1)}, labelled=HELD),
    Device("b", 5, labelled={**HELD, LOST: lambda hour: 1 if 40 < hour < 41 else None}),
    Device("b", 6, labelled={**HELD, HOT: lambda hour: 1 if hour % 4 < 1 else None}),
    # The GPU disappeared two days ago.
    Device(
        "b", 7, info=until(HOURS - 48, steady(1)),
        series={name: until(HOURS - 48, course) for name, course in WELL.items()},
    ),
    # Requests are so short that kernels ran for less than 1 % of each five minutes. The second GPU has one request of 2
    # s an hour.
    Device("e", 0, labelled=HELD,
           series={**AT_REST, **NOBODY, "gpu:busy_ratio:avg5m": steady(0.0067), **activity(steady(0.013))}),
    Device("e", 1, series={**AT_REST, **NOBODY, **activity(lambda hour: 0.07 if hour % 1 < 0.1 else 0.0)}, labelled=HELD),
    # The metric of busy kernels is stuck at 0.
    Device("e", 2, series={**AT_REST, "gpu:compute_active_ratio:avg5m": steady(0.4), **activity(steady(0.4)),
                           "gpu:unreported_work_ratio:avg5m": steady(0.4)}, labelled=HELD),
    # The GPU appears idle. For ten hours of each day there is no value, so the roll-ups have no sample.
    Device("e", 3, series={**AT_REST, **NOBODY, **dark(AT_REST)}, labelled=HELD),
    # The same GPU on a server whose roll-ups have NaN samples.
    Device("e", 4, series={**AT_REST, **NOBODY, **{n: nan_at_night(c) for n, c in AT_REST.items()}}, labelled=HELD),
    # Little memory, and no activity metrics: an instance on a GPU before Hopper.
    Device("e", 5, labelled=HELD,
           series={**memory(9 * GIB, 80 * GIB), **dict.fromkeys((n for n in AT_REST if "ratio" in n), never)}),
    # For three hours, a kernel has waited for another GPU. It computed before.
    Device("e", 6, labelled=HELD, series={
        "gpu:tensor_active_ratio:avg5m": lambda hour: 0.0 if hour > HOURS - 3.5 else 0.3,
        "gpu:stalled_ratio:avg5m": since(HOURS - 3.5, steady(1)),
    }),
    # The same GPU, but the kernel computes again.
    Device("e", 7, labelled=HELD, series={
        "gpu:tensor_active_ratio:avg5m": steady(0.3),
        "gpu:stalled_ratio:avg5m": until(HOURS - 0.5, since(HOURS - 9, steady(1))),
    }),
    Device("c", 0, labelled=HELD),
    Device("c", 0, "1", "3g.40gb", labelled=HELD, series={
        **memory(9 * GIB, 40 * GIB), "gpu:compute_active_ratio:avg5m": steady(0.2), "gpu:busy_ratio:avg5m": steady(0.2),
    }),
    Device("c", 0, "2", "1g.10gb", labelled=HELD, series=memory(9.8 * GIB, 10 * GIB)),
    Device("c", 1, labelled={
        **HELD,
        ("gpu:tenant_memory_limit_bytes", "tenant", "notebook"): steady(16 * GIB),
        ("gpu:tenant_memory_used_bytes:max5m", "tenant", "notebook"): steady(15 * GIB),
        # The counter of refusals restarts at 0 with the tenant. The counter reaches 5 before the restart, and 2 after
        # it.
        ("gpu:tenant_denied_total", "tenant", "notebook"): (lambda hour: 5 if 20 < hour < 50 else 2 if hour >= 60 else 0),
        ("gpu:tenant_memory_limit_bytes", "tenant", "batch"): steady(32 * GIB),
        ("gpu:tenant_memory_used_bytes:max5m", "tenant", "batch"): steady(20 * GIB),
        # Pods of HAMi. The second one ended a day ago, and no longer reserves memory.
        ("gpu:tenant_memory_limit_bytes", "tenant", "ml/train-0"): steady(8 * GIB),
        ("gpu:tenant_memory_used_bytes:max5m", "tenant", "ml/train-0"): steady(GIB),
        ("gpu:tenant_memory_limit_bytes", "tenant", "ml/ended-0"): until(HOURS - 24, steady(8 * GIB)),
    }),
]  # fmt: skip

WORDS = {
    "a gpu 0": "right",
    "a gpu 1": "held_without_process",
    "a gpu 2": "idle",
    "a gpu 3": "free",
    "a gpu 4": "no_data",
    "a gpu 5": "no_data",
    "a gpu 6": "idle",
    "a gpu 7": "oversized_compute",
    "b gpu 0": "no_data",
    # The audit drops impossible values. One GPU keeps its compute values, the other only its memory values, which are
    # not sufficient.
    "b gpu 1": "right",
    "b gpu 2": "no_data",
    "b gpu 3": "right",
    "b gpu 4": "unhealthy",
    "b gpu 5": "unhealthy",
    "b gpu 6": "unhealthy",
    "b gpu 7": "no_data",
    "c gpu 0 3g.40gb (instance 1)": "oversized_memory",
    "c gpu 0 1g.10gb (instance 2)": "saturated",
    "c gpu 1": "right",
    "d gpu 0": "no_data",
    "e gpu 0": "oversized_memory",
    "e gpu 1": "oversized_memory",
    "e gpu 2": "broken_metrics",
    "e gpu 3": "oversized_memory",
    "e gpu 4": "no_data",
    "e gpu 5": "no_data",
    "e gpu 6": "stalled",
    "e gpu 7": "right",
    "c gpu 1 tenant batch": "right",
    "c gpu 1 tenant notebook": "saturated",
    "c gpu 1 tenant ml/train-0": "oversized_memory",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with prometheus(FLEET, HOURS, tmp_path_factory.mktemp("fleet")) as url:
        yield url


@pytest.fixture(scope="module")
def audit(server):
    # End one step ago, so that the last sample is in the window at any time.
    order = Order(
        (HOURS - 1) * 3600.0,
        Access(server),
        prices=[Price("H100*", 2.0)],
        currency="EUR",
        thresholds=Thresholds(idle_hours=24, new_holder_hours=0),
    )
    return make(order, time.time())


@pytest.fixture(scope="module")
def found(audit):
    return {str(one.holding.subject): one for one in audit.findings}


def test_every_gpu_has_its_word(found):
    assert {name: one.verdict.word for name, one in found.items()} == WORDS


def test_figures_are_the_server_s(found):
    memory = found["a gpu 0"].holding.memory
    # A daily cycle between 50 and 70 GiB over almost four days.
    assert memory.max == pytest.approx(70 * GIB, rel=0.001) and memory.p50 == pytest.approx(60 * GIB, rel=0.02)
    assert memory.mean == pytest.approx(60 * GIB, rel=0.01) and memory.p50 < memory.p95 < memory.p99 <= memory.max
    assert memory.coverage_ratio == pytest.approx(1.0, abs=0.01)
    assert found["a gpu 0"].holding.memory_total_bytes == 80 * GIB


def test_how_long_it_rests_is_never_said_too_long(found):
    assert found["a gpu 1"].holding.quiet.whole_window
    quiet = found["a gpu 6"].holding.quiet
    assert 34 * 3600 <= quiet.seconds <= 36 * 3600 and not quiet.whole_window
    assert found["a gpu 7"].holding.quiet is None
    assert found["a gpu 4"].holding.quiet is None


def test_who_held_it_and_for_how_long(found):
    holding = found["a gpu 1"].holding
    assert [one.kind for one in holding.holders] == ["container"]
    assert holding.held_seconds == pytest.approx(HOURS * 3600, abs=3600)
    assert found["a gpu 3"].holding.held_seconds is None and found["a gpu 3"].holding.holders == ()


def test_what_was_impossible_is_said_and_is_in_no_figure(found, audit):
    assert found["b gpu 1"].holding.memory is None
    assert found["b gpu 2"].holding.busy is None and found["b gpu 2"].holding.compute is None
    assert found["b gpu 0"].holding.busy is None
    assert any("of gpu:memory_used_bytes dropped" in text for text in audit.sources.missing)


def test_a_gpu_of_two_exporters_is_one_and_it_is_said(found, audit):
    assert len([name for name in found if name == "b gpu 3"]) == 1
    assert any("for example b gpu GPU-b-3" in text for text in audit.sources.missing)


def test_a_counter_that_began_anew_is_counted_on(found):
    assert found["c gpu 1 tenant notebook"].holding.denials == pytest.approx(7, rel=0.05)
    assert found["c gpu 1 tenant batch"].holding.denials is None


def test_how_much_of_the_time_it_was_throttled(found):
    # The GPU is throttled in one hour of four. The roll-up has samples only while the GPU is throttled.
    assert found["b gpu 6"].holding.throttled == {"hw_thermal": pytest.approx(0.25, abs=0.01)}
    assert found["b gpu 5"].holding.throttled == {}


def test_instances_share_the_price_of_their_gpu(found):
    prices = [found["c gpu 0 3g.40gb (instance 1)"], found["c gpu 0 1g.10gb (instance 2)"]]
    assert [one.holding.price_per_hour for one in prices] == pytest.approx([1.0, 0.25])


def test_the_fleet_s_days(audit):
    assert len(audit.history) == 4
    # One GPU disappeared after the first two days, and one came three hours ago.
    assert [round(day.gpus) for day in audit.history] == [26, 26, 25, 25]
    # Impossible values of three GPUs are in no average. All other GPUs work or are idle.
    assert all(0.3 < day.busy_ratio < 0.7 for day in audit.history)
    # Of 24 GPUs with 80 GiB, twelve use 50 to 70 GiB, and the others use 9 to 20 GiB.
    assert all(0.8 < day.held_ratio < 1 and 0.3 < day.memory_ratio < 0.9 for day in audit.history), audit.history


def test_a_day_that_the_window_cuts_short_has_its_figures_too(server):
    history = read(Prometheus(Access(server)), 25 * 3600.0).days
    assert len(history) == 2
    assert all(None not in (day.gpus, day.held_ratio, day.busy_ratio, day.memory_ratio) for day in history)


def test_a_past_time_is_audited_as_it_was_then(server):
    # This GPU worked a day and a half ago. The server's clock is also this machine's clock.
    ago = time.time() - 40 * 3600
    order = Order(48 * 3600.0, Access(server), end_seconds=ago)
    audit = make(order, ago)
    assert audit.window.end_seconds == ago and audit.made_at_seconds == ago
    (then,) = [one for one in audit.findings if str(one.holding.subject) == "a gpu 6"]
    assert then.verdict.word != "idle" and then.holding.busy.max == 0.7
    assert not any("clock" in text for text in audit.sources.missing)


def test_it_asks_once_whatever_the_window(server):
    short, long = Prometheus(Access(server)), Prometheus(Access(server))
    read(short, 6 * 3600.0)
    read(long, 90 * 3600.0)
    # More days need more queries for parts of the window and longer roll-ups. Samples do not cross the network.
    assert long.queries - short.queries < 60
    # The longer window has fifteen times as many samples.
    assert long.bytes_received < 3 * short.bytes_received
