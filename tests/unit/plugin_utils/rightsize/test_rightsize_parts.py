# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test parts of right-sizing: options, modes of sharing, kept entries, risks."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.thorough import draws

pytest.importorskip("numpy")

from ansible_collections.openfleet.gpu.plugins.module_utils.catalogue import load_models
from ansible_collections.openfleet.gpu.plugins.module_utils.change.targets import resolved
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError, PlanError
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Host
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import parse_layout
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import (
    WORDS,
    Finding,
    Holding,
    Stat,
    Subject,
    Verdict,
    Window,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.geometry import geometry
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.model import WHOLE, mig, share
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize import options, today
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.mode import decide
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.model import (
    ISOLATIONS,
    LATENCIES,
    Need,
    Occupant,
    RightsizeError,
    Wish,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.observed import HostToday, hosts_today
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.overlay import merged, planned
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.risk import risk
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.series import MOST_POINTS, Grid
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.wishes import wish_of, wishes

GIB = 1 << 30
H100, L40S, T4 = "H100-80GB", "L40S-48GB", "T4-16GB"


#: With these verdicts, the history shows what the workload needs, or that it needs nothing.
TELLING = ("idle", "saturated", "oversized_memory", "oversized_compute", "free", "right")


def test_each_verdict_shows_or_hides_the_need():
    assert sorted([*today._BLIND, *TELLING]) == sorted(WORDS)


def need(memory_gib, percent, **more):
    return Need(memory_gib * GIB, percent, 0.9, "seen", **more)


# --- Settings of the inventory ---


def test_first_matching_entry_is_used():
    rows = [{"match": "notebook-*", "latency": "batch"}, {"match": "*", "isolation": "quota", "memory": "8GiB"}]
    found = wishes(rows, "a")
    assert wish_of(found, ["notebook-b", "b-gpu0"]).latency == "batch"
    other = wish_of(found, ["train", "b-gpu0"])
    assert (other.isolation, other.memory_bytes, other.latency) == ("quota", 8 * GIB, "normal")
    assert other.where == "gpu_rightsize_workloads of a[1]"
    # A workload without settings gets hardware isolation.
    assert wish_of(found[:1], ["train"]).isolation == "hardware"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"isolaton": "none"}, "isolaton: unknown key. Did you mean isolation?"),
        ({"mode": "mpss"}, "mode: 'mpss' is invalid. Use one of auto, exclusive, mig"),
        ({"memory": "8GB"}, "memory: the size"),
        ({"memory": 8}, "memory: the size 8 has no unit"),
        ({"sm_percent": 0}, "sm_percent: 0 is not an integer from 1 to 100"),
        ({"sm_percent": "30"}, "sm_percent: '30' is not an integer"),
        ({"leave": "yes"}, "leave: 'yes' is neither true nor false"),
        ({"match": ""}, "match: '' is not text"),
        ({"profile": "1g.10gb", "mode": "mps"}, "profile: a MIG profile needs the mode mig, and the mode is mps"),
        ("notebook", "'notebook' is not an entry"),
    ],
)
def test_invalid_values_are_named_with_their_place(row, words):
    with pytest.raises(RightsizeError) as caught:
        wishes([row], "a")
    assert str(caught.value).startswith("gpu_rightsize_workloads of a[0]") and words in str(caught.value)


def test_a_mapping_is_no_list():
    with pytest.raises(RightsizeError, match="is not a list"):
        wishes({"match": "*"}, "a")


@pytest.mark.parametrize(
    ("packing", "words"),
    [
        ({"polcy": "spread"}, "packing.polcy: unknown key"),
        ({"policy": "tight"}, "packing.policy: 'tight' is invalid"),
        ({"seconds": 0}, "packing.seconds"),
        ({"reserve_gpus": 2}, "packing.reserve_gpus"),
        ({"reserve_gpus": {H100: -1}}, "packing.reserve_gpus.H100-80GB: -1"),
        ({"headroom_sm_percent": "10"}, "packing.headroom_sm_percent: '10'"),
    ],
)
def test_settings_of_the_packing_are_checked(packing, words):
    with pytest.raises(FleetError) as caught:
        options.limits("host", None, None, packing)
    assert words in str(caught.value)


def test_limits_and_sizing_are_checked():
    with pytest.raises(RightsizeError, match="max_moved: -1"):
        options.limits("host", -1, None, {})
    assert options.policy({}).confidence == 0.99
    assert options.policy({}, "0.95").confidence == 0.95
    for wrong in (1, 0.2, "much", True, None, float("nan")):
        with pytest.raises(FleetError, match=r"confidence: .* is not a share from 0.5 to below 1"):
            options.policy({}, wrong)
    with pytest.raises(FleetError, match=r"sizing.confidence: unknown key"):
        options.policy({"confidence": 0.9})
    with pytest.raises(FleetError, match=r"sizing.memory_margin: unknown key"):
        options.policy({"memory_margin": 0.1})
    with pytest.raises(FleetError, match="memory_margin_ratio"):
        options.policy({"memory_margin_ratio": 7})
    assert options.limits("fleet", 0, 3, {"seconds": 5}).most_moved == 0


# --- The choice of a sharing mode ---


@pytest.mark.parametrize(
    ("wish", "asked", "model", "mode", "shape"),
    [
        # With hardware isolation, a workload gets the smallest instance with enough memory and slices, or else the
        # whole GPU.
        ({}, need(8, 5), H100, "mig", mig("1g.10gb")),
        ({}, need(8, 20), H100, "mig", mig("2g.20gb")),
        ({}, need(18, 10), H100, "mig", mig("1g.20gb")),
        ({}, need(30, 10), H100, "mig", mig("3g.40gb")),
        ({}, need(60, 10), H100, "exclusive", WHOLE),
        ({}, need(8, 70), H100, "exclusive", WHOLE),
        ({}, need(8, 5), L40S, "exclusive", WHOLE),
        # With isolation by quota, a workload becomes a tenant, unless it needs low latency.
        ({"isolation": "quota"}, need(8, 5), L40S, "vgpu", share("vgpu", 8192, 5)),
        ({"isolation": "quota", "latency": "low"}, need(8, 5), H100, "mig", mig("1g.10gb")),
        ({"isolation": "quota", "latency": "low"}, need(8, 5), L40S, "exclusive", WHOLE),
        # Without isolation, batch workloads get time slicing, and all other workloads get MPS.
        ({"isolation": "none", "latency": "batch"}, need(8, 5), L40S, "time_slicing", share("time_slicing", 8192, 5)),
        ({"isolation": "none"}, need(8, 5), L40S, "mps", share("mps", 8192, 5)),
        ({"isolation": "none", "latency": "low"}, need(8.1, 31), T4, "mps", share("mps", 8448, 35)),
        ({"isolation": "none"}, need(60, 5), L40S, "exclusive", WHOLE),
        # A mode in the inventory takes precedence over the derived mode.
        ({"mode": "exclusive"}, None, H100, "exclusive", WHOLE),
        ({"profile": "1g.10gb"}, None, H100, "mig", mig("1g.10gb")),
        ({"mode": "vgpu"}, need(8, 5), H100, "vgpu", share("vgpu", 8192, 5)),
        ({"mode": "mig"}, need(60, 90), H100, "mig", mig("7g.80gb")),
    ],
)
def test_the_mode_follows_from_isolation_then_latency(wish, asked, model, mode, shape):
    found = decide(Wish(**wish), asked, model)
    assert (found.mode, found.shape) == (mode, shape)
    assert found.reason


@pytest.mark.parametrize(
    ("wish", "asked", "model", "words"),
    [
        ({"profile": "9g.90gb"}, None, H100, "has no MIG profile 9g.90gb. Its profiles are"),
        ({"profile": "1g.10gb"}, None, L40S, "Its profiles are none, as it has no MIG"),
        ({"mode": "mig"}, need(1, 1), L40S, "L40S-48GB has no MIG"),
        ({"mode": "vgpu"}, need(100, 1), H100, "cannot provide that by vgpu"),
        ({"mode": "vgpu"}, None, H100, "its need is unknown"),
    ],
)
def test_impossible_demand_of_a_model_is_refused_with_the_entry(wish, asked, model, words):
    with pytest.raises(RightsizeError) as caught:
        decide(Wish(where="gpu_rightsize_workloads of a[3]", **wish), asked, model)
    assert words in str(caught.value) and "a[3]" in str(caught.value)


@draws(60)
@given(
    st.sampled_from(sorted(load_models())),
    st.sampled_from(ISOLATIONS),
    st.sampled_from(LATENCIES),
    st.floats(0, 200),
    st.floats(0, 115),
)
def test_chosen_shape_meets_the_need_and_the_isolation(model, isolation, latency, memory_gib, percent):
    asked = need(memory_gib, percent)
    found = decide(Wish(isolation=isolation, latency=latency), asked, model)
    rules = geometry(model)
    assert rules.can_hold(found.shape)
    if found.mode == "exclusive":
        assert found.shape == WHOLE
        return
    if isolation == "hardware":
        assert found.mode == "mig"
    if found.mode == "mig":
        profile = rules.capacity.profiles[found.shape.profile]
        assert profile.memory_mib * (1 << 20) >= asked.memory_bytes
        assert 100 * profile.compute_slices / rules.capacity.compute_slices >= percent - 1e-9
    else:
        assert found.shape.memory_mib * (1 << 20) >= asked.memory_bytes
        assert found.shape.sm_percent >= min(percent, 100)


# --- Entries kept from a layout ---

GPUS = assumed_gpus([H100] * 4)
NEW = {"gpus": [1], "sharing": "mig", "mig": [{"profile": "3g.40gb"}]}


def now(layout):
    """Return the state of a host with four GPUs after a layout was applied."""
    parsed = parse_layout(layout)
    return HostToday({}, Host("580.65.06", "", None, True, GPUS), parsed, resolved(parsed, GPUS))


@pytest.mark.parametrize(
    ("current", "kept"),
    [
        ([], []),
        ([{"gpus": "all", "sharing": "shared"}], [{"gpus": [0, 2, 3], "sharing": "shared"}]),
        ([{"gpus": {"model": "H100*"}, "sharing": "exclusive"}], [{"gpus": [0, 2, 3], "sharing": "exclusive"}]),
        ([{"gpus": [1], "sharing": "exclusive"}], []),
        (
            [{"gpus": [0], "sharing": "exclusive"}, {"gpus": [1, 3], "sharing": "shared"}],
            [{"gpus": [0], "sharing": "exclusive"}, {"gpus": [3], "sharing": "shared"}],
        ),
    ],
)
def test_other_gpus_keep_their_entries(current, kept):
    found = merged(now(current), [NEW], {1})
    assert found == [*kept, NEW]
    plan, _lines = planned(found, GPUS, "580.65.06")
    assert [gpu.gpu.index for gpu in plan.gpus if gpu.target.division is not None] == [1]


def test_unpinned_tenants_stay_in_one_entry():
    tenants = [{"name": "a", "memory": "8GiB", "sm_percent": 30}]
    current = [{"gpus": [0, 1], "sharing": "vgpu", "vgpu": {"tenants": tenants}}]
    with pytest.raises(PlanError, match="only some of them change"):
        merged(now(current), [NEW], {1})
    assert merged(now(current), [NEW], {0, 1}) == [NEW]


def test_invalid_layout_is_not_treated_as_empty():
    state = {"driver_version": "580.65.06", "nvml_version": "", "gpus": []}
    (today,) = hosts_today({"a": state}, {"a": [{"gpus": [7], "sharing": "exclusive"}]}).values()
    with pytest.raises(PlanError, match="the host's layout is invalid"):
        merged(today, [NEW], {0})


def test_daemons_and_tenants_are_planned():
    layout = [
        {"gpus": [0], "sharing": "mps", "mps": {"name": "gpu0", "clients": 2, "active_thread_percentage": 40}},
        {"gpus": [1], "sharing": "vgpu", "vgpu": {"tenants": [{"name": "a", "memory": "8GiB", "sm_percent": 30}]}},
    ]
    parse_layout(layout)
    _plan, lines = planned(layout, GPUS, None)
    assert [line.split(":")[0] for line in lines] == ["mps gpu0", "vgpu a"]


# --- Risks ---


def occupant(peak_gib=5.0, shape=WHOLE, holders=(), **wish):
    memory = Stat(86400.0, 1.0, max=peak_gib * GIB)
    found = Finding("1", Verdict("idle", "why"), Holding(Subject("gpu", "a", "GPU-1", "0"), memory=memory))
    return Occupant("w", ("a", 0), "GPU-1", shape, None, found, Wish(**wish), holders=tuple(holders))


@pytest.mark.parametrize(
    ("one", "then", "asked", "host", "word", "why"),
    [
        (occupant(), mig("1g.10gb"), need(6, 5), "a", "low", "a restart with"),
        (occupant(), mig("1g.10gb"), need(6, 5), "b", "medium", "another host"),
        (occupant(9.5), mig("1g.10gb"), need(9.6, 5), "a", "medium", "used 97 %"),
        (occupant(30), mig("1g.10gb"), need(6, 5), "a", "high", "more memory than it will have"),
        (occupant(), mig("1g.10gb"), None, "a", "medium", "not measured"),
        (occupant(), mig("1g.10gb"), need(6, 5, measured=False), "a", "medium", "not measured"),
        (occupant(), share("mps", 8192, 10), need(6, 5), "a", "medium", "a fault of one"),
        (occupant(latency="low"), share("mps", 8192, 10), need(6, 5), "a", "medium", "low latency"),
        (occupant(), share("vgpu", 8192, 10), need(6, 5), "a", "medium", "not a security boundary"),
        (occupant(holders=[{"job": "17"}]), mig("1g.10gb"), need(6, 5), "a", "medium", "scheduler"),
    ],
)
def test_each_risk_is_named(one, then, asked, host, word, why):
    found, reasons = risk(one, then, H100, asked, host)
    assert found == word and any(why in reason for reason in reasons)


@pytest.mark.parametrize(("confidence", "word"), [(0.9, "low"), (0.6, "medium"), (0.3, "high")])
def test_a_short_history_is_a_risk(confidence, word):
    short = dataclasses.replace(need(6, 5), confidence=confidence)
    assert risk(occupant(), mig("1g.10gb"), H100, short, "a")[0] == word


# --- Load on the server ---


@given(st.integers(0, 2 * 10**9), st.integers(600, 3 * 10**8))
def test_number_of_points_is_limited_for_any_window(start, seconds):
    grid = Grid.of(Window(start, start + seconds))
    assert 1 <= len(grid.times) <= MOST_POINTS
    assert grid.step % 300 == 0 and grid.end <= start + seconds
    # The grid leaves out less than one step at each end of the window.
    assert grid.times[-1] > start + seconds - grid.step and (grid.times[0] < start + grid.step or len(grid.times) == 1)
