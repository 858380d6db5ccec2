# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read histories from Prometheus: the number of their points, and their values."""

from __future__ import annotations

import re

import pytest

np = pytest.importorskip("numpy")

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import (
    Finding,
    Holding,
    Stat,
    Subject,
    Verdict,
    Window,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.prometheus import Course, PrometheusError, RangeAnswer
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.model import WHOLE, mig, share
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.model import GpuToday, Need, Occupant, Wish
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.series import (
    fleet_of,
    histories,
    need_of_tenant,
    needs,
    with_wish,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.model import Policy

GIB = 1 << 30
DAY = 86400
WINDOW = Window(100 * DAY, 104 * DAY)


def occupant(number, shape=WHOLE, instance="", memory=None, **wish):
    subject = Subject("gpu", "a", "GPU-%d" % number, str(number), mig_instance=instance)
    found = Finding("", Verdict("idle", ""), Holding(subject, memory=memory))
    return Occupant("w%d" % number, ("a", number), "GPU-%d" % number, shape, None, found, Wish(**wish), instance)


class Server:
    """Answer `value` (a function of time) for every queried GPU and step.

    A query for more than `refuse` GPUs is too large.
    """

    name = "http://p"

    def __init__(self, values, missing=(), refuse=1 << 30):
        self.values, self.missing, self.refuse = values, missing, refuse
        self.asked = []

    def query_range(self, expression, start, end, step):
        series = re.search(r"(gpu:[a-z0-9_:]+)\{", expression).group(1)
        uuids = re.search(r'gpu_uuid=~"([^"]*)"', expression).group(1).replace("\\\\", "").split("|")
        if len(uuids) > self.refuse:
            raise PrometheusError(self.name, "too much", too_much=True)
        self.asked.append((series, uuids, expression, (end - start) / step + 1))
        if series in self.missing:
            return RangeAnswer(())
        value = self.values[series.split(":")[1]]
        times = range(int(start), int(end) + 1, int(step))
        courses = [
            Course({"host": "a", "gpu_uuid": uuid}, {float(at): value for at in times if value is not None})
            for uuid in uuids
        ]
        return RangeAnswer(tuple(courses), ("a store is slow",))


WELL = {"memory_used_bytes": 8.0 * GIB, "busy_ratio": 0.5, "compute_active_ratio": 0.25}


def read(server, occupants, window=WINDOW):
    return histories(server, occupants, window)


def test_only_given_gpus_are_queried_in_small_groups():
    occupants = [occupant(number) for number in range(90)]
    server = Server(WELL)
    found, grid, notes = read(server, occupants)
    assert [len(uuids) for _series, uuids, _text, _points in server.asked] == [40, 40, 10] * 3
    assert all(points <= 4032 for _series, _uuids, _text, points in server.asked)
    assert set(found) == {one.name for one in occupants} and notes == ["http://p warns: a store is slow"]
    assert np.all(found["w7"]["memory"] == 8 * GIB) and np.all(found["w7"]["busy"] == 50.0)
    assert len(grid.times) == len(found["w7"]["busy"])


def test_too_large_query_is_reduced():
    server = Server(WELL, refuse=7)
    found, _grid, _notes = read(server, [occupant(number) for number in range(20)])
    assert max(len(uuids) for _series, uuids, _text, _points in server.asked) <= 7
    assert np.all(found["w19"]["compute"] == 25.0)
    with pytest.raises(PrometheusError):
        read(Server(WELL, refuse=0), [occupant(0)])


def test_without_roll_ups_the_series_are_queried():
    missing = ["gpu:%s:%s" % (name, "max5m" if "bytes" in name else "avg5m") for name in WELL]
    server = Server(WELL, missing)
    found, _grid, _notes = read(server, [occupant(0)])
    assert np.all(found["w0"]["busy"] == 50.0) and np.all(found["w0"]["memory"] == 8 * GIB)
    assert any("avg_over_time(gpu:busy_ratio{" in text for _series, _uuids, text, _points in server.asked)


def test_points_of_long_windows_are_maxima():
    server = Server(WELL, ["gpu:busy_ratio:avg5m"])
    read(server, [occupant(0)], Window(0, 60 * DAY))
    texts = {series: text for series, _uuids, text, _points in server.asked}
    assert "max_over_time(gpu:memory_used_bytes:max5m{" in texts["gpu:memory_used_bytes:max5m"]
    assert re.search(
        r"max_over_time\(avg_over_time\(gpu:busy_ratio\{.*\}\[300s\]\)\[1500s:300s\]\)", texts["gpu:busy_ratio"]
    )
    assert all(points <= 4032 for *_rest, points in server.asked)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 97.0])
def test_impossible_values_are_dropped(value):
    found, _grid, _notes = read(Server({**WELL, "busy_ratio": value}), [occupant(0)])
    assert np.all(np.isnan(found["w0"]["busy"])) and np.all(found["w0"]["compute"] == 25.0)


def test_missing_series_has_no_samples():
    found, _grid, _notes = read(Server({**WELL, "compute_active_ratio": None}), [occupant(0)])
    assert np.all(np.isnan(found["w0"]["compute"]))


# --- Needs ---


def needed(one, values=WELL, model="H100-80GB"):
    found, grid, _notes = read(Server(values), [one])
    fleet = fleet_of([one], found, grid, {one.name: 80.0 * GIB})
    gpus = {one.key: GpuToday("a", None, model)}
    return needs(fleet, [one], gpus, Policy())[one.name]


def test_compute_is_sm_activity_or_the_higher_value_for_low_latency():
    assert needed(occupant(0)).compute_percent == pytest.approx(25 * 1.15)
    assert needed(occupant(0, latency="low")).compute_percent == pytest.approx(50 * 1.15)
    assert needed(occupant(0), {**WELL, "compute_active_ratio": None}).compute_percent == pytest.approx(50 * 1.15)


def test_memory_has_a_margin():
    assert 8 * GIB * 1.3 <= needed(occupant(0)).memory_bytes < 8 * GIB * 1.35


def test_value_of_an_instance_is_a_share_of_its_gpu():
    server = Server(WELL)
    one = occupant(0, mig("3g.40gb"))
    found, grid, _notes = read(server, [one])
    need = needs(fleet_of([one], found, grid, {}), [one], {one.key: GpuToday("a", None, "H100-80GB")}, Policy())["w0"]
    assert need.compute_percent == pytest.approx(25 * 1.15 * 3 / 7)


def test_too_little_history_gives_a_reason_instead_of_a_need():
    found, grid, _notes = read(Server({**WELL, "memory_used_bytes": None}), [occupant(0)])
    one = occupant(0)
    need = needs(fleet_of([one], found, grid, {}), [one], {one.key: GpuToday("a", None, "H100-80GB")}, Policy())["w0"]
    assert need == "too little data: no data"


def test_tenant_is_sized_only_in_memory():
    quota = share("vgpu", 16384, 30)
    memory = Stat(14.0 * DAY, 1.0, max=8.0 * GIB)
    need = need_of_tenant(occupant(0, quota, memory=memory), Policy())
    assert need.compute_percent == 30 and need.memory_bytes == pytest.approx(8 * GIB * 1.3)
    assert need_of_tenant(occupant(0, quota, memory=memory), Policy(), 0.5).memory_bytes == 12 * GIB
    # The workload ran within its quota, so its need is never more than the quota.
    full = Stat(14.0 * DAY, 1.0, max=16.0 * GIB)
    assert need_of_tenant(occupant(0, quota, memory=full), Policy()).memory_bytes == 16 * GIB
    assert "too little data" in need_of_tenant(occupant(0, quota, memory=Stat(3600.0, 1.0, max=1.0)), Policy())
    assert "is unknown" in need_of_tenant(occupant(0, quota), Policy())
    assert "has not used its quota" in need_of_tenant(
        occupant(0, quota, memory=Stat(14.0 * DAY, 1.0, max=0.0)), Policy()
    )


def test_figures_of_the_inventory_replace_measurements():
    seen = Need(8.0 * GIB, 20.0, 0.9, "seen")
    one = occupant(0, memory_bytes=4 * GIB)
    assert with_wish(seen, one).memory_bytes == 4 * GIB and with_wish(seen, one).compute_percent == 20.0
    both = occupant(0, memory_bytes=4 * GIB, sm_percent=10)
    told = with_wish("too little data", both)
    assert (told.memory_bytes, told.compute_percent, told.measured) == (4 * GIB, 10.0, False)
    assert with_wish("too little data", one) == "too little data"
    assert with_wish(seen, occupant(0)) is seen
