# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that the parser quickly returns a layout or a short error for any input."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError, LayoutError
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import layout_to_data, parse_layout
from ansible_collections.openfleet.gpu.plugins.plugin_utils.variables import check
from tests.thorough import THOROUGH
from tests.unit import yaml_files

GOOD = [
    case["layout"]
    for case in yaml_files.read(Path(__file__).parents[2] / "data" / "good_layouts.yml")
    if case["layout"]
]
RUNS = 100_000 if THOROUGH else 2_000
#: A longer error message would be too long to read.
MOST_CHARACTERS = 500
ODD = [
    *(None, True, False, 0, -1, 1, 8, 63, 64, 256, 10**9, 10**400, -(10**400), 10**5000, 1.5, 1e300),
    *(float("inf"), float("-inf"), float("nan"), "", " ", "\0", "²", "٣", "1" * 400, "9" * 5000 + "GiB", "x" * 5000),
    *("all", "All", "0", "3g.40gb", "9" * 400 + "g.1gb", "1c.1g.5gb", "99c.1g.5gb", "GPU-", "MIG-", "8GiB", "50%"),
    *([], {}, [[]], {"": ""}, {1: 2}, {None: None}, {True: 1}, {"model": "*" * 3000}, {"model": None}, b"bytes"),
    *([10**400], ["²"], {"x" * 5000: 1}, "\ud800", {"gpus": "all"}, [{}] * 70, list(range(300))),
]


def places(node, found):
    """Return (container, key) of every value in the layout."""
    if isinstance(node, (dict, list)) and node:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        found += [(node, key) for key in keys]
        for key in keys:
            places(node[key], found)
    return found


def odd_layout(draw):
    layout = copy.deepcopy(draw.choice(GOOD))
    for _ in range(draw.randint(1, 3)):
        there = places(layout, [])
        if not there:
            break
        node, key = draw.choice(there)
        what = draw.randrange(4)
        if what == 0 and isinstance(node, dict):
            del node[key]
        elif what == 1 and isinstance(node, dict):
            node[draw.choice(["gpu", "mig", "count", "gpus", "²", 7, None, "tenants"])] = copy.deepcopy(
                draw.choice(ODD)
            )
        elif what == 2:
            # Replace the value by one from another position, as a mistake in an editor may do.
            other, place = draw.choice(there)
            node[key] = copy.deepcopy(other[place])
        else:
            node[key] = copy.deepcopy(draw.choice(ODD))
    return layout


@pytest.mark.parametrize("part", range(10))
def test_any_odd_layout_is_parsed_or_refused(part):
    draw = random.Random(part)
    for number in range(RUNS // 10):
        layout = odd_layout(draw)
        try:
            parsed = parse_layout(layout)
        except LayoutError as error:
            assert error.problems, (part, number)
            for problem in error.problems:
                assert len(problem.problem + problem.cure) < MOST_CHARACTERS, (part, number, str(problem)[:200])
        else:
            # A layout that is accepted must stay the same when it is written and parsed again.
            assert parse_layout(layout_to_data(parsed)) == parsed, (part, number)


@pytest.mark.parametrize("value", ODD, ids=lambda value: str(type(value)))
def test_odd_value_instead_of_a_layout(value):
    try:
        parse_layout(value)
    except FleetError as error:
        assert str(error)
    check.check({"gpu_layout": value, "gpu_site_waves": value, "gpu_simulator_gpus": value})


def test_recursive_value_is_refused():
    layout = []
    layout.append(layout)
    with pytest.raises(LayoutError):
        parse_layout(layout)
