# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that refused plans distinguish a sick GPU from a mistake in the layout."""

from __future__ import annotations

import dataclasses

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.change.lost_gpus import SKIP, answering
from ansible_collections.openfleet.gpu.plugins.module_utils.change.planner import plan
from ansible_collections.openfleet.gpu.plugins.module_utils.change.sick_gpus import sick_gpus, without
from ansible_collections.openfleet.gpu.plugins.module_utils.change.targets import targets
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import PlanError
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Host, Mig
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import parse_layout

HALVES = {"sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}


def host_of(*keys, driver="580.105.08"):
    return Host(driver, "13", "13.0", True, tuple(assumed_gpus(keys)))


def lacks(host, index, **values):
    """Return the host with changed values of the GPU at this index."""
    gpus = list(host.gpus)
    gpus[index] = dataclasses.replace(gpus[index], **values)
    return dataclasses.replace(host, gpus=tuple(gpus))


def judged(host, layout):
    """Return {GPU index: failed driver call} of the sick GPUs in a refused plan."""
    parsed = parse_layout(layout)

    def make(host):
        return plan(host.gpus, targets(answering(parsed, host, SKIP).layout, host.gpus))

    with pytest.raises(PlanError) as refused:
        make(host)
    sick = sick_gpus(host, refused.value, make)
    if sick:
        make(without(host, sick))
    return {gpu.index: gpu.call for gpu in sick}


PROFILES, MODE = "nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetMigMode"
NO_PROFILES = {"mig": Mig(True)}


def test_all_sick_gpus_are_named():
    host = lacks(lacks(host_of(*["H100-80GB"] * 4), 0, **NO_PROFILES), 3, mig=Mig())
    assert judged(host, [dict(HALVES, gpus="all")]) == {0: PROFILES, 3: MODE}


def test_sick_gpu_that_misses_one_profile_is_named():
    host = host_of(*["H100-80GB"] * 2)
    mig = host.gpus[0].mig
    some = dataclasses.replace(mig, profiles=tuple(p for p in mig.profiles if p.name != "3g.40gb"))
    assert judged(lacks(host, 0, mig=some), [dict(HALVES, gpus="all")]) == {0: PROFILES}


def test_sick_gpu_of_another_entry_is_not_blamed():
    host = lacks(host_of(*["H100-80GB"] * 3), 0, **NO_PROFILES)
    typo = {"gpus": [1], "sharing": "mig", "mig": [{"profile": "3g.41gb"}]}
    assert judged(host, [typo]) == {}
    host_with_typo = [typo, {"gpus": [0], "sharing": "exclusive"}]
    assert judged(host, host_with_typo) == {}


def test_impossible_request_is_not_blamed_on_the_gpu():
    full = {"gpus": "all", "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 3}]}
    assert judged(host_of(*["H100-80GB"] * 2), [full]) == {}
    assert judged(host_of("H100-80GB", "L40S-48GB"), [dict(HALVES, gpus="all")]) == {}


@pytest.mark.parametrize(("driver", "sick"), [("580.105.08", {0: PROFILES}), ("535.261.03", {})])
def test_lone_gpu_without_profiles_is_sick_if_its_driver_lists_them(driver, sick):
    host = lacks(host_of("H100-80GB", "L40S-48GB", driver=driver), 0, **NO_PROFILES)
    assert judged(host, [dict(HALVES, gpus=[0])]) == sick
