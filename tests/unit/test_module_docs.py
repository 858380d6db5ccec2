# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the modules' documentation says holds: options are the argument spec's, and the examples are valid."""

from __future__ import annotations

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.doc_fragments.layout import ModuleDocFragment
from ansible_collections.openfleet.gpu.plugins.module_utils.layout import parse_layout
from ansible_collections.openfleet.gpu.plugins.modules import (
    drain,
    gpu_info,
    layout,
    mig,
    mps,
    reclaim,
    time_slicing,
    unit_request,
)

pytestmark = pytest.mark.core


def documented_options(module):
    """With those of the collection's own fragments, which are named `layout` and `layout.gpus`."""
    documentation = yaml.safe_load(module.DOCUMENTATION)
    found = dict(documentation.get("options", {}))
    for name in documentation["extends_documentation_fragment"]:
        if name.startswith("openfleet.gpu."):
            part = name.removeprefix("openfleet.gpu.").partition(".")[2].upper() or "DOCUMENTATION"
            found.update(yaml.safe_load(getattr(ModuleDocFragment, part))["options"])
    return found


@pytest.mark.parametrize("module", [drain, gpu_info, layout, mig, mps, reclaim, time_slicing, unit_request])
def test_options_are_those_of_the_argument_spec(module):
    documented = documented_options(module)
    spec = module.argspec()
    assert set(documented) == set(spec)
    for name, option in spec.items():
        for key in ("type", "default", "required"):
            assert documented[name].get(key) == option.get(key), (name, key)


@pytest.mark.parametrize("module", [layout, mig, mps, time_slicing])
def test_the_layouts_of_the_examples_are_valid(module):
    name = "openfleet.gpu." + yaml.safe_load(module.DOCUMENTATION)["module"]
    layouts = [task[name]["layout"] for task in yaml.safe_load(module.EXAMPLES)]
    given = [layout for layout in layouts if isinstance(layout, list)]
    assert given
    for one in given:
        parse_layout(one)
