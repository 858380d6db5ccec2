# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run all parts of the rollback of daemons and tenants, and report all errors."""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.change.host_change import HostChange
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import ApplyError, FleetError, attempt_all
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Host
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus

pytestmark = pytest.mark.core

HOST = Host("580.105.08", "12.580", "13.0", True, tuple(assumed_gpus(["L40S-48GB"])))


class Part:
    """Act as daemons or tenants whose rollback succeeds, or raises `error`."""

    def __init__(self, error=None):
        self.error, self.tried = error, 0

    def bring_back(self, *_host):
        self.tried += 1
        if self.error:
            raise self.error


DAEMON = ApplyError("mps a", "it does not start", "See its log.")
TENANT = ApplyError("vgpu b", "the disk is full", "Make room.")


def test_failures_of_daemons_and_tenants_are_both_reported():
    daemons, tenants = Part(DAEMON), Part(TENANT)
    with pytest.raises(ApplyError) as failed:
        HostChange([each for each in (daemons, tenants) if each]).bring_back(HOST)
    assert (daemons.tried, tenants.tried) == (1, 1)
    assert str(failed.value) == "mps a: it does not start; vgpu b: the disk is full. See its log. Make room."


@pytest.mark.parametrize(
    ("daemons", "tenants"), [(Part(DAEMON), Part()), (Part(), Part(DAEMON)), (Part(DAEMON), None), (None, Part(DAEMON))]
)
def test_single_failure_is_reported_unchanged(daemons, tenants):
    with pytest.raises(ApplyError) as failed:
        HostChange([each for each in (daemons, tenants) if each]).bring_back(HOST)
    assert failed.value is DAEMON
    assert all(part.tried == 1 for part in (daemons, tenants) if part)


def test_parts_after_a_failure_are_tried_and_a_common_fix_is_shown_once():
    parts = [Part(FleetError("a", "x", "Run again.")), Part(), Part(FleetError("b", "y", "Run again."))]
    with pytest.raises(ApplyError, match=r"a: x; b: y\. Run again\.$"):
        attempt_all(*(part.bring_back for part in parts))
    assert [part.tried for part in parts] == [1, 1, 1]
    attempt_all(None, parts[1].bring_back)
    assert parts[1].tried == 2
