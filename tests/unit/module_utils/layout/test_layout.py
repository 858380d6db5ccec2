# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the parser of gpu_layout returns valid layouts and reports errors."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError, LayoutError
from ansible_collections.openfleet.gpu.plugins.module_utils.layout.profile_name import (
    ProfileName,
    nearest_profile,
    parse_profile_name,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.layout.types import Entry, Layout, MigInstance, Selector
from ansible_collections.openfleet.gpu.plugins.module_utils.sizes import SizeError, format_size, parse_size_bytes
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import layout_to_data, parse_layout
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps.model import Mps
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.time_slicing.model import TimeSlicing
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.part import Tenant, Vgpu
from tests.unit import yaml_files

DATA = Path(__file__).parents[2] / "data"
GOOD = yaml_files.read(DATA / "good_layouts.yml")
BAD = yaml_files.read(DATA / "bad_layouts.yml")
GIB = 2**30


def parsed(text):
    return parse_layout(yaml.safe_load(text))


def problems_of(data):
    with pytest.raises(LayoutError) as caught:
        parse_layout(data)
    return caught.value.problems


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case["name"])
def test_valid_layout_survives_its_canonical_form(case):
    layout = parse_layout(case["layout"])
    assert len(layout.entries) == len(case["layout"])
    assert parse_layout(layout_to_data(layout)) == layout
    # The layout is also written as YAML and read again, because YAML can change the meaning of a value.
    assert parsed(yaml.safe_dump(layout_to_data(layout))) == layout


@pytest.mark.parametrize("case", BAD, ids=lambda case: case["name"])
def test_invalid_layout_is_refused_with_all_its_problems(case):
    expected = sorted(
        (where, words)
        for where, found in case["finds"].items()
        for words in ([found] if isinstance(found, str) else found)
    )
    problems = sorted((problem.where, str(problem)) for problem in problems_of(case["layout"]))
    assert [where for where, _ in problems] == [where for where, _ in expected], problems
    for (_, text), (_, words) in zip(problems, expected):
        assert words in text


@pytest.mark.parametrize("case", BAD, ids=lambda case: case["name"])
def test_every_problem_has_a_place_and_a_fix(case):
    for problem in problems_of(case["layout"]):
        assert problem.where.startswith("gpu_layout")
        assert problem.problem and not problem.problem.endswith(".")
        assert problem.cure.endswith((".", "?")) and problem.cure[0].isupper()


def test_complete_layout():
    layout = parsed("""
        - gpus: [0, 1]
          sharing: mig
          mig:
            - {profile: 3g.40gb, compute_instances: [1c.3g.40gb, 2c.3g.40gb]}
            - {profile: 1g.10gb, count: 2}
            - {profile: 2g.20gb, placement: 4, mps: {name: small, clients: 4, active_thread_percentage: 25}}
        - gpus: [2]
          sharing: mps
          mps: {name: big, clients: 5, active_thread_percentage: 25, pinned_memory_limit: 18GiB, oversubscribe: true}
        - gpus: ["GPU-5C89ca61-4aac-4bd7-8d0f-2bb3ae2f1f0d", "00000000:3B:00.0"]
          sharing: time_slicing
          time_slicing: {slice: long, replicas: 4}
        - gpus: [6, 7]
          sharing: vgpu
          vgpu:
            policy: burst
            oversubscribe: {memory: 1.5}
            tenants:
              - {name: notebook-a, memory: 512MiB, sm_percent: 30, priority: 1, gpu: 6}
              - {name: pair, gpus: 2, memory: 16GiB, sm_percent: 70}
        - gpus: {model: "L40*"}
          sharing: shared
        """)
    assert layout == Layout(
        (
            Entry(
                0,
                (Selector("index", 0), Selector("index", 1)),
                "mig",
                (
                    MigInstance("3g.40gb", compute_instances=("1c.3g.40gb", "2c.3g.40gb")),
                    MigInstance("1g.10gb", count=2),
                    MigInstance("2g.20gb", placement=4, sharing="mps", part=Mps("small", 4, 25)),
                ),
            ),
            Entry(1, (Selector("index", 2),), "mps", Mps("big", 5, 25, 18 * GIB, True)),
            Entry(
                2,
                (Selector("uuid", "GPU-5c89ca61-4aac-4bd7-8d0f-2bb3ae2f1f0d"), Selector("pci", "0000:3b:00.0")),
                "time_slicing",
                TimeSlicing("long", 4),
            ),
            Entry(
                3,
                (Selector("index", 6), Selector("index", 7)),
                "vgpu",
                Vgpu(
                    (
                        Tenant("notebook-a", GIB // 2, 30, 1, 1, Selector("index", 6)),
                        Tenant("pair", 16 * GIB, 70, gpus=2),
                    ),
                    "burst",
                    1.5,
                    1.0,
                ),
            ),
            Entry(4, (Selector("model", "L40*"),), "shared"),
        )
    )
    assert layout.entries[3].where == "gpu_layout[3]"
    assert layout.entries[0].instances[0].compute_slices == (1, 2)


def test_an_empty_list_is_a_layout():
    assert parse_layout([]) == Layout(())


def test_split_into_one_part_is_no_split():
    layout = parsed("""
        - gpus: [0]
          sharing: mig
          mig:
            - {profile: 3g.40gb, compute_instances: [3g.40gb]}
            - {profile: 3g.40gb, compute_instances: [3c.3g.40gb]}
            - {profile: 3g.40gb}
        """)
    whole, same, plain = layout.entries[0].instances
    assert whole == same == plain


def test_canonical_form_leaves_out_defaults():
    data = layout_to_data(
        parsed("""
        - gpus: [all]
          sharing: mig
          mig: [{profile: 1g.10gb, count: 1}]
        """)
    )
    assert data == [{"gpus": "all", "sharing": "mig", "mig": [{"profile": "1g.10gb"}]}]

    data = layout_to_data(
        parse_layout(next(case["layout"] for case in GOOD if case["name"].startswith("every default")))
    )
    assert data[0]["time_slicing"] == {"slice": "short"}
    assert data[1]["vgpu"] == {"tenants": [{"name": "a", "memory": "8GiB", "sm_percent": 30}]}


def test_values_are_frozen_and_usable_as_keys():
    layout = parsed("[{gpus: [0], sharing: shared}]")
    with pytest.raises(FrozenInstanceError):
        layout.entries[0].sharing = "mig"
    assert {layout: 1}[parsed("[{gpus: [0], sharing: shared}]")] == 1


def test_subclasses_of_plain_types_become_plain():
    """Drop the record of its origin that a string of Ansible has.

    The origin must not get into a hash or a pickle.
    """

    class Tagged(str):
        pass

    entry = parse_layout([{"gpus": [Tagged("all")], "sharing": Tagged("mig"), "mig": [{"profile": Tagged("1g.5gb")}]}])
    assert type(entry.entries[0].sharing) is str
    assert type(entry.entries[0].instances[0].profile) is str


def test_error_lists_problems_and_has_the_place_of_the_first():
    with pytest.raises(FleetError) as caught:
        parse_layout([{"gpus": [0], "sharing": "migg"}, 5])
    error = caught.value
    assert (error.where, error.problem) == ("gpu_layout[0].sharing", 'unknown value "migg"')
    assert [line.split(":")[0] for line in str(error).splitlines()] == ["gpu_layout[0].sharing", "gpu_layout[1]"]


def test_long_value_is_shortened_in_messages():
    (problem,) = problems_of([{"gpus": [0], "sharing": "x" * 5000}])
    assert len(str(problem)) < 250


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("1MiB", 2**20), ("512MiB", 512 * 2**20), ("18GiB", 18 * GIB), ("1024MiB", GIB)]
)
def test_sizes(text, size_bytes):
    assert parse_size_bytes(text) == size_bytes
    assert parse_size_bytes(format_size(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "18", "18 GiB", "18gib", "18GB", "18G", "-1GiB", "01GiB", "1.5GiB", "1KiB", "1GiB\n"]
)
def test_invalid_sizes(text):
    with pytest.raises(SizeError):
        parse_size_bytes(text)


@pytest.mark.parametrize("size_bytes", [0, -GIB, 2**20 + 1])
def test_inexact_size_is_not_formatted(size_bytes):
    with pytest.raises(ValueError, match="MiB"):
        format_size(size_bytes)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("1g.10gb", ProfileName(1, 1, 10)),
        ("2c.3g.40gb", ProfileName(2, 3, 40)),
        ("1g.24gb+me.all", ProfileName(1, 1, 24, "+me.all")),
        ("1c.2g.48gb-me", ProfileName(1, 2, 48, "-me")),
    ],
)
def test_profile_names(text, name):
    assert parse_profile_name(text) == name
    assert str(name) == text


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("3g.45gb", "3g.40gb"),
        ("1g.5gb", "1g.10gb"),
        # The error suggests the profile whose size is nearest.
        ("1g.18gb", "1g.20gb"),
        ("1g.12gb+me", "1g.10gb+me"),
        ("2g.40gb", "2g.20gb"),
        ("1c.3g.45gb", "3g.40gb"),
        # This model has no profile with five slices.
        ("5g.40gb", ""),
        ("half", ""),
    ],
)
def test_similar_profile_is_suggested(wrong, meant):
    known = ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]
    assert nearest_profile(wrong, known) == meant


@pytest.mark.parametrize(
    ("layout", "name", "value"),
    [
        ('[{"gpus": "all", "sharing": "shared"}]', "gpu_layout", "[...]"),
        ([{"gpus": [0], "sharing": "mig", "mig": "[{profile: 1g.10gb}]"}], "gpu_layout", "[...]"),
        ([{"gpus": [0], "sharing": "mps", "mps": " {clients: 4}"}], "gpu_layout", "{...}"),
    ],
)
def test_list_or_mapping_given_as_text_has_a_helpful_error(layout, name, value):
    with pytest.raises(LayoutError) as caught:
        parse_layout(layout)
    cure = caught.value.cure
    assert cure.startswith(
        "An INI inventory and -e NAME=VALUE pass it as text. Write it as YAML in group_vars or host_vars"
    )
    assert """-e '{"%s": %s}'""" % (name, value) in cure
