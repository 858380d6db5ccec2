# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make several changes of a GPU in one request to the process that calls NVML."""

from __future__ import annotations

import socket

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml.bounded_session import (
    CallNote,
    _ChildSession,
)


class Changes(_ChildSession):
    """A session that calls a function for each change instead of NVML."""

    def __init__(self, parent: socket.socket) -> None:
        self._note, self._parent = CallNote(), parent

    def run(self, work):
        work()


@pytest.mark.parametrize("event", ["ended", "interrupted"])
def test_batch_stops_if_nobody_waits_for_its_response(event):
    near, far = socket.socketpair()
    done = []

    def second():
        done.append("second")
        if event == "ended":
            near.close()
        else:
            near.sendall(b"the next request")

    with near, far:
        session = Changes(far)
        session.change(
            [("run", (lambda: done.append("first"),)), ("run", (second,)), ("run", (lambda: done.append(3),))]
        )
    assert done == ["first", "second"]
    assert session.completed == 2
