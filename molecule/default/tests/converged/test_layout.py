# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check with nvidia-smi that each GPU matches the inventory after a run."""

from __future__ import annotations

import pytest

from tests.lab.lab_fixtures import HOSTS
from tests.lab.verify_layout import differences, differences_of_daemons, differences_of_tenants


@pytest.mark.parametrize("name", HOSTS)
def test_every_gpu_matches_its_entry(gpus_of, daemons_of, tenants_of, host_vars, name):
    gpus = gpus_of(name)
    assert differences(host_vars(name), gpus) == []
    assert differences_of_daemons(host_vars(name), gpus, daemons_of(name)) == []
    assert differences_of_tenants(host_vars(name), gpus, tenants_of(name)) == []


def test_pinned_instance_has_its_placement(gpus_of):
    pinned = [instance for instance in gpus_of("h100")[3].instances.values() if instance.profile == "1g.10gb+me"]
    assert [instance.start for instance in pinned] == [6]


@pytest.mark.skipif("a100" not in HOSTS, reason="OPENFLEET_LIMIT leaves a100 out")
def test_layout_that_fails_in_written_order_is_created(gpus_of):
    # Without fixed placements, creating the profiles 19,19,14,9 fails with "insufficient resources" (MIG User Guide,
    # "Creating GPU Instances").
    profiles = sorted(instance.profile for instance in gpus_of("a100")[0].instances.values())
    assert profiles == ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]
