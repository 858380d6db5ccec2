# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""After drift by hand and a dry run: the drift is there still, and is seen where it is."""

from __future__ import annotations

import re

import pytest
from verify_layout import differences, differences_of_daemons

DRIFTED_GPUS = {"h100": {0, 3, 4, 5, 6, 7}, "a100": {1}, "pro6000": {1}, "l40s": {1}}


@pytest.mark.parametrize("name", sorted(DRIFTED_GPUS))
def test_a_dry_run_left_the_drift_alone(gpus_of, daemons_of, host_vars, name):
    gpus = gpus_of(name)
    found = differences(host_vars(name), gpus)
    daemons = differences_of_daemons(host_vars(name), gpus, daemons_of(name))
    assert daemons == (["MPS daemons are ['small'], asked for ['inference', 'small']"] if name == "h100" else [])
    assert {int(re.match(r"GPU (\d+): ", sentence)[1]) for sentence in found} == DRIFTED_GPUS[name]
