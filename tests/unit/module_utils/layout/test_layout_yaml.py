# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that YAML written for gpu_layout is read back as the same layout."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.openfleet.gpu.plugins.module_utils.layout.yaml_text import flow, layout_yaml
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import layout_to_data, parse_layout
from tests.thorough import draws
from tests.unit import yaml_files

GOOD = yaml_files.read(Path(__file__).parents[2] / "data" / "good_layouts.yml")
LAYOUTS = [case["layout"] if isinstance(case, dict) and "layout" in case else case for case in GOOD]


@pytest.mark.parametrize("data", LAYOUTS, ids=range(len(LAYOUTS)))
def test_layout_round_trips_as_yaml(data):
    data = layout_to_data(parse_layout(data))
    assert yaml.safe_load(layout_yaml(data)) == {"gpu_layout": data}


@pytest.mark.slow
@draws(50)
@given(
    st.text() | st.sampled_from(["on", "Yes", "n", "null", "~", "1e3", "0x1F", "03:00.0", "1_000", "7g.80gb", "18GiB"])
)
def test_any_text_round_trips_as_yaml(text):
    # A layout uses block style and flow style, so each value is tested in both.
    assert yaml.safe_load("a: [%s]" % flow(text)) == {"a": [text]}
    assert yaml.safe_load("a: %s" % flow(text)) == {"a": text}


def test_yaml_is_readable():
    data = [
        {"gpus": [0, 1], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "1g.10gb+me", "placement": 6}]},
        {"gpus": ["0000:3b:00.0"], "sharing": "exclusive"},
    ]
    assert layout_yaml(data) == (
        "gpu_layout:\n"
        "  - gpus: [0, 1]\n"
        "    sharing: mig\n"
        "    mig:\n"
        "      - {profile: 3g.40gb}\n"
        "      - {profile: 1g.10gb+me, placement: 6}\n"
        '  - gpus: ["0000:3b:00.0"]\n'
        "    sharing: exclusive\n"
    )
