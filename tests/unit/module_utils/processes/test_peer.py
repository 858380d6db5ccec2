# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the process at the other end of a connection.

Uses real sockets and processes in simulated cgroups.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.holders.peer_owner import (
    ContainerOwner,
    UnitOwner,
    UserOfUnitOwner,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.processes import peer
from tests.unit.peer_hosts import Processes, Stranger

UNIT = "dcgm-exporter.service"
OWN = "/system.slice/" + UNIT
FOREIGN = "/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope"
ID = "9a15d2b5" * 8


@pytest.fixture
def processes(tmp_path, monkeypatch):
    return Processes(tmp_path / "proc", monkeypatch, peer)


@pytest.fixture
def stranger():
    found = Stranger()
    yield found
    if found.process.poll() is None:
        found.end()


def connect(port, address="127.0.0.1"):
    return socket.create_connection((address, port))


@pytest.fixture(params=["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def accepted(request):
    """Return a client's socket and the server's end.

    Both sockets are IPv4 or IPv6, or an IPv4 client connects to a server that accepts both.
    """
    address = request.param
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener:
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((address if address != "::ffff:127.0.0.1" else "::", 0))
        listener.listen()
        with connect(listener.getsockname()[1], address.rpartition("::ffff:")[2]) as client:
            server, _ = listener.accept()
            with server:
                yield client


def test_process_of_the_unit_is_accepted(processes, accepted):
    processes.add(os.getpid(), OWN)
    peer.check(accepted, UnitOwner(UNIT))


@pytest.mark.parametrize(
    "cgroup",
    [
        FOREIGN,
        # In each of these paths, the last name was chosen by a user, because the cgroup above it is delegated.
        "/user.slice/user-1000.slice/user@1000.service/%s" % UNIT,
        "/system.slice/jupyterhub.service/%s" % UNIT,
        "/system.slice/docker-%s.scope/system.slice/%s" % (ID, UNIT),
        "/",
    ],
)
def test_other_process_is_refused_with_its_name(processes, stranger, cgroup):
    processes.add(stranger.process.pid, cgroup)
    # A process of the unit exists, but it does not own the port.
    processes.add(os.getpid(), OWN)
    with connect(stranger.port) as client, pytest.raises(peer.PeerError) as caught:
        peer.check(client, UnitOwner(UNIT))
    said = str(caught.value)
    assert "the port is held by pid %d (%s) of " % (stranger.process.pid, os.path.realpath(sys.executable)) in said
    assert "uid %d" % (65534 if os.geteuid() == 0 else os.geteuid()) in said
    assert "which is not a process of dcgm-exporter.service" in said


def test_scan_of_other_processes_is_limited(processes, stranger, monkeypatch):
    """Limit the scan, because a user may have many processes with a million files."""
    monkeypatch.setattr(peer, "LOOK_SECONDS", -1, raising=False)
    processes.add(stranger.process.pid, FOREIGN)
    processes.add(os.getpid(), OWN)
    with connect(stranger.port) as client, pytest.raises(peer.PeerError, match="was not found within"):
        peer.check(client, UnitOwner(UNIT), seconds=1)


def test_control_characters_in_program_names_are_escaped(processes, stranger):
    processes.add(stranger.process.pid, FOREIGN, executable="/tmp/a\r\x1b[2Jroot")
    with connect(stranger.port) as client, pytest.raises(peer.PeerError) as caught:
        peer.check(client, UnitOwner(UNIT))
    assert "(/tmp/a\\x0d\\x1b[2Jroot)" in str(caught.value)


def test_only_the_owner_of_this_connection_counts(processes):
    """Another process may listen on the port after the connection was made."""
    processes.add(os.getpid(), OWN)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        client = connect(port)
        server, _ = listener.accept()
    with client, server:
        late = Stranger(port=port)
        processes.add(late.process.pid, FOREIGN)
        peer.check(client, UnitOwner(UNIT))
        with connect(port) as other, pytest.raises(peer.PeerError, match="held by pid %d " % late.process.pid):
            peer.check(other, UnitOwner(UNIT))
        late.end()


def test_unaccepted_connection_is_awaited(processes, monkeypatch):
    """Before the server accepts, the kernel does not know the owner of its socket.

    Until then, the socket has inode 0 and user ID 0.
    """
    processes.add(os.getpid(), OWN)
    with socket.create_server(("127.0.0.1", 0)) as listener, connect(listener.getsockname()[1]) as client:
        with pytest.raises(peer.PeerError, match="nothing accepts the connection"):
            peer.check(client, UnitOwner(UNIT), seconds=0)

        looks, accepted, table = [], [], peer._own_connections

        def look():
            looks.append(1)
            if len(looks) == 3:
                accepted.append(listener.accept()[0])
            return table()

        monkeypatch.setattr(peer, "_own_connections", look)
        peer.check(client, UnitOwner(UNIT), seconds=60)
        assert len(looks) == 3
        accepted[0].close()


def test_connection_to_itself_is_refused(processes):
    """Without a listener, a client may get the server's port and connect to itself."""
    processes.add(os.getpid(), FOREIGN)
    with socket.socket() as client:
        client.bind(("127.0.0.1", 0))
        client.connect(client.getsockname())
        with pytest.raises(peer.PeerError, match="held by pid %d " % os.getpid()):
            peer.check(client, UnitOwner(UNIT))


def test_closed_or_remote_connection_is_refused(processes):
    processes.add(os.getpid(), OWN)
    with socket.create_server(("127.0.0.1", 0)) as listener, connect(listener.getsockname()[1]) as client:
        real = client.getsockname()
        far = [("192.0.2.7", 9400), ("2001:db8::7", 9400, 0, 0)]
        for name in far:

            class Elsewhere:
                """A socket whose peer is on another host.

                This host's tables list the connection all the same.
                """

                getsockname, getpeername = (lambda self: real), (lambda self, name=name: name)

            with pytest.raises(peer.PeerError, match="it leaves the host"):
                peer.check(Elsewhere(), UnitOwner(UNIT), seconds=0)


# -- Containers --------------------------------------------------------------------------------------------------------


@pytest.fixture
def engines(tmp_path, monkeypatch):
    """Replace docker, podman and systemctl.

    The argument maps commands, for example "docker container inspect ...", to their output.
    """
    folder, answers = tmp_path / "bin", tmp_path / "answers"
    folder.mkdir()
    answers.mkdir()
    for name in ("docker", "podman", "systemctl"):
        program = folder / name
        program.write_text(
            '#!/bin/sh\nfor last; do :; done\ncat "%s/%s $last" 2>/dev/null || exit 1\n' % (answers, name)
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", "%s:%s" % (folder, os.environ["PATH"]))

    def answer(command, text):
        (answers / command).write_text(text + "\n")

    return answer


@pytest.mark.parametrize(
    ("engine", "cgroup", "own"),
    [
        ("podman", OWN + "/libpod-payload-" + ID, True),
        ("docker", "/system.slice/docker-%s.scope" % ID, True),
        ("docker", "/docker/" + ID, True),
        ("docker", "/system.slice/docker-%s.scope" % ("0" * 64), False),
        # A user's own container engine may use the same cgroup name.
        ("docker", "/user.slice/user-1000.slice/user@1000.service/docker-%s.scope" % ID, False),
        ("podman", "/system.slice/docker-%s.scope" % ID, False),
    ],
)
def test_exporter_container_is_recognized_by_engine_and_cgroup(processes, engines, accepted, engine, cgroup, own):
    engines("%s dcgm-exporter" % engine, ID)
    processes.add(os.getpid(), cgroup)
    owner = UnitOwner(UNIT, engine, "dcgm-exporter")
    if own:
        peer.check(accepted, owner)
    else:
        with pytest.raises(peer.PeerError, match="held by pid %d " % os.getpid()):
            peer.check(accepted, owner)


def test_stopped_container_owns_nothing(engines):
    with pytest.raises(peer.PeerError, match="docker container notebook is not running"):
        ContainerOwner("docker", "notebook")


def test_only_the_user_of_the_main_process_counts_for_a_unit(processes, engines, stranger):
    """A hub may run the servers of its users in its own cgroup."""
    if os.geteuid() != 0:
        pytest.skip("starts a process of another user: run as root")
    unit = "jupyter.service"
    engines("systemctl " + unit, "MainPID=%d" % os.getpid())
    processes.add(os.getpid(), "/system.slice/" + unit)
    processes.add(stranger.process.pid, "/system.slice/" + unit)
    with connect(stranger.port) as client, pytest.raises(peer.PeerError) as caught:
        peer.check(client, UserOfUnitOwner(unit))
    assert "not a process of jupyter.service with the uid 0 of its main process" in str(caught.value)
    with socket.create_server(("127.0.0.1", 0)) as listener, connect(listener.getsockname()[1]) as client:
        server, _ = listener.accept()
        with server:
            peer.check(client, UserOfUnitOwner(unit))


@pytest.mark.parametrize("main", ["0", "", "1000000000"])
def test_unit_without_a_main_process_owns_nothing(processes, engines, main):
    engines("systemctl jupyter.service", "MainPID=" + main)
    with pytest.raises(peer.PeerError, match="main process"):
        UserOfUnitOwner("jupyter.service")


def test_replaced_main_process_owns_nothing(processes, engines):
    engines("systemctl jupyter.service", "MainPID=%d" % os.getpid())
    processes.add(os.getpid(), FOREIGN)
    with pytest.raises(peer.PeerError, match="has ended"):
        UserOfUnitOwner("jupyter.service")


#: A program that forwards one connection to a port like docker-proxy. It prints its own port when it is ready.
PROXY = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
client, _ = listener.accept()
backend = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("cgroup", "executable", "inside", "trusted"),
    [
        ("/system.slice/docker.service", "/usr/bin/docker-proxy", True, True),
        # The proxy forwards the connection to another container.
        ("/system.slice/docker.service", "/usr/bin/docker-proxy", False, False),
        # Root in a container with the host's network can choose the program's name.
        ("/system.slice/docker-%s.scope" % ("0" * 64), "/usr/bin/docker-proxy", True, False),
        ("/system.slice/docker.service", "/usr/bin/socat", True, False),
        (FOREIGN, "/usr/bin/docker-proxy", True, False),
    ],
)
def test_published_port_with_dockers_proxy_is_accepted(processes, engines, cgroup, executable, inside, trusted):
    if os.geteuid() != 0:
        pytest.skip("docker-proxy is root's: run as root")
    engines("docker notebook", ID)
    processes.add(os.getpid(), "/system.slice/docker-%s.scope" % (ID if inside else "1" * 64))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-c", PROXY, str(listener.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proxy:
            processes.add(proxy.pid, cgroup, executable)
            with connect(int(proxy.stdout.readline())) as client:
                server, _ = listener.accept()
                with server:
                    owner = ContainerOwner("docker", "notebook")
                    if trusted:
                        peer.check(client, owner)
                    else:
                        with pytest.raises(peer.PeerError, match="held by pid %d " % proxy.pid):
                            peer.check(client, owner)
            proxy.stdin.close()


def test_translated_port_ends_in_the_container(processes, engines, accepted, monkeypatch):
    """The server's end of the connection is only in the container's socket table.

    Only the client's port is the same in the tables of host and container.
    """
    engines("podman notebook", ID)
    processes.add(os.getpid(), "/machine.slice/libpod-%s.scope/container" % ID)
    owner = ContainerOwner("podman", "notebook")
    monkeypatch.setattr(peer, "_own_connections", list)
    peer.check(accepted, owner)
    # The process that owns the socket is now in another container.
    processes.add(os.getpid(), "/machine.slice/libpod-%s.scope/container" % ("0" * 64))
    with pytest.raises(peer.PeerError, match="podman container notebook"):
        peer.check(accepted, owner, seconds=0)


@pytest.mark.parametrize(
    ("address", "port", "inode", "ours"),
    [
        # This is the client's address after masquerading, which is an address of this host.
        ("127.0.0.9", 4711, 5, True),
        # Another host has a connection with the same client port, by chance or on purpose.
        ("192.0.2.7", 4711, 5, False),
        ("127.0.0.9", 4712, 5, False),
        # The socket belongs to another process in the container's network.
        ("127.0.0.9", 4711, 6, False),
    ],
)
def test_translated_connection_is_recognized_by_the_clients_port(address, port, inode, ours):
    class Seen:
        def sockets(self, deadline):
            return {5}

        def connections(self):
            return [peer.Connection(peer._end(("10.88.0.2", 8888)), peer._end((address, port)), inode)]

    assert peer._has_end_beyond(Seen(), peer._end(("127.0.0.1", 4711))) is ours


def test_host_can_be_a_container(processes, accepted):
    """Lab hosts are containers, so the test's own container must not matter."""
    (processes.folder / "self/cgroup").write_text("0::/machine.slice/libpod-%s.scope/init.scope\n" % ID)
    processes.add(os.getpid(), "/machine.slice/libpod-%s.scope/system.slice/%s" % (ID, UNIT))
    peer.check(accepted, UnitOwner(UNIT))


def test_this_kernel_writes_addresses_as_expected():
    with socket.create_server(("127.0.0.1", 0)) as listener, connect(listener.getsockname()[1]) as client:
        server, _ = listener.accept()
        with server:
            ends = {(entry.local, entry.remote) for entry in peer._own_connections()}
            near, far = (peer._end(name) for name in (client.getsockname(), client.getpeername()))
            assert {(near, far), (far, near)} <= ends


def test_no_descriptors_stay_open(processes, accepted):
    processes.add(os.getpid(), OWN)
    owner = UnitOwner(UNIT)

    def descriptors():
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    peer.check(accepted, owner)
    with pytest.raises(peer.PeerError):
        processes.add(os.getpid(), FOREIGN)
        peer.check(accepted, owner)
    assert descriptors() == before


def test_process_that_ends_while_its_files_are_listed_has_no_sockets(monkeypatch):
    listdir = os.listdir
    with subprocess.Popen(["sleep", "infinity"]) as child:

        def end_first(folder):
            child.kill()
            child.wait()
            return listdir(folder)

        folder = os.open("/proc/%d" % child.pid, os.O_RDONLY | os.O_DIRECTORY)
        try:
            process = peer.Process(child.pid, folder)
            monkeypatch.setattr(peer.os, "listdir", end_first)
            assert process.sockets(time.monotonic() + 60) == set()
        finally:
            os.close(folder)
            child.kill()
