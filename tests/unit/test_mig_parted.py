# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Configurations of nvidia-mig-parted as layouts: what comes over, and what is said where it does not."""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.catalogue import load_models
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.module_utils.layout import parse_layout
from ansible_collections.openfleet.gpu.plugins.module_utils.mig_parted import convert

MODELS = load_models()


def one(*elements):
    """The layout and the problems of a label with these elements. Every layout is one that the parser takes."""
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
def test_a_device_filter_becomes_the_models_name(pci_id):
    layout, problems = one(element(profiles={"1g.10gb": 7}, **{"device-filter": pci_id}))
    assert [layout[0]["gpus"], problems] == [[{"model": "H100 80GB HBM3"}], []]


def test_filters_for_several_models_come_over_with_a_word_of_warning():
    layout, problems = one(
        element(profiles={"1g.10gb": 7}, **{"device-filter": ["0x233010DE"]}),
        element(profiles={"1g.18gb": 7}, **{"device-filter": ["0x233510DE", "0x233B10DE"]}),
    )
    assert [entry["gpus"] for entry in layout] == [
        [{"model": "H100 80GB HBM3"}],
        [{"model": "H200"}, {"model": "H200 NVL"}],
    ]
    assert len(problems) == 1 and "several models" in problems[0]


@pytest.mark.parametrize(
    ("elements", "said"),
    [
        ([element(profiles={"1c.3g.20gb": 2})], "[0]: 1c.3g.20gb is a part of a 3g.20gb"),
        ([element(profiles={"nonsense": 2})], '[0]: "nonsense" is not the name of a MIG profile'),
        ([element(**{"device-filter": "0xFFFF10DE"})], "no GPU with the PCI id 0xFFFF10DE"),
        ([element(**{"device-filter": "0x23308086"})], "no GPU with the PCI id 0x23308086"),
        ([element([0], **{"device-filter": "0x233010DE"})], "device-filter is left out"),
        ([element(later=1)], "the key later is not known"),
    ],
)
def test_what_no_layout_can_say_is_said(elements, said):
    problems = one(*elements)[1]
    assert len(problems) == 1 and said in problems[0]
    assert problems[0].startswith("config.yaml: mig-configs.label")


def test_all_beside_others_is_said():
    data = {"version": "v1", "mig-configs": {"label": [element(), element([0], enabled=False)]}}
    assert "all stands beside other GPUs" in convert(data, "config.yaml", MODELS)["label"].problems[0]


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
    ],
)
def test_a_file_that_is_no_such_configuration_is_refused(data, said):
    with pytest.raises(FleetError) as error:
        convert(data, "config.yaml", MODELS)
    assert said in str(error.value)
