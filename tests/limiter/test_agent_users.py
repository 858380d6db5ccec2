# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test attacks by users of the host on the files and sockets that all may access."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.processes import passed_files
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import files as vgpu_files
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.host import VgpuHost
from tests.limiter.agent_lab import Agent, connected, handed, make_tenant, wait_until
from tests.limiter.sm import World


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has connections of other users")
def test_no_number_of_users_keeps_others_from_seeing(tmp_path, built, monkeypatch):
    """Let ten users block all sockets and files that they can access.

    Each user connects to all sockets without reading from them, and opens and locks all files of the agent.
    """
    world = World(tmp_path, built)
    tenants = [make_tenant(world.tenant(50, f"tenant-{seat}", seat)) for seat in range(2)]
    monkeypatch.chdir(tenants[0].root / vgpu_files.STATE)
    host = VgpuHost(root=str(tenants[0].root))
    agent = Agent(tenants[0].root)
    with contextlib.ExitStack() as held:
        held.callback(agent.end)
        agent.start()
        for uid in range(61001, 61011):
            os.seteuid(uid)
            try:
                for path in filter(Path.is_socket, Path().iterdir()):
                    for _connection in range(4):
                        one = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                        one.setblocking(False)
                        one.connect(str(path))
                for path in filter(Path.is_file, Path().iterdir()):
                    one = held.enter_context(path.open("rb"))
                    fcntl.flock(one, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    fcntl.lockf(one, fcntl.LOCK_SH | fcntl.LOCK_NB)
            finally:
                os.seteuid(0)
        assert [seen.isolation for seen in host.observe()] == ["read_only", "read_only"]
        written = {path: path.stat().st_mtime_ns for path in Path().iterdir() if path.is_file()}
        for path, then in written.items():
            wait_until(lambda path=path, then=then: path.stat().st_mtime_ns > then, f"{path} is written all the same")


def test_a_file_that_a_tenant_sends_is_refused(tmp_path, built):
    """Do not accept a file that a tenant sends to the agent.

    A tenant can delay the closing of such a file, which would block the agent.
    """
    with socket.socket(socket.AF_UNIX) as probe:
        if not passed_files.refuse(probe):
            pytest.skip("this kernel passes files to every socket")
    world = World(tmp_path, built)
    tenant = make_tenant(world.tenant(50))
    agent = Agent(tenant.root)
    try:
        agent.start()
        folder = tenant.root / vgpu_files.agent_folder(tenant.name)
        with connected(folder) as connection, pytest.raises(PermissionError):
            socket.send_fds(connection, [b"x"], [connection.fileno()])
        with handed(folder) as found:
            assert found
    finally:
        agent.end()
