# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test when site.yml continues without hosts that have no plan."""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils import errors
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.mps_control import MpsError
from ansible_collections.openfleet.gpu.plugins.module_utils.runner import details
from ansible_collections.openfleet.gpu.plugins.plugin_utils.site.losses import failure, losses, tolerated

HOSTS = ["h%d" % number for number in range(10)]
SICK = {"msg": "gpu 3: nvmlDeviceGetMigMode failed: Unknown Error. Look.\nmore", "host_fault": True}
TYPO = {"msg": "gpu_layout[0] on gpu 0: there is no profile 3g.45gb.", "host_fault": False}


@pytest.mark.parametrize(
    ("value", "hosts", "allowed"),
    [
        (0, 10, 0),
        (2, 10, 2),
        ("2", 10, 2),
        ("10%", 10, 1),
        ("10%", 19, 1),
        ("5%", 10, 0),
        ("100%", 3, 3),
        (" 7 % ", 100, 7),
    ],
)
def test_number_or_percentage_is_tolerated(value, hosts, allowed):
    assert tolerated(value, hosts) == allowed


@pytest.mark.parametrize("value", ["many", "-1", -1, "101%", 1.5, True, None, "", "1%%", "9" * 400])
def test_other_values_are_no_tolerance(value):
    with pytest.raises(ValueError, match="neither a number of hosts nor a percentage"):
        tolerated(value, 10)


def test_timeout_is_a_fault_of_the_host():
    """The result has the format that ansible-core uses for the keyword timeout."""
    result = {"failed": True, "msg": "Task failed: Timed out after 300 second(s).", "timedout": {"period": 300}}
    found = failure("h1", result)
    assert (found.reason, found.host_fault) == ("it did not answer within 300 s", True)
    assert not losses(HOSTS, HOSTS[1:], {"h0": result}, 1).refusal


def test_run_without_losses_continues():
    found = losses(HOSTS, HOSTS, {}, 0)
    assert (dict(found.left_out), found.refusal) == ({}, "")


def test_one_sentence_names_hosts_and_next_steps():
    found = losses(HOSTS, [host for host in HOSTS if host not in ("h3", "h7")], {"h3": SICK}, 1)
    assert found.left_out == {
        "h3": "gpu 3: nvmlDeviceGetMigMode failed: Unknown Error. Look.",
        "h7": "could not be reached",
    }
    assert found.refusal == (
        "No plan for h3 (its error is above), h7 (could not be reached). Fix "
        "these hosts, exclude them (--limit '!h3:!h7'), or allow 2 hosts without a plan (gpu_site_tolerate: 2). "
        "Nothing was changed."
    )
    assert not losses(HOSTS, HOSTS[:8], {"h9": SICK}, "20%").refusal


@pytest.mark.parametrize("tolerate", [1, "100%"])
def test_wrong_layout_is_never_tolerated(tolerate):
    found = losses(HOSTS, HOSTS[:8], {"h8": SICK, "h9": TYPO}, tolerate)
    assert "No plan for h9 (its error is above). Correct the errors above" in found.refusal
    assert found.left_out["h9"] == TYPO["msg"]
    assert "gpu_site_tolerate does not cover errors" in found.refusal and "h8" not in found.refusal


@pytest.mark.parametrize("tolerate", [0, 2, "100%"])
def test_without_any_plan_all_hosts_are_named_and_nothing_is_tolerated(tolerate):
    found = losses(["h0", "h1"], [], {"h0": SICK, "h1": {"msg": "Connection refused", "unreachable": True}}, tolerate)
    assert found.refusal == (
        "No plan for any host: h0 (its error is above), h1 (could not be reached). Fix "
        "these hosts and run again. If none can be reached, check the names in the inventory and the SSH login: ansible "
        "-i INVENTORY gpu_hosts -m ansible.builtin.ping. Nothing was changed."
    )


def test_all_hosts_with_wrong_layouts_are_named():
    found = losses(["h0", "h1"], [], {"h0": TYPO, "h1": TYPO}, 0)
    assert found.refusal.startswith(
        "No plan for any host: h0 (its error is above), h1 (its error is above). Correct the"
    )


def test_host_name_is_printed_once():
    found = losses(HOSTS, HOSTS[1:], {"h0": {"msg": "h0: gpu 3 is lost.", "host_fault": True}}, 0)
    assert (found.left_out["h0"], found.words["h0"]) == ("gpu 3 is lost.", "its error is above")
    assert found.refusal == (
        "No plan for h0 (its error is above). Fix this host, exclude it (--limit '!h0'), or allow 1 host without a plan "
        "(gpu_site_tolerate: 1). Nothing was changed."
    )


def test_thousand_hosts_are_shortened():
    hosts = ["h%d" % number for number in range(1000)]
    found = losses(hosts, [], {}, 0)
    assert len(found.left_out) == 1000 and len(found.refusal) < 2000 and "980 more" in found.refusal


def test_texts_of_hosts_are_escaped():
    found = losses(["h0"], [], {"h0": {"msg": "\x1b[31mred", "host_fault": True}}, 0)
    assert "\x1b" not in found.refusal + found.left_out["h0"]


WHERE = ("gpu 0", "it does not answer", "Look at it.")


@pytest.mark.parametrize(
    ("error", "host_fault"),
    [
        (errors.NvmlError(*WHERE), True),
        (errors.DriverAbsentError(*WHERE), True),
        (errors.ApplyError("/var/lib/openfleet-gpu", "the lock cannot be taken", outcome="old"), True),
        (errors.ApplyError("tenant.json", "the file is damaged"), True),
        (errors.BusyError([], "it is in use"), True),
        (MpsError("the MPS control daemon", "it does not answer"), True),
        (errors.LayoutError([errors.Problem("gpu_layout[0]", "there is no key shraing")]), False),
        (errors.SelectorError("gpu_layout[0].gpus", "this host has no GPU 8"), False),
        (errors.PlanError("gpu_layout[0]", "there is no profile 3g.45gb"), False),
    ],
)
def test_module_error_distinguishes_host_faults(error, host_fault):
    found = failure("h1", {"failed": True, "msg": str(error), "host_fault": False, **details(error)})
    assert (found.reason, found.host_fault) == (str(error), host_fault)


@pytest.mark.parametrize(
    ("result", "host_fault"),
    [
        ({"msg": "Task failed: Missing sudo password"}, True),
        ({"msg": "Incorrect sudo password"}, True),
        ({"msg": "MODULE FAILURE", "module_stderr": "Killed"}, True),
        ({"msg": "MODULE FAILURE", "module_stdout": "sudo: a password is required"}, True),
        ({"msg": "The task includes an option with an undefined variable."}, False),
        ({"msg": "gpu_layout: Missing sudo password", "host_fault": False}, False),
        ({"msg": "nvidia_driver: Missing sudo password", "problem": "Missing sudo password"}, False),
        ({"msg": "gpu_drain_services: Missing sudo password", "assertion": "false"}, False),
        ({"msg": "Missing sudo password in gpu_layout"}, False),
    ],
)
def test_failure_of_ansible_differs_from_a_configuration_error(result, host_fault):
    assert failure("h1", result).host_fault == host_fault


@pytest.mark.parametrize(
    "result",
    [
        {"msg": "Task failed: Missing sudo password"},
        {"msg": "MODULE FAILURE", "module_stdout": "sudo: a password is required"},
        {"msg": "MODULE FAILURE", "module_stderr": "sudo: a terminal is required to read the password"},
    ],
)
def test_missing_password_does_not_suggest_ssh(result):
    hosts = ["one", "two"]
    found = losses(hosts, [], dict.fromkeys(hosts, result), 0)
    assert "needs a password to become root on one, two. Run with --ask-become-pass" in found.refusal
    assert "SSH" not in found.refusal
    some = losses(hosts, [], {"one": result, "two": {"unreachable": True}}, 0)
    assert "become root on one. Run with --ask-become-pass" in some.refusal and "SSH" in some.refusal
    tolerable = losses(hosts, ["two"], {"one": result}, 0)
    assert "--ask-become-pass" in tolerable.refusal and "gpu_site_tolerate: 1" in tolerable.refusal
