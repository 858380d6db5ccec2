# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which processes are ended if open nodes change owners or command lines.

The tests check what runs and reclaims do, not the functions that decide.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.change.terminate import end_holders
from ansible_collections.openfleet.gpu.plugins.module_utils.drain.units import Unit
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import ApplyError, BusyError
from ansible_collections.openfleet.gpu.plugins.module_utils.holders import bare_handles
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.find import find_holders
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Telemetry
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.busy import make_way
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.disturbance import Disturbance
from ansible_collections.openfleet.gpu.plugins.module_utils.processes import file_worker
from ansible_collections.openfleet.gpu.plugins.module_utils.reclaim.stop import Policy, Tools, reclaim
from tests.adversary.attackers import ALICE, PYTHON, gpu, holding, host, process, public_folder

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of other users")


@pytest.fixture
def folder():
    with public_folder() as made:
        (made / "dev").mkdir()
        (made / "dev/nvidia0").touch()
        yield made


def never(command, **_options):
    raise AssertionError("a user had root run %s" % command)


def look(folder, pid):
    """Return root's holders of the GPU that belong to one process."""
    found = find_holders(host(gpu(0)), dev=str(folder / "dev"), run=never, kubelet_directory="/none")
    return [holder for holder in found if holder.pid == pid]


#: Executes itself with another command line, and keeps the node open.
RENAMES = """
import os, sys
if sys.argv[1].startswith("/"):
    os.set_inheritable(os.open(sys.argv[1], os.O_RDONLY), True)
print("open", flush=True)
for line in sys.stdin:
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[2] if len(sys.argv) > 2 else "", "x" + sys.argv[1]])
"""


def test_unreadable_file_does_not_prevent_ending_a_process(folder, monkeypatch):
    """End a process although one of its files is unreadable.

    The file system's server has ended, and the run holds the host's lock.
    """

    def hangs(path):
        signal.pause()

    def late(number, frame):
        raise AssertionError("the run waits for the file")

    monkeypatch.setattr(bare_handles, "device_of", hangs)
    monkeypatch.setattr(bare_handles, "link", hangs)
    monkeypatch.setattr(file_worker, "_SECONDS", 0.1)
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    try:
        with holding(folder / "dev/nvidia0", user=ALICE) as held:
            (holder,) = look(folder, held.pid)
            assert len(end_holders([Disturbance("gpu 0", (holder,))], 10)) == 1
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_changed_command_line_does_not_prevent_ending(folder):
    """End a process whose command line has changed.

    The process still has the GPU open.
    """
    again = "print('again', flush=True)\nimport sys\nsys.stdin.read()"
    with process(PYTHON, "-c", RENAMES, folder / "dev/nvidia0", again, user=ALICE) as held:
        (holder,) = look(folder, held.pid)
        held.stdin.write(b"\n")
        held.stdin.flush()
        assert held.stdout.readline() == b"again\n"
        (ended,) = end_holders([Disturbance("gpu 0", (holder,))], grace_seconds=60)
        assert ended == holder.who and held.wait() == -signal.SIGTERM


def test_run_stops_if_a_process_cannot_be_ended(folder):
    """Stop the run if a process that holds the GPU survives all attempts to end it."""
    with holding(folder / "dev/nvidia0", user=ALICE) as held:
        found = look(folder, held.pid)
        disturbs = [Disturbance("gpu 0", tuple(found))]
        with pytest.raises(BusyError, match="could not be ended"):
            make_way(lambda: disturbs, lambda _disturbs: False)
        # A holder without a process does not stop the run here. The step that changes the GPU decides about it.
        make_way(lambda: [Disturbance("gpu 0", (replace(found[0], kind="container"),))], lambda _disturbs: False)


#: A service that receives users' messages and keeps the files in them. It first prints its own address.
RECEIVES = """
import os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
    server.bind(sys.argv[1])
    os.chmod(sys.argv[1], 0o666)
    print("open", flush=True)
    kept = [server.recvmsg(4096, socket.CMSG_SPACE(4 * 16))]
    print("has", flush=True)
    if sys.argv[2:]:
        import array, mmap
        kept.append(mmap.mmap(array.array("i", kept[0][1][0][2])[0], 4096, prot=mmap.PROT_READ))
        print("maps", flush=True)
    sys.stdin.read()
"""
HANDS = """
import array, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client, open(sys.argv[2]) as file:
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file.fileno()]))
    client.sendmsg([b"<13>hello"], [rights], 0, sys.argv[1])
print("open", flush=True)
"""


@pytest.mark.parametrize("unit", ["rsyslog.service", "vendor.service", None])
def test_service_with_a_node_from_a_user_is_neither_ended_nor_stopped(folder, unit):
    """Name a service that received a node in the error, and do not end it.

    Some services take files from every user, for example syslog's socket.
    """
    socket_path = folder / "syslog"
    folder.chmod(0o777)
    with process(PYTHON, "-c", RECEIVES, socket_path, user=0) as service:
        with process(PYTHON, "-c", HANDS, socket_path, folder / "dev/nvidia0", user=ALICE):
            assert service.stdout.readline() == b"has\n"
        (holder,) = look(folder, service.pid)
        holder = replace(holder, unit_or_container=unit)
        assert holder.kind == "device_handle"
        with pytest.raises(ApplyError, match="a user may have passed it the open file") as error:
            end_holders([Disturbance("gpu 0", (holder,))], grace_seconds=0)
        assert service.poll() is None
        assert "pid %d" % service.pid in error.value.where and "connected to it" in error.value.cure
        if unit is None:
            return
        item = {"kind": "unit", "name": unit, "gpus": ["GPU-0"]}
        stopped = []
        seen = replace(gpu(0), telemetry=Telemetry(gpu_utilization_percent=0))
        runs = Unit(unit, "loaded", "active")
        alone = {"stop": stopped.append, "closure": lambda _name: (runs, [runs])}
        tools = Tools(look=lambda: (host(seen), [holder]), measure=dict, **alone)
        (row,) = reclaim([item], tools, Policy())["spared"]
        assert row["why"] == "it only has the GPU open, and a user may have passed it the open file" and stopped == []


def test_service_with_a_mapped_node_uses_it(folder):
    """Treat a service that has mapped the node as a holder.

    Only the service itself can map the node. The node's file is as long as the mapping.
    """
    socket_path = folder / "socket"
    folder.chmod(0o777)
    (folder / "dev/nvidia0").write_bytes(bytes(4096))
    with process(PYTHON, "-c", RECEIVES, socket_path, "map", user=0) as service:
        with process(PYTHON, "-c", HANDS, socket_path, folder / "dev/nvidia0", user=ALICE):
            assert [service.stdout.readline() for _line in range(2)] == [b"has\n", b"maps\n"]
        (holder,) = look(folder, service.pid)
        (ended,) = end_holders([Disturbance("gpu 0", (holder,))], grace_seconds=60)
        assert ended == holder.who and service.wait() == -signal.SIGTERM
