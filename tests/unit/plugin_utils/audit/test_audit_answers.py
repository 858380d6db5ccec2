# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check untrusted results of hosts. Some values are dropped, others refused."""

from __future__ import annotations

import json

import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit import answers
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.holdings import hosts_of
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.make import Order, make
from ansible_collections.openfleet.gpu.plugins.plugin_utils.host_results import gpu_info_of_all

HOLDER = {"kind": "process", "who": "pid 4711 (python3 train.py, user alice)", "watches": False}
INSTANCE = {"id": 3, "profile": "3g.40gb", "placement": {"start": 0, "size": 4}, "processes": [], "holders": [HOLDER]}
GPU = {
    "index": 0,
    "uuid": "GPU-1",
    "name": "NVIDIA H100 80GB HBM3",
    "memory_total_bytes": 80 << 30,
    "processes": [{"pid": 4711, "kind": "compute"}],
    "holders": [HOLDER],
    "mig": {"instances": [INSTANCE]},
}
TENANT = {"name": "notebook-a", "memory_bytes": 8 << 30, "gpus": [{"uuid": "GPU-1"}]}
GOOD = {"driver_present": True, "gpus": [GPU], "vgpu_tenants": [TENANT]}


def said(answer, rc=0):
    """Return the result as the module raw returns it."""
    return {
        "rc": rc,
        "stdout": answer if isinstance(answer, str) else json.dumps(answer),
        "stderr": "",
        "changed": True,
    }


def test_answer_is_the_printed_object():
    assert answers.of_helper("a", said(GOOD)) == GOOD
    # If a host has no driver, host_results treats it as a host that did not answer.
    assert answers.of_helper("a", said({"driver_present": False, "gpus": []})) == {"driver_present": False, "gpus": []}


@pytest.mark.parametrize("result", [{}, {"unreachable": True}, {"skipped": True}, {"failed": True, "msg": "no"}, None])
def test_unanswering_host_is_not_refused(result):
    assert answers.of_helper("a", result) is None


def test_helper_that_could_not_run_did_not_answer():
    assert answers.of_helper("a", {"rc": 1, "stdout": "", "stderr": "sudo: a password is required"}) is None


def test_reason_of_a_helper_is_reported():
    error = {"error": {"where": "this host", "problem": "another run is changing the layout", "cure": "Wait for it."}}
    with pytest.raises(
        answers.AnswerError, match=r"its helper failed: another run is changing the layout\. Wait for it"
    ):
        answers.of_helper("a", said(error, rc=1))


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{} trailing",
        '{"gpus": [NaN]}',
        '{"gpus": ' + "[" * 100000,
        '{"gpus": ' + "9" * 100000 + "}",
        json.dumps(GOOD) + " " * answers.MOST_BYTES,
    ],
    ids=["cut", "trailing", "no number", "deep", "long number", "large"],
)
def test_invalid_answer_is_refused(text):
    with pytest.raises(answers.AnswerError):
        answers.of_helper("a", said(text))


def test_text_that_is_not_an_object_is_refused():
    for text in ("[]", '"gpus"', "7", "null", ""):
        with pytest.raises(answers.AnswerError):
            answers.of_helper("a", said(text))


def test_refused_host_does_not_affect_others():
    texts = {"a": {}, "b": said({"gpus": [{"uuid": 7}]}), "c": said(GOOD), "d": said("no")}
    found, no_answers = answers.of_all(texts)
    states, refused = gpu_info_of_all({"a": GOOD, "b": {}, "c": {}, "d": {}, **found})
    assert set(states) == {"a", "c"} and states["a"] == states["c"]
    refused = [*no_answers, *refused]
    assert sorted(text.partition(":")[0] for text in refused) == ["b", "d"]
    audit = make(Order(3600.0, hosts=hosts_of(states), hosts_asked=list(texts), refused=refused), 1700000000.0)
    assert {found.holding.subject.host for found in audit.findings} == {"a", "c"}
    assert audit.sources.hosts_answered == ("a", "c")
    missing = " ".join(audit.sources.missing)
    assert "2 of 4 hosts did not answer (b, d)" in missing and "d: its answer is rejected" in missing
