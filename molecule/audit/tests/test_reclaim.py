# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What holds a GPU and does nothing: listed by default, and stopped where that is asked for. By the hosts' own systemd."""

from __future__ import annotations

import json

import pytest
import services
from services import BILLING, CONTAINER, DRAFT, SERVICES

ALL = [one.name for one in [*SERVICES, DRAFT, BILLING, CONTAINER]]
STOPPED = {DRAFT.name, CONTAINER.name}


def rows(played):
    """By name: why it is spared, or "" where it may be stopped."""
    return {one["name"].removesuffix(".service"): one["spared"] for one in played.report["reclaim"]}


def test_by_default_it_is_listed_and_goes_on(listed):
    assert rows(listed) == {DRAFT.name: "", CONTAINER.name: "", BILLING.name: "exempt (bill*)"}
    told = " ".join(listed.told.split())
    for name in STOPPED:
        assert f"ada: unit {name}.service, quiet for 168 h or longer: can be stopped" in told
    assert listed.active == dict.fromkeys(ALL, "active")
    assert listed.log == []


def test_what_does_nothing_is_stopped_and_nothing_else(proposal):
    assert proposal.active == {name: "inactive" if name in STOPPED else "active" for name in ALL}


def test_the_log_has_a_line_of_it(proposal, fleet):
    (line,) = map(json.loads, proposal.log)
    assert (line["host"], line["check"], line["spared"]) == ("ada", False, [])
    assert {(one["kind"], one["name"]) for one in line["stopped"]} == {("unit", f"{name}.service") for name in STOPPED}
    (draft,) = [one for one in line["stopped"] if one["name"] == "draft.service"]
    assert draft["gpus"] == [services.gpus(fleet.hosts["ada"])[DRAFT.gpu].uuid]


# tests/integration/modules/test_reclaim.py has what is gone already.
@pytest.mark.thorough
def test_a_second_run_has_nothing_to_stop(proposal, proposal_again):
    assert rows(proposal_again) == {BILLING.name: "exempt (bill*)"}
    assert proposal_again.active == proposal.active
    assert proposal_again.log == proposal.log


def test_what_was_stopped_is_neither_disabled_nor_removed(proposal, second, fleet):
    host = fleet.hosts["ada"]
    assert host.check_output("systemctl is-enabled draft") == "enabled"
    host.check_output("systemctl start draft")
    assert host.check_output("systemctl is-active draft") == "active"
    host.check_output("systemctl stop draft")
