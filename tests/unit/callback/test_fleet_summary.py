# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The summary line of the fleet counts every host once."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from ansible import constants as C

from ansible_collections.openfleet.gpu.plugins.callback.fleet_summary import Summary, waiting

pytestmark = pytest.mark.core


def result(create, destroy, keep):
    counts = {"create": create, "destroy": destroy, "keep": keep, "gpus_changed": int(bool(create or destroy))}
    return {"driver_present": True, "counts": counts}


def test_plan_printed_by_two_plays_counts_once():
    summary = Summary(check_mode=True)
    for _play in ("plan", "apply"):
        summary.ran("a", result(12, 3, 1), check_mode=True)
        summary.ran("b", result(0, 0, 70), check_mode=True)
    assert summary.line() == "Plan: 12 to create, 3 to destroy, 71 kept; 1 GPU to change on 1 of 2 hosts"


def test_planned_and_applied_changes_are_separate():
    summary = Summary(check_mode=False)
    for host in ("a", "b", "c"):
        summary.ran(host, result(2, 1, 4), check_mode=True)
    assert summary.line() == "Applied: nothing, on 0 of 3 hosts"
    summary.ran("a", result(2, 1, 4), check_mode=False)
    # The health check runs the module again and finds everything unchanged.
    summary.ran("a", result(0, 0, 6), check_mode=True)
    assert summary.line() == "Applied: 2 created, 1 destroyed, 4 kept; 1 GPU changed on 1 of 3 hosts"


def test_two_changes_of_one_host_add_up():
    summary = Summary(check_mode=False)
    summary.ran("a", result(2, 0, 1), check_mode=False)
    summary.ran("a", result(1, 1, 2), check_mode=False)
    summary.ran("a", result(0, 0, 3), check_mode=False)
    assert summary.line() == "Applied: 3 created, 1 destroyed, 1 kept; 1 GPU changed on 1 of 1 host"


def test_pending_reboot_changes_count_once():
    for after in (result(0, 0, 3), result(2, 0, 1)):
        summary = Summary(check_mode=False)
        summary.ran("a", dict(result(2, 1, 1), reboot_required=True), check_mode=False)
        summary.ran("a", after, check_mode=False)
        assert summary.line() == "Applied: 2 created, 1 destroyed, 1 kept; 1 GPU changed on 1 of 1 host"


def test_gpus_that_lost_their_entry_are_counted():
    kept = {"index": 1, "uuid": "GPU-5c89d3fa-0000-4000-8000-000000000001", "action": "keep", "text": "unmanaged"}
    summary = Summary(check_mode=False)
    summary.ran("a", dict(result(0, 0, 1), unmanaged=[kept, dict(kept, action="release")]), check_mode=False)
    assert summary.line().endswith("changed on 0 of 1 host, 1 GPU unmanaged (gpu_layout_unnamed)")
    summary.ran("a", result(0, 0, 1), check_mode=False)
    assert "unmanaged" not in summary.line()


def test_awaited_holders_are_named():
    busy = [{"what": "gpu 3: 1g.10gb@4", "who": ["pid 7 (python3)", "Slurm job 12"]}]
    assert waiting("a", {"busy": busy}) == ["a: waiting: gpu 3: 1g.10gb@4 is in use by pid 7 (python3), Slurm job 12"]
    assert waiting("a", {"failed": True}) == []


def test_a_mode_change_alone_is_a_change():
    summary = Summary(check_mode=True)
    counts = {"create": 0, "destroy": 0, "keep": 0, "gpus_changed": 2}
    summary.ran("a", {"driver_present": True, "counts": counts}, check_mode=True)
    assert summary.line() == "Plan: 2 GPUs to change on 1 of 1 host"
    done = Summary(check_mode=False)
    done.ran("a", {"driver_present": True, "counts": counts}, check_mode=False)
    assert done.line() == "Applied: 2 GPUs changed on 1 of 1 host"


def test_hosts_without_a_driver_count_with_their_plans_from_the_catalogue():
    summary = Summary(check_mode=True)
    forecast = {"checked": True, "plan": ["gpu 0: enable MIG mode"], "counts": result(2, 0, 0)["counts"], "gpus": 1}
    for _play in ("plan", "apply"):
        for host in ("new", "newer"):
            summary.ran(host, {"driver_present": False, "forecast": forecast}, check_mode=True)
    summary.ran("old", result(1, 0, 0), check_mode=True)
    assert summary.line() == (
        "Plan: 5 to create, 0 to destroy, 0 kept; 3 GPUs to change on 3 of 3 hosts "
        "(no driver yet, planned from the model catalogue: new, newer)"
    )
    # In between, the driver role has installed the driver on this host.
    summary.ran("new", result(2, 0, 0), check_mode=True)
    assert summary.line().endswith("(no driver yet, planned from the model catalogue: newer)")


def test_a_host_of_unknown_gpus_without_a_driver_is_named_as_not_counted():
    summary = Summary(check_mode=True)
    summary.ran("new", {"driver_present": False, "forecast": {"checked": False, "counts": {}}}, check_mode=True)
    summary.ran("old", result(1, 0, 0), check_mode=True)
    assert summary.line() == (
        "Plan: 1 to create, 0 to destroy, 0 kept; 1 GPU to change on 1 of 2 hosts "
        "(not counted, because no driver answers and the GPU models are unknown: new)"
    )


def test_hosts_without_a_plan_do_not_count_as_unchanged():
    summary = Summary(check_mode=True)
    summary.ran("a", result(1, 0, 0), check_mode=True)
    summary.hosts.update("bc")
    assert summary.line() == "Plan: 1 to create, 0 to destroy, 0 kept; 1 GPU to change on 1 of 3 hosts, no plan for 2"


def test_first_line_of_a_reason_is_shown():
    summary = Summary(check_mode=False)
    summary.failed("a", "\n the GPU is in use\nby pid 7")
    summary.failed("b", "")
    # The message starts with the host's name.
    summary.failed("c", "c: gpu 3 is lost.")
    # The message starts with the name of an argument, which is kept.
    summary.failed("d", "gpu_layout[0].mig: 8x 1g.10gb do not fit together")
    assert summary.reasons == {
        "a": "the GPU is in use",
        "b": "no reason given",
        "c": "gpu 3 is lost.",
        "d": "gpu_layout[0].mig: 8x 1g.10gb do not fit together",
    }


def test_host_without_a_plan_keeps_its_reason():
    summary = Summary(check_mode=False)
    for host in ("a", "b"):
        summary.failed(host, "%s: gpu 3 is lost. Look." % host)
    summary.failed("a", "a: no plan (gpu 3 is lost)")
    summary.failed("b", "No plan for any host: a (gpu 3 is lost), b (gpu 3 is lost). Fix these hosts.")
    # This host was lost for another reason, so its message is printed as it is.
    summary.failed("c", "No plan for c (could not be reached). Fix these hosts.")
    assert summary.reasons == {
        "a": "gpu 3 is lost. Look.",
        "b": "gpu 3 is lost. Look.",
        "c": "No plan for c (could not be reached). Fix these hosts.",
    }


@pytest.mark.parametrize(
    ("stdout", "enabled", "silent"),
    [
        ("default", [], False),
        ("community.general.yaml", ["ansible.posix.profile_tasks"], False),
        ("default", ["openfleet.gpu.fleet_summary"], True),
        ("ansible.posix.json", [], True),
        ("json", [], True),
    ],
)
def test_summary_is_silent_next_to_other_callbacks_and_machine_output(monkeypatch, stdout, enabled, silent):
    path = Path(__file__).parents[3] / "playbooks" / "callback_plugins" / "openfleet_gpu_summary.py"
    spec = importlib.util.spec_from_file_location("openfleet_gpu_summary", path)
    beside = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(beside)
    monkeypatch.setattr(C, "DEFAULT_STDOUT_CALLBACK", stdout)
    monkeypatch.setattr(C, "CALLBACKS_ENABLED", enabled)
    assert beside.CallbackModule().disabled == silent
