# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the GPUs that an entry selects when the layout is applied."""

from __future__ import annotations

import dataclasses

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.change.targets import targets
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import SelectorError
from ansible_collections.openfleet.gpu.plugins.module_utils.layout.matching import select
from ansible_collections.openfleet.gpu.plugins.module_utils.layout.types import WITHOUT_PART, Selector
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import FORMS, SHARINGS, parse_layout
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.compute_mode import ComputeMode

UUID = "GPU-5c89d3fa-0000-4000-8000-00000000000%d"


@pytest.fixture(name="gpus")
def four_gpus():
    gpus = assumed_gpus(["H100-80GB", "H100-80GB", "A100-80GB", "L40S-48GB"])
    return [dataclasses.replace(g, uuid=UUID % g.index, pci_address="0000:%02x:00.0" % (0x10 + g.index)) for g in gpus]


def named(gpus, *selectors, sharing="shared"):
    layout = parse_layout([{"gpus": list(selectors), "sharing": sharing}])
    uuids = {target.gpu_uuid for target in targets(layout, gpus)}
    return [gpu.index for gpu in gpus if gpu.uuid in uuids]


@pytest.mark.parametrize(
    ("selector", "indexes"),
    [
        (0, [0]),
        (3, [3]),
        (UUID % 1, [1]),
        (("GPU-" + (UUID % 1)[4:].upper()), [1]),
        ("0000:12:00.0", [2]),
        ("00000000:12:00.0", [2]),
        ("13:00.0", [3]),
        ({"model": "H100*"}, [0, 1]),
        ({"model": "*80GB*"}, [0, 1, 2]),
        ("all", [0, 1, 2, 3]),
    ],
)
def test_each_kind_of_selector(gpus, selector, indexes):
    assert named(gpus, selector) == indexes


def test_gpus_without_an_entry_have_no_target(gpus):
    assert named(gpus, 1, {"model": "A100*"}) == [1, 2]
    assert targets(parse_layout([]), gpus) == ()


@pytest.mark.parametrize("selector", ["GPU-00000000-0000-4000-8000-000000000000", "0000:99:00.0", {"model": "B200*"}])
def test_selector_without_match_lists_the_gpus(gpus, selector):
    with pytest.raises(SelectorError) as caught:
        named(gpus, 0, selector)
    assert caught.value.where == "gpu_layout[0].gpus[1]"
    assert "0: NVIDIA H100 80GB HBM3, %s, 0000:10:00.0" % (UUID % 0) in caught.value.cure


@pytest.mark.parametrize(
    ("kept", "there"),
    [([0], "GPU 0 alone"), ([0, 3], "GPUs 0 and 3"), ([0, 1, 3], "GPUs 0, 1 and 3"), ([1, 2, 3], "GPUs 1 to 3")],
)
def test_unknown_index_lists_the_known_ones(gpus, kept, there):
    with pytest.raises(SelectorError) as caught:
        select(Selector("index", 7), [gpus[index] for index in kept], "gpu_layout[0].gpus[0]")
    assert str(caught.value) == "gpu_layout[0].gpus[0]: this host has no GPU 7. It has %s." % there


def test_host_without_gpus_is_reported():
    with pytest.raises(SelectorError, match="no GPU at all"):
        named([], 0)


def test_gpu_matched_by_two_selectors_is_detected(gpus):
    layout = parse_layout(
        [
            {"gpus": [2], "sharing": "shared"},
            {"gpus": [0, {"model": "A100*"}], "sharing": "exclusive"},
        ]
    )
    with pytest.raises(SelectorError) as caught:
        targets(layout, gpus)
    assert caught.value.where == "gpu_layout[1].gpus[1]"
    assert "gpu_layout[0].gpus[0]" in caught.value.problem
    assert "gpu 2" in caught.value.problem


def test_targets_of_each_kind_of_sharing(gpus):
    layout = parse_layout(
        [
            {
                "gpus": [0],
                "sharing": "mig",
                "mig": [{"profile": "1g.10gb", "count": 2}, {"profile": "3g.40gb", "placement": 4}],
            },
            {"gpus": [1], "sharing": "exclusive"},
            {"gpus": [2], "sharing": "shared"},
        ]
    )
    mig, exclusive, shared = targets(layout, gpus)
    assert mig.settings["compute_mode"] is None
    assert [(i.profile, i.start) for i in mig.division.instances] == [
        ("1g.10gb", None),
        ("1g.10gb", None),
        ("3g.40gb", 4),
    ]
    assert str(mig) == "mig: 2x 1g.10gb, 1x 3g.40gb@4"
    assert (exclusive.division, exclusive.settings["compute_mode"]) == (None, "exclusive_process")
    assert (shared.division, shared.settings["compute_mode"]) == (None, "default")


def test_splits_become_compute_slices(gpus):
    layout = parse_layout(
        [
            {
                "gpus": [0],
                "sharing": "mig",
                "mig": [{"profile": "3g.40gb", "compute_instances": ["1c.3g.40gb", "2c.3g.40gb"]}],
            },
        ]
    )
    assert targets(layout, gpus)[0].division.instances[0].compute_slices == (2, 1)


def test_mps_is_exclusive_and_time_slicing_has_its_slice(gpus):
    mps = {"gpus": [0], "sharing": "mps", "mps": {"name": "a", "clients": 2, "active_thread_percentage": 50}}
    sliced = {"gpus": [1], "sharing": "time_slicing", "time_slicing": {"slice": "long", "replicas": 2}}
    first, second = targets(parse_layout([mps, sliced]), gpus)
    assert first.division is None and second.division is None
    assert first.settings == {"compute_mode": "exclusive_process", "time_slice": "default"}
    assert second.settings == {"compute_mode": "default", "time_slice": "long"}


def test_tenants_need_a_shared_gpu(gpus):
    entry = {"gpus": [0], "sharing": "vgpu", "vgpu": {"tenants": [{"name": "a", "memory": "1GiB", "sm_percent": 10}]}}
    (target,) = targets(parse_layout([entry]), gpus)
    assert target.division is None
    assert target.settings == {"compute_mode": "default", "time_slice": "default"}


def test_every_sharing_has_its_compute_mode():
    modes = {form.key: ComputeMode().wanted(form.key, form) for form in FORMS}
    modes.update((sharing, ComputeMode().wanted(sharing, None)) for sharing in WITHOUT_PART)
    assert set(modes) == set(SHARINGS)
    assert {sharing for sharing, mode in modes.items() if mode is None} == {"mig"}


def test_unknown_index_may_be_octal(gpus):
    """YAML 1.1 reads a number with a leading zero as octal."""
    with pytest.raises(SelectorError, match="YAML reads 010 as 8: write indices without leading zeros"):
        named(gpus, 8)
    with pytest.raises(SelectorError) as raised:
        named(gpus, 7)
    assert "YAML" not in str(raised.value)


def test_all_problems_of_selectors_are_reported_at_once(gpus):
    layout = parse_layout(
        [
            {"gpus": [0, 7], "sharing": "shared"},
            {"gpus": ["0000:99:00.0", {"model": "*"}], "sharing": "exclusive"},
        ]
    )
    with pytest.raises(SelectorError) as caught:
        targets(layout, gpus)
    places = [problem.where for problem in caught.value.problems]
    assert places == ["gpu_layout[0].gpus[1]", "gpu_layout[1].gpus[0]", "gpu_layout[1].gpus[1]"]
    for place in places:
        assert place in str(caught.value)
