# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that rightsize.yml lists idle services, and stops them only on request.

The tests use the hosts' systemd.
"""

from __future__ import annotations

import json
import re

import pytest
import services
from services import BILLING, CONTAINER, DRAFT, SERVICES

ALL = [one.name for one in [*SERVICES, DRAFT, BILLING, CONTAINER]]
STOPPED = {DRAFT.name, CONTAINER.name}


def rows(played):
    """Return the reason why each workload is spared, or "" if it may be stopped."""
    return {one["name"].removesuffix(".service"): one["spared"] for one in played.report["reclaim"]}


def test_idle_services_are_only_listed_by_default(listed):
    assert rows(listed) == {DRAFT.name: "", CONTAINER.name: "", BILLING.name: "exempt (bill*)"}
    told = " ".join(listed.told.split())
    for name in STOPPED:
        assert re.search(rf"ada: unit {name}\.service, idle for at least 16[789] h: can be stopped", told)
    assert listed.active == dict.fromkeys(ALL, "active")
    assert listed.log == []


def home(fleet):
    return fleet.hosts["ada"].file(f"/home/{DRAFT.user}/gpu-notice-draft.service.txt")


def test_first_run_with_stop_only_announces(announced, fleet):
    assert announced.active == dict.fromkeys(ALL, "active")
    (line,) = map(json.loads, announced.log)
    assert {one["name"] for one in line["noticed"]} == {f"{name}.service" for name in STOPPED} and line["stopped"] == []
    told = {one["name"]: (one["user"], one["told"], len(one["untold"])) for one in line["noticed"]}
    assert told == {"draft.service": (DRAFT.user, ["wall", "home"], 0), "notebook.service": ("", ["wall"], 1)}


def test_owner_gets_a_file_about_keep(announced, kept, proposal, fleet):
    # The log now says that the service was stopped. The two notices are files in the owner's folder.
    file = home(fleet)
    assert (file.user, file.mode) == (DRAFT.user, 0o600)
    assert file.content_string.startswith("Service draft.service on ada was stopped. It held gpu 2 (GPU-")
    assert "keep draft.service 3d" not in file.content_string
    (line, *_more) = map(json.loads, announced.log)
    assert {one["keep"] for one in line["noticed"]} == {"draft.service", "notebook.service"}


def test_kept_service_continues_and_the_other_stops(kept):
    assert kept.active == {name: "inactive" if name == CONTAINER.name else "active" for name in ALL}
    line = json.loads(kept.log[-1])
    assert [one["name"] for one in line["stopped"]] == [f"{CONTAINER.name}.service"]
    (spared,) = line["spared"]
    assert spared["name"] == "draft.service" and spared["why"].endswith(f"by {DRAFT.user}")


def test_only_idle_services_are_stopped(proposal):
    assert proposal.active == {name: "inactive" if name in STOPPED else "active" for name in ALL}


def test_log_has_a_line_for_each_run(proposal, fleet):
    assert len(proposal.log) == 3
    line = json.loads(proposal.log[-1])
    assert (line["host"], line["check"], line["spared"], line["noticed"]) == ("ada", False, [], [])
    (draft,) = line["stopped"]
    assert (draft["kind"], draft["name"], draft["told"]) == ("unit", "draft.service", ["home"])
    assert draft["gpus"] == [services.gpus(fleet.hosts["ada"])[DRAFT.gpu].uuid]


def test_host_forgets_stopped_services(proposal, fleet):
    notices = json.loads(fleet.hosts["ada"].file("/var/lib/openfleet-gpu/reclaim/notices.json").content_string)
    assert notices["notices"] == []


KEEP = "gpu-layout keep"


def test_keep_service_answers_by_the_users_account(kept, proposal, fleet):
    """Identify users by the account of their process.

    The test uses the real socket and the unit's sandbox.
    """
    host = fleet.hosts["ada"]
    assert host.check_output("systemctl is-active gpu-layout-keep.socket") == "active"
    host.check_output(f"{KEEP} billing 1h")
    assert "billing.service  until" in host.check_output(f"{KEEP} --list")
    for command, why in ((f"{KEEP} billing 1h", "belongs to root"), (f"{KEEP} --end billing", "you have no keep")):
        done = host.run(f"runuser -u {DRAFT.user} -- {command}")
        assert done.rc == 1 and why in done.stderr, done.stderr
    assert "Nothing of yours" in host.check_output(f"runuser -u nobody -- {KEEP} --list")
    assert "lasts at most 7 days" in host.run(f"{KEEP} billing 8d").stderr
    host.check_output(f"{KEEP} --end billing")
    host.check_output("journalctl --sync")
    said = host.check_output("journalctl --output=cat --unit=gpu-layout-keep.service")
    assert f"{DRAFT.user} keeps draft.service until" in said and "root ended the keep of billing.service" in said
    assert "Traceback" not in said


def test_process_of_the_owner_is_not_the_service(kept, proposal, fleet):
    """Do not confuse a user's own unit with the service.

    A user's unit can have any name. Its cgroup is below the user's service manager.
    """
    host = fleet.hosts["ada"]
    done = host.run(f"runuser -u {DRAFT.user} -- {KEEP} render 1h")
    assert done.rc == 1 and "belongs to root" in done.stderr


# tests/integration/modules/test_reclaim.py tests workloads that have already ended.
@pytest.mark.thorough
def test_second_run_stops_nothing(proposal, proposal_again):
    assert rows(proposal_again) == {BILLING.name: "exempt (bill*)"}
    assert proposal_again.active == proposal.active
    assert proposal_again.log == proposal.log


def test_stopped_service_is_neither_disabled_nor_removed(proposal, second, fleet):
    host = fleet.hosts["ada"]
    assert host.check_output("systemctl is-enabled draft") == "enabled"
    host.check_output("systemctl start draft")
    assert host.check_output("systemctl is-active draft") == "active"
    host.check_output("systemctl stop draft")
