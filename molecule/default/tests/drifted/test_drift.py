# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that a dry run after manual drift only predicts the repair."""

from __future__ import annotations

import re

import pytest
from site_changes import DRIFT_CHANGES

from tests.lab.lab_fixtures import HOSTS
from tests.lab.verify_layout import differences, differences_of_daemons
from tests.thorough import THOROUGH

DRIFTED_GPUS = {"h100": {0, 3, 4, 5, 6, 7}, "a100": {1}, "pro6000": {1}, "l40s": {1}}
#: The drift of h100 includes every kind of drift.
LOOKED_AT = HOSTS if THOROUGH else ["h100"]


@pytest.fixture(scope="module")
def foretold(play_site):
    """Run site.yml in check mode. All tests run after it."""
    return play_site("check-drifted.json", "--check", *([] if THOROUGH else ["--limit", ",".join(LOOKED_AT)]))


def test_dry_run_predicts_only_repairs_of_drift(foretold):
    assert set(foretold.hosts) == {*LOOKED_AT, *(["monitor"] if THOROUGH else [])}
    assert set(foretold.changes) == {change for change in DRIFT_CHANGES if change.host in LOOKED_AT}


@pytest.mark.parametrize("name", LOOKED_AT)
def test_dry_run_does_not_repair_drift(foretold, gpus_of, daemons_of, host_vars, name):
    gpus = gpus_of(name)
    found = differences(host_vars(name), gpus)
    daemons = differences_of_daemons(host_vars(name), gpus, daemons_of(name))
    assert daemons == (["MPS daemons are ['small'], asked for ['inference', 'small']"] if name == "h100" else [])
    assert {int(re.match(r"GPU (\d+): ", sentence)[1]) for sentence in found} == DRIFTED_GPUS[name]
