# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that `gpu-layout lease` keeps its place while the service restarts."""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.cli import lease
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.model import LeaseError
from tests.unit.module_utils.leases.lease_socket import LeaseSocket

WAITING = {"waiting": {"number": 5}}
GRANTED = {"lease": {"number": 5}}


@pytest.fixture
def service(tmp_path):
    """Return a function that starts a service.

    The service gives the next of its answers to each connection. None ends the connection without an answer.
    """
    started = []

    def start(*answers):
        left, requests = list(answers), []

        def answer(**request):
            requests.append(request)
            return left.pop(0)

        started.append(LeaseSocket(tmp_path / "socket", answer))
        return started[0].path, requests

    yield start
    for each in started:
        each.close()


def test_a_waiting_request_is_sent_again_until_the_service_answers(service):
    path, requests = service(WAITING, None, None, GRANTED)
    assert lease._take(path, {"take": True}, lambda _answer: None) == GRANTED
    assert [request.get("number") for request in requests] == [None, 5, 5, 5]


def test_a_new_request_is_not_sent_twice(service):
    path, requests = service(None, GRANTED)
    with pytest.raises(LeaseError, match="did not answer"):
        lease._take(path, {"take": True}, lambda _answer: None)
    assert len(requests) == 1
