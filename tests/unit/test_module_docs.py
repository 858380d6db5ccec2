# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the modules' documentation says holds: options are the argument spec's, and the examples are valid."""

from __future__ import annotations

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.module_utils.layout import parse_layout
from ansible_collections.openfleet.gpu.plugins.modules import drain, gpu_info, mig


@pytest.mark.parametrize("module", [drain, gpu_info, mig])
def test_options_are_those_of_the_argument_spec(module):
    documented = yaml.safe_load(module.DOCUMENTATION)["options"]
    spec = module.argspec()
    assert set(documented) == set(spec)
    for name, option in spec.items():
        for key in ("type", "default", "required"):
            assert documented[name].get(key) == option.get(key), (name, key)


def test_the_layouts_of_the_examples_are_valid():
    layouts = [task["openfleet.gpu.mig"]["layout"] for task in yaml.safe_load(mig.EXAMPLES)]
    given = [layout for layout in layouts if isinstance(layout, list)]
    assert given
    for layout in given:
        parse_layout(layout)
