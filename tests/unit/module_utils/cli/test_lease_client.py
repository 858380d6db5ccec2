# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test how `gpu-layout lease` keeps its place while the service restarts."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.cli import lease
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.model import LeaseError

WAITING = {"waiting": {"number": 5}}
GRANTED = {"lease": {"number": 5}}


@pytest.fixture
def service(tmp_path):
    """Return a function that starts a service.

    The service gives one answer to each connection. None ends the connection without an answer.
    """
    path = str(tmp_path / "socket")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(8)
    requests = []

    def serve(answers):
        for answer in answers:
            connection, _address = listener.accept()
            requests.append(json.loads(connection.makefile().readline()))
            if answer is not None:
                connection.sendall(json.dumps(answer).encode() + b"\n")
            connection.close()

    def start(*answers):
        threading.Thread(target=serve, args=(answers,), daemon=True).start()
        return path, requests

    yield start
    listener.close()


def test_a_waiting_request_is_sent_again_until_the_service_answers(service):
    path, requests = service(WAITING, None, None, GRANTED)
    assert lease._take(path, {"take": True}, lambda _answer: None) == GRANTED
    assert [request.get("number") for request in requests] == [None, 5, 5, 5]


def test_a_new_request_is_not_sent_twice(service):
    path, requests = service(None, GRANTED)
    with pytest.raises(LeaseError, match="did not answer"):
        lease._take(path, {"take": True}, lambda _answer: None)
    assert len(requests) == 1
