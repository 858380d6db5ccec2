# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Merge errors of hosts into one line if they differ only in names and IDs."""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.callback.fleet_summary import Summary, collected_error
from ansible_collections.openfleet.gpu.plugins.module_utils.model import LostGpu, short_label
from ansible_collections.openfleet.gpu.plugins.plugin_utils.equal_errors import group
from ansible_collections.openfleet.gpu.plugins.plugin_utils.site.losses import losses

pytestmark = pytest.mark.core

HOSTS = ["node%02d" % number for number in range(40)]


def uuid(number):
    return "GPU-%08x-5f4d-5b15-9d55-c5a47765dba3" % number


def address(number):
    return "0000:%02x:00.0" % number


def lost(number):
    return LostGpu(3, uuid(number), None, None, "nvmlDeviceGetMemoryInfo", 15, "GPU_IS_LOST")


OWN = [
    lambda number: "gpu_layout[0] on gpu 0 (NVIDIA H100 80GB HBM3, %s): there is no profile 3g.45gb." % uuid(number),
    lambda number: "%s: nvmlDeviceGetMigMode failed." % short_label(1, uuid(number)),
    lambda number: "gpu_layout[0].gpus[1]: gpu 1 (%s) is lost." % address(number),
    lambda number: "the GPU at %s is missing." % address(number),
    lambda number: "no GPU matches A100. There is 0: NVIDIA H100 80GB HBM3, %s, %s." % (uuid(number), address(number)),
    lambda number: "the account needs a password on node%02d." % number,
]


@pytest.mark.parametrize("message", OWN)
@pytest.mark.parametrize("prefix", ["", "{host}: "])
def test_identity_of_a_host_and_its_gpus_is_ignored(message, prefix):
    texts = {host: prefix.format(host=host) + message(number) for number, host in enumerate(HOSTS)}
    (only,) = group(texts.items())
    assert only.hosts == HOSTS
    assert str(only) == (
        "node00, node01, node02, node03, node04 and 35 more hosts: %s (This is the message of node00.)" % message(0)
    )


@pytest.mark.parametrize(
    "message",
    [
        lambda number: "gpu_layout[0].gpus[0]: no GPU of this host matches %s." % uuid(number),
        lambda number: "gpu_layout[0].gpus[0]: no GPU of this host matches GPU %s." % address(number),
        lambda number: "gpu_layout[0] on gpu %d (NVIDIA H100, %s): there is no profile 3g.45gb." % (number, uuid(0)),
        lambda number: "the process %d holds the lock." % number,
        lambda number: "the server node%02d.example does not answer." % (number + 1),
    ],
)
def test_other_differences_make_separate_errors(message):
    assert len(group((host, message(number)) for number, host in enumerate(HOSTS))) == len(HOSTS)


def test_each_line_of_a_message_is_an_error():
    first, second, third = group([("a", "a: one\na: two"), ("b", "b: two\nb: three"), ("c", "\n")])
    assert [str(equal) for equal in (first, second, third)] == ["a: one", "a, b: two", "b: three"]


def test_names_of_other_hosts_are_kept():
    """Replace the name of a host only if it is a whole word."""
    assert len(group([("h1", "h10 does not answer"), ("h10", "h10 does not answer")])) == 2
    assert len(group([("h1", "see h1"), ("h2", "see h2")])) == 1


def test_an_error_without_a_failed_task_is_printed_once_for_all_hosts():
    planned = {
        host: {
            "failed": False,
            "failed_when_result": False,
            "host_fault": False,
            "msg": "%s: %s" % (host, OWN[0](number)),
        }
        for number, host in enumerate(HOSTS)
    }
    found = losses(HOSTS, [], planned, 0)
    assert len(found.errors) == 1 and found.errors[0].startswith("node00, node01, ")
    assert found.left_out["node07"] == OWN[0](7)
    assert set(found.words.values()) == {"its error is above"}


def test_problems_of_a_plan_from_the_catalogue_are_errors():
    result = {"failed": False, "driver_present": False, "forecast": {"problems": ["one is wrong", "two is wrong"]}}
    found = losses(["a", "b"], [], {"a": result, "b": result}, 0)
    assert found.errors == ["a, b: one is wrong", "a, b: two is wrong"]
    assert found.left_out == {"a": "one is wrong", "b": "one is wrong"}
    assert "Correct the errors above" in found.refusal


@pytest.mark.parametrize("result", [{"failed": True, "msg": "it is wrong"}, {"unreachable": True, "msg": "gone"}, None])
def test_printed_error_is_not_repeated(result):
    assert losses(["a"], [], {"a": result}, 0).errors == []


def test_the_summary_has_one_line_for_hosts_with_the_same_reason():
    summary = Summary(check_mode=False)
    for number, host in enumerate(HOSTS):
        summary.failed(host, "%s: %s" % (host, OWN[0](number)))
    summary.failed("other", "gpu 3 is lost.")
    lines = summary.failures([*HOSTS, "other", "silent"])
    assert len(lines) == 3 and lines[0].endswith("(This is the message of node00.)")
    assert lines[1:] == ["other: gpu 3 is lost.", "silent: see above"]


def test_the_summary_reads_errors_that_the_playbook_prints_later():
    assert collected_error({"failed_when_result": False, "msg": "h: it is wrong"}) == "h: it is wrong"
    assert collected_error({"failed_when_result": False, "driver_present": True, "msg": "fine"}) == ""
    of_catalogue = {"failed_when_result": False, "driver_present": False, "forecast": {"problems": ["wrong"]}}
    assert collected_error(of_catalogue) == "wrong"
    assert collected_error({"msg": "of another task"}) == ""
