# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Convert configurations of nvidia-mig-parted, and report unsupported parts."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import combinations_with_replacement, permutations

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.catalogue import load_models
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import parse_layout
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mig.parted import convert, sharing

MODELS = load_models()


def one(*elements):
    """Return the layout and the problems of a label with these elements.

    Fails if the parser refuses the layout.
    """
    data = {"version": "v1", "mig-configs": {"label": list(elements)}}
    found = convert(data, "config.yaml", MODELS)["label"]
    parse_layout(found.layout)
    return found.layout, list(found.problems)


def element(devices="all", enabled=True, profiles=None, **more):
    return dict({"devices": devices, "mig-enabled": enabled, "mig-devices": profiles or {}}, **more)


def test_all_gpus_without_mig():
    assert one(element(enabled=False)) == ([{"gpus": "all", "sharing": "shared"}], [])


def test_mig_mode_without_instances():
    assert one(element()) == ([{"gpus": "all", "sharing": "mig", "mig": []}], [])


def test_different_gpus_of_a_host():
    layout, problems = one(
        element([0, 1], enabled=False), element([2], profiles={"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 0})
    )
    assert problems == []
    assert layout == [
        {"gpus": [0, 1], "sharing": "shared"},
        {"gpus": [2], "sharing": "mig", "mig": [{"profile": "1g.5gb", "count": 2}, {"profile": "2g.10gb"}]},
    ]


@pytest.mark.parametrize("pci_id", ["0x233010DE", "0x233010de", 0x233010DE])
def test_device_filter_becomes_the_model_name(pci_id):
    layout, problems = one(element(profiles={"1g.10gb": 7}, **{"device-filter": pci_id}))
    assert [layout[0]["gpus"], problems] == [[{"model": "H100 80GB HBM3"}], []]


def test_a_board_with_several_pci_ids_is_named_once():
    layout, problems = one(element(profiles={"1g.5gb": 7}, **{"device-filter": ["0x20B110DE", "0x20F110DE"]}))
    assert [layout[0]["gpus"], problems] == [[{"model": "A100-PCIE-40GB"}], []]


def test_model_specific_indices_are_converted_with_a_note():
    """The configuration of a DGX Station is an example, because its display GPU has an index too."""
    layout, problems = one(
        element([0, 1], enabled=False, **{"device-filter": "0x20B210DE"}),
        element([2, 4], profiles={"3g.40gb": 2}, **{"device-filter": "0x20B210DE"}),
        element([3], enabled=False, **{"device-filter": "0x1FB010DE"}),
    )
    assert [entry["gpus"] for entry in layout] == [[0, 1], [2, 4], [3]]
    assert len(problems) == 3 and all("device-filter is left out" in problem for problem in problems)
    assert problems[1].endswith("on hosts whose GPUs 2, 4 are of A100-SXM4-80GB")
    assert problems[2].endswith("on hosts whose GPU 3 is of PCI id 0x1FB010DE")


def test_parts_of_an_instance_become_compute_instances():
    layout, problems = one(
        element(profiles={"1c.3g.40gb": 4, "2c.3g.40gb": 1, "1g.10gb": 1}),
    )
    assert problems == []
    assert layout[0]["mig"] == [
        {"profile": "3g.40gb", "compute_instances": ["2c.3g.40gb", "1c.3g.40gb"]},
        {"profile": "3g.40gb", "compute_instances": ["1c.3g.40gb", "1c.3g.40gb", "1c.3g.40gb"]},
        {"profile": "1g.10gb"},
    ]


def test_equally_split_instances_are_one_entry_next_to_whole_ones():
    layout, problems = one(element(profiles={"2c.4g.20gb": 4, "4g.20gb": 1, "1c.1g.5gb": 2, "1c.2g.10gb": 0}))
    assert problems == []
    assert layout[0]["mig"] == [
        {"profile": "4g.20gb"},
        {"profile": "4g.20gb", "count": 2, "compute_instances": ["2c.4g.20gb", "2c.4g.20gb"]},
        {"profile": "1g.5gb", "count": 2},
    ]


@pytest.mark.parametrize(
    ("parts", "slices", "shares"),
    [
        ([1], 3, [(1,)]),
        ([1, 1], 3, [(1, 1)]),
        ([1, 2], 3, [(2, 1)]),
        ([1] * 7, 3, [(1, 1, 1), (1, 1, 1), (1,)]),
        ([2, 2], 3, [(2,), (2,)]),
        ([4, 4, 4], 7, [(4,), (4,), (4,)]),
        ([3, 4], 7, [(4, 3)]),
        ([1, 2, 4], 7, [(4, 2, 1)]),
        # Depending on the free space on the GPU, two or three instances are possible.
        ([2, 2, 1, 1], 3, None),
    ],
)
def test_parts_that_share_an_instance(parts, slices, shares):
    assert sharing(parts, slices) == shares


def created(order, slices, room):
    """Return the instances that mig-parted creates from parts in this order.

    The GPU has room for `room` instances. Returns None if the order fails.
    """
    shares = []
    for part in order:
        if shares and sum(shares[-1]) + part <= slices:
            shares[-1].append(part)
        elif len(shares) == room:
            return None
        else:
            shares.append([part])
    return sorted(sorted(share) for share in shares)


@pytest.mark.parametrize("slices", [2, 3, 4, 7])
def test_parts_share_as_configured_on_any_gpu(slices):
    settled = 0
    for number in range(1, 6):
        for parts in combinations_with_replacement(range(1, slices), number):
            shares = sharing(parts, slices)
            if shares is None:
                continue
            settled += 1
            expected = sorted(sorted(share) for share in shares)
            # mig-parted tries the orders of parts, from the largest part down, and takes the first order that succeeds.
            orders = sorted(set(permutations(parts)), reverse=True)
            for room in range(1, number + 1):
                outcomes = (created(order, slices, room) for order in orders)
                assert next((outcome for outcome in outcomes if outcome), expected) == expected, (parts, room)
    assert settled > 3


def test_filters_for_several_models_are_converted_with_a_warning():
    layout, problems = one(
        element(profiles={"1g.10gb": 7}, **{"device-filter": ["0x233010DE"]}),
        element(profiles={"1g.18gb": 7}, **{"device-filter": ["0x233510DE", "0x233B10DE"]}),
    )
    assert [entry["gpus"] for entry in layout] == [
        [{"model": "H100 80GB HBM3"}],
        [{"model": "H200*"}],
    ]
    assert len(problems) == 1 and "several models" in problems[0]


@pytest.mark.parametrize(
    ("ids", "pattern", "boards"),
    [
        (["0x233510DE", "0x233B10DE"], "H200*", ["NVIDIA H200", "NVIDIA H200 NVL"]),
        (["0x20B010DE", "0x20B110DE"], "A100-*-40GB", ["NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"]),
    ],
)
def test_filter_for_board_variants_matches_each(ids, pattern, boards):
    layout, problems = one(element(profiles={"1g.18gb": 1}, **{"device-filter": ids}))
    assert [layout[0]["gpus"], problems] == [[{"model": pattern}], []]
    (selector,) = parse_layout(layout).entries[0].selectors
    known = dict.fromkeys(board.name for model in MODELS.values() for board in model.boards)
    assert [name for name in known if fnmatchcase(name.replace("NVIDIA ", "", 1), selector.value)] == boards


@pytest.mark.parametrize(
    ("elements", "said"),
    [
        ([element(profiles={"2c.3g.20gb": 2, "1c.3g.20gb": 2})], "[0]: 2x 2c.3g.20gb, 2x 1c.3g.20gb are left out"),
        ([element(profiles={"nonsense": 2})], '[0]: "nonsense" is not the name of a MIG profile'),
        ([element(**{"device-filter": "0xFFFF10DE"})], "no GPU with the PCI id 0xFFFF10DE"),
        ([element(**{"device-filter": "0x23308086"})], "no GPU with the PCI id 0x23308086"),
        ([element([0], **{"device-filter": "0x233010DE"})], "device-filter is left out"),
        ([element(later=1)], "the key later is unknown"),
    ],
)
def test_inexpressible_configuration_is_reported(elements, said):
    problems = one(*elements)[1]
    assert len(problems) == 1 and said in problems[0]
    assert problems[0].startswith("config.yaml: mig-configs.label")


def said_of(*elements):
    """Return the problems that are reported for a label.

    The parser may refuse the label's layout.
    """
    return convert({"version": "v1", "mig-configs": {"label": list(elements)}}, "config.yaml", MODELS)["label"].problems


H100, A100 = {"device-filter": "0x233010DE"}, {"device-filter": "0x20B010DE"}


@pytest.mark.parametrize(
    ("elements", "said"),
    [
        ([element(), element([0], enabled=False)], "one entry selects all"),
        ([element([0, 1]), element([1, 2])], "[0] and [1] select the same GPUs"),
        ([element([0], **H100), element([0])], "[0] and [1] select the same GPUs"),
        ([element(**H100), element([0])], "[0] and [1] select the same GPUs"),
        ([element(**H100), element(enabled=False, **H100)], "[0] and [1] select the same GPUs"),
        ([element([0, 2], **H100), element([2, 0], **A100)], "[0] and [1] select GPU 0, 2, each with another model"),
    ],
)
def test_conflicting_entries_are_reported(elements, said):
    problems = [problem for problem in said_of(*elements) if "device-filter" not in problem]
    assert len(problems) == 1 and said in problems[0]


def test_entries_of_different_gpus_are_combined():
    assert one(element([0]), element([1], enabled=False))[1] == []
    problems = one(element(**H100), element([3], enabled=False, **A100))[1]
    assert len(problems) == 1 and "device-filter is left out" in problems[0]


def test_ambiguous_part_profiles_are_reported():
    layout, problems = one(element(profiles={"1c.2g.48gb": 2, "1c.2g.48gb+gfx": 2}))
    assert layout[0]["mig"] == [] and len(problems) == 2


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "config.yaml: it has no mig-configs"),
        ({"version": "v1"}, "config.yaml: it has no mig-configs"),
        ({"version": "v2", "mig-configs": {}}, "config.yaml: version: its version is v2"),
        ({"version": "v1", "mig-configs": {"a": {}}}, "mig-configs.a: expected a list"),
        ({"version": "v1", "mig-configs": {"a": [3]}}, "mig-configs.a[0]: expected a mapping"),
        ({"version": "v1", "mig-configs": {"a": [element("0")]}}, "a[0].devices: expected all or a list"),
        ({"version": "v1", "mig-configs": {"a": [element([True])]}}, "a[0].devices: expected all or a list"),
        ({"version": "v1", "mig-configs": {"a": [element(enabled="yes")]}}, "a[0].mig-enabled: expected true or false"),
        ({"version": "v1", "mig-configs": {"a": [element(profiles={"1g.5gb": "7"})]}}, "1g.5gb: expected a count"),
        (
            {"version": "v1", "mig-configs": {"a": [element(enabled=False, profiles={"1g.5gb": 7})]}},
            "a[0].mig-devices: expected none where mig-enabled is false",
        ),
    ],
)
def test_other_file_is_refused(data, said):
    with pytest.raises(FleetError) as error:
        convert(data, "config.yaml", MODELS)
    assert said in str(error.value)
