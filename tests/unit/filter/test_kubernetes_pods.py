# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the pods that are ready, and the reasons why other pods are not."""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.filter.pod_states import pod_states

pytestmark = pytest.mark.core

READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def pod(status, name="plugin-1"):
    return {"metadata": {"name": name}, "status": status}


def waiting(reason, message=None):
    state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
    return {"phase": "Pending", "containerStatuses": [{"name": "ctr", "state": state}]}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (READY, "ready"),
        (waiting("CrashLoopBackOff", "back-off 10s"), "container ctr waits (CrashLoopBackOff: back-off 10s)"),
        (waiting("ContainerCreating"), "container ctr waits (ContainerCreating)"),
        (
            {"containerStatuses": [{"name": "ctr", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]},
            "container ctr has ended (Error)",
        ),
        (
            {
                "initContainerStatuses": [{"name": "init", "state": {"terminated": {"exitCode": 0}}}],
                "containerStatuses": [{"name": "ctr", "state": {"waiting": {}}}],
                "conditions": [{"type": "Ready", "status": "False", "message": "containers with unready status: [ctr]"}],
            },
            "containers with unready status: [ctr]",
        ),
        ({"conditions": [{"status": "False", "message": "0/2 nodes are available"}]}, "0/2 nodes are available"),
        ({"phase": "Pending"}, "Pending"),
        ({}, "unknown"),
        (None, "unknown"),
        ({"conditions": "x", "containerStatuses": [3, {"state": []}]}, "unknown"),
        ({"phase": "Pending\x1b[2J\nx"}, None),
    ],
)  # fmt: skip
def test_pod_is_named_with_its_missing_condition(status, words):
    found = pod_states([pod(status)])
    assert found.isprintable()
    assert words is None or found == "pod plugin-1: " + words


def test_missing_pod_is_reported_and_all_pods_are_named():
    assert pod_states([]) == "no pod"
    assert pod_states([pod(READY), pod({}, "plugin-2"), 7]) == "pod plugin-1: ready; pod plugin-2: unknown"
