# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Count the clients of holders, with real processes and sockets.

Some processes are in other network namespaces. The tests use a folder as /proc. It has links to the real /proc, and
cgroup files that name the units.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.holders import sockets as holders_sockets
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.find import find_holders
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Holder, Process
from tests.unit.module_utils.holders.holder_hosts import gpu, host, no_tools

#: Timeout in seconds. It is long enough for a busy machine.
DEADLINE = 60
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are made by root: run as root")

#: This program executes each line of its standard input, and prints one line as the answer.
PROGRAM = """
import fcntl, socket, struct, sys
kept, lines = [], {}
for line in sys.stdin:
    word, *rest = line.split()
    answer = "done"
    if word == "open":
        kept.append(open(rest[0]))
    elif word == "listen":
        one = socket.socket(socket.AF_INET6 if ":" in rest[0] else socket.AF_INET)
        one.bind((rest[0], int(rest[1])))
        one.listen()
        kept.append(one)
        lines[one.getsockname()[1]] = one
        answer = str(one.getsockname()[1])
    elif word == "accept":
        kept.append(lines[int(rest[0])].accept()[0])
    elif word == "connect":
        kept.append(socket.create_connection((rest[0], int(rest[1]))))
    elif word == "loopback":
        with socket.socket() as one:
            # SIOCSIFFLAGS, IFF_UP (netdevice(7)).
            fcntl.ioctl(one, 0x8914, struct.pack("16sh14x", b"lo", 1))
    elif word == "duplicate":
        kept.append([one.dup() for one in lines.values() for _ in range(int(rest[0]))])
    print(answer, flush=True)
"""


class Running:
    """A process that executes commands of a test."""

    def __init__(self, process: subprocess.Popen) -> None:
        self.process, self.pid = process, process.pid

    def __call__(self, *words: object) -> str:
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        assert answer, "the process ended"
        return answer


@pytest.fixture
def run():
    """Return a function that starts processes. They end with the test.

    The arguments are a command prefix, for example a command that enters a namespace.
    """
    with contextlib.ExitStack() as ends:

        def start(*within: str) -> Running:
            process = subprocess.Popen(
                [*within, sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            ends.callback(process.wait)
            ends.callback(process.kill)
            return Running(process)

        yield start


class Machine:
    """A host with some real processes. Each process is in a unit or in none."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.dev = folder / "proc", folder / "dev"
        self.kubelet = folder / "kubelet"
        for made in (self.proc / "self", self.dev):
            made.mkdir(parents=True)
        (self.dev / "nvidia0").touch()
        (self.proc / "self" / "cgroup").write_text("0::/init.scope\n")
        self.pids: list[int] = []

    def add(self, process: Running, unit: str = "") -> Running:
        """Add a process in a unit. The first process of the host also has the GPU open."""
        folder = self.proc / str(process.pid)
        folder.mkdir()
        for name in ("fd", "net", "ns", "status", "stat", "comm", "cmdline"):
            (folder / name).symlink_to("/proc/%d/%s" % (process.pid, name))
        (folder / "cgroup").write_text("0::/system.slice/%s\n" % unit if unit else "0::/user.slice/session-3.scope\n")
        if not self.pids:
            process("open", self.dev / "nvidia0")
        self.pids.append(process.pid)
        return process

    def holders(self, **options):
        listed = host(gpu(0, processes=[Process(self.pids[0], "compute")]))
        found = find_holders(
            listed, str(self.proc), str(self.dev), no_tools, str(self.kubelet), **{"sockets": True, **options}
        )
        return [holder for holder in found if holder.pid == self.pids[0]]

    def service(self, **options):
        """Return whether the holder listens, and how many clients it has."""
        (holder,) = self.holders(**options)
        return holder.listens, holder.clients

    def wait_for(self, *expected) -> None:
        """Wait until the holder listens or does not, and has this number of clients.

        The kernel opens and closes connections asynchronously.
        """
        until = time.monotonic() + DEADLINE
        while self.service() != expected and time.monotonic() < until:
            time.sleep(0.05)
        assert self.service() == expected


@pytest.fixture
def machine(tmp_path) -> Machine:
    return Machine(tmp_path)


def test_listening_process_has_its_connected_clients(machine, run):
    server = machine.add(run())
    assert machine.service() == (False, 0)
    port = server("listen", "127.0.0.1", 0)
    assert machine.service() == (True, 0)
    with socket.create_connection(("127.0.0.1", int(port))):
        # The client counts already before the server accepts the connection.
        machine.wait_for(True, 1)
        server("accept", port)
        machine.wait_for(True, 1)
        with socket.create_connection(("127.0.0.1", int(port))):
            machine.wait_for(True, 2)


def test_sockets_are_read_only_on_request(machine, run):
    server = machine.add(run())
    server("listen", "127.0.0.1", 0)
    assert machine.service(sockets=False) == (None, None)


def test_client_process_serves_no_clients(machine, run):
    holder, other = machine.add(run()), machine.add(run(), "web.service")
    port = other("listen", "127.0.0.1", 0)
    holder("connect", "127.0.0.1", port)
    other("accept", port)
    assert machine.service() == (False, 0)


def test_unit_serves_through_any_of_its_processes_but_not_itself(machine, run):
    worker, front = machine.add(run(), "model.service"), machine.add(run(), "model.service")
    stranger = machine.add(run(), "web.service")
    port = front("listen", "0.0.0.0", 0)
    assert machine.service() == (True, 0)
    worker("connect", "127.0.0.1", port)
    front("accept", port)
    # The worker is in the unit of the server, so its connection does not count as a client.
    machine.wait_for(True, 0)
    stranger("connect", "127.0.0.1", port)
    machine.wait_for(True, 1)


def test_process_without_a_unit_counts_alone(machine, run):
    machine.add(run())
    neighbour = machine.add(run())
    neighbour("listen", "127.0.0.1", 0)
    assert machine.service() == (False, 0)


def test_ipv6_socket_has_ipv4_clients(machine, run):
    """The kernel lists the two ends of a connection from IPv4 to IPv6 in two tables.

    Both ends are in the unit, so it is not a client's connection.
    """
    front, worker = machine.add(run(), "model.service"), machine.add(run(), "model.service")
    try:
        port = front("listen", "::", 0)
    except AssertionError:
        pytest.skip("no IPv6 here")
    worker("connect", "127.0.0.1", port)
    front("accept", port)
    machine.wait_for(True, 0)
    with socket.create_connection(("127.0.0.1", int(port))):
        machine.wait_for(True, 1)


def test_same_port_of_another_unit_is_not_its_own(machine, run):
    server, other = machine.add(run(), "model.service"), machine.add(run(), "web.service")
    port = server("listen", "127.0.0.1", 0)
    other("listen", "127.0.0.2", port)
    with socket.create_connection(("127.0.0.2", int(port))):
        other("accept", port)
        machine.wait_for(True, 0)


@needs_root
def test_each_network_namespace_has_its_own_table(machine, run):
    server = machine.add(run("unshare", "--net"), "model.service")
    server("loopback")
    port = server("listen", "127.0.0.1", 0)
    neighbour = machine.add(run("nsenter", "--net=/proc/%d/ns/net" % server.pid), "web.service")
    # In the host's network namespace, another process listens on the same port. Its client is no client of this server.
    with socket.socket() as elsewhere:
        with contextlib.suppress(OSError):
            elsewhere.bind(("127.0.0.1", int(port)))
            elsewhere.listen()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(port))):
            assert machine.service() == (True, 0)
    neighbour("connect", "127.0.0.1", port)
    machine.wait_for(True, 1)


def test_ended_process_is_unknown(machine, run):
    server = machine.add(run())
    server("listen", "127.0.0.1", 0)
    server.process.kill()
    server.process.wait()
    assert machine.service() == (None, None)


def test_ended_process_of_the_unit_does_not_hide_others(machine, run):
    server, gone = machine.add(run(), "model.service"), machine.add(run(), "model.service")
    server("listen", "127.0.0.1", 0)
    gone.process.kill()
    gone.process.wait()
    assert machine.service() == (True, 0)


@pytest.mark.parametrize(
    ("bound", "value"),
    [("_MOST_FILES", 20), ("_MOST_PROCESSES", 1), ("_MOST_BYTES", 100)],
    ids=lambda value: str(value),
)
def test_too_many_sockets_are_unknown(machine, run, monkeypatch, bound, value):
    server = machine.add(run(), "model.service")
    machine.add(run(), "model.service")
    server("listen", "127.0.0.1", 0)
    server("duplicate", 40)
    assert machine.service() == (True, 0)
    monkeypatch.setattr(holders_sockets, bound, value)
    assert machine.service() == (None, None)


def test_slow_scan_is_unknown(machine, run, monkeypatch):
    server = machine.add(run(), "model.service")
    server("listen", "127.0.0.1", 0)
    monkeypatch.setattr("ansible_collections.openfleet.gpu.plugins.module_utils.holders.find._LOOK_SECONDS", -1.0)
    assert machine.service() == (None, None)


@needs_root
def test_unreadable_sockets_are_unknown(machine, run):
    """The test runs as a user without permission to read root's processes."""
    server = machine.add(run())
    server("listen", "127.0.0.1", 0)
    for folder in (machine.proc, machine.proc.parent, *list(machine.proc.parents)[:4]):
        folder.chmod(0o755)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.setresuid(65534, 65534, 65534)
        os.write(writer, repr(machine.service()).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        assert answer.read() == "(None, None)"
    os.waitpid(child, 0)


def test_holder_without_a_process_has_no_sockets():
    job = Holder("GPU-0", None, "slurm", "job 7")
    assert holders_sockets.with_sockets([job], None, time.monotonic() + DEADLINE) == [job]
