# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test attacks by tenants on the agent and its shared memory.

The attacks come from the host and from root in a container.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import agent as vgpu_agent
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import files as vgpu_files
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.agent_client import (
    shown,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.agent_memory import Notifier, SharedMemory
from tests.limiter.agent_lab import (
    HALF_MS,
    POINTS,
    Pause,
    connected,
    file_of,
    folder_of,
    handed,
    own,
    own_page,
    pair,
    seat_of,
    spec_of,
    wait_until,
)
from tests.limiter.limiter_lab import DEADLINE
from tests.limiter.mounts import UNSHARE, can_mount
from tests.limiter.turnstile_lab import Seat


def test_truncating_the_file_ends_no_program(world, agent):
    workers = pair(world, "--kernel 2000000 --seconds 4")
    pause = Pause(world, workers[0].tenant, 1)
    agent.start()
    world.start()
    with pause:
        os.truncate(file_of(world), 0)
    world.finish()
    assert [worker.share() for worker in workers] == [pytest.approx(50, abs=POINTS)] * 2


def test_a_page_without_its_name_keeps_no_later_process_out(world, agent):
    """Ignore a forged file header that would make later processes ignore the page.

    A process that ignores the page would get the full share of the tenant for itself.
    """
    first, second = pair(world, f"{HALF_MS} --seconds 5")
    late = world.worker(second.tenant, f"{HALF_MS} --start 2 --seconds 3")
    pause = Pause(world, first.tenant, 1)
    agent.start()
    world.start()
    with pause, handed(own(first.tenant)) as found:
        os.pwrite(own_page(world, found), b"\xff" * Seat.paid_until.offset, 0)
    world.finish()
    assert first.share(2.2, 5) == pytest.approx(50, abs=POINTS)
    assert second.share(2.2, 5) + late.share(2.2, 5) == pytest.approx(50, abs=POINTS)


HOSTILE = {
    "has-saved-for-ever": {"paid_until": -(2**62)},
    "owes-for-ever": {"paid_until": 2**62},
    "waits-for-ever": {"waiting_until": 2**62, "active_until": 2**62},
    "lease-for-ever": {"lease": 4095 << 48 | (1 << 48) - 1},
    "is-the-most-urgent": {"percent": 99, "priority": -(2**30)},
    "is-another": {"tenant": int.from_bytes(b"tenant-0", "little")},
}


@pytest.mark.parametrize("write", HOSTILE)
def test_a_hostile_write_into_the_own_page_costs_the_neighbour_a_moment(world, agent, write):
    workers = pair(world, "--kernel 2000000 --report 0.05 --seconds 4")
    pause = Pause(world, workers[0].tenant, 1)
    agent.start()
    world.start()
    with pause, handed(own(workers[1].tenant)) as found:
        for name, value in HOSTILE[write].items():
            size = 4 if name in ("percent", "priority") else 8
            word = (value % (1 << 8 * size)).to_bytes(size, "little")
            os.pwrite(own_page(world, found, 1), word, getattr(Seat, name).offset)
    world.finish()
    lines = workers[0].lines
    waits = [after[0] - before[0] for before, after in zip(lines, lines[1:])]
    assert max(waits) < 1.2, "the delay is bounded by a lease's length"
    assert workers[0].share(2.1, 4) == pytest.approx(50, abs=POINTS)


def test_without_a_lock_on_the_file_a_process_takes_turns_all_the_same(world, agent):
    """Take turns although another tenant holds the file's locks, or it is missing."""
    workers = pair(world, f"{HALF_MS} --seconds 5")
    file_of(world).unlink()
    agent.start()
    world.run()
    assert [worker.share() for worker in workers] == [pytest.approx(50, abs=POINTS)] * 2
    late = seat_of(agent, workers[0].tenant)
    assert late.used_ns > 10**9


def test_without_the_agent_truncating_the_file_ends_the_neighbours(world):
    """Check that truncating the file ends other tenants' programs if no agent runs.

    Only the agent prevents this. If the test fails, the limitation no longer exists, and its documentation must be
    removed.
    """
    workers = pair(world, "--kernel 2000000 --seconds 4")
    for worker in workers:
        worker.ends_with = -signal.SIGBUS
    pause = Pause(world, workers[0].tenant, 1)
    world.start()
    with pause:
        os.truncate(file_of(world), 0)
    world.finish()


def test_a_tenant_can_neither_shrink_nor_grow_nor_seal_what_it_is_handed(world, agent):
    (worker, _other) = pair(world, HALF_MS)
    agent.start()
    with handed(own(worker.tenant)) as found:
        descriptor = own_page(world, found)
        size = os.fstat(descriptor).st_size
        for length in (0, size - 1, size + 1):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, length)
        with pytest.raises(PermissionError):
            os.posix_fallocate(descriptor, 0, size + 1)
        with pytest.raises(PermissionError):
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        with pytest.raises(PermissionError):
            os.truncate(f"/proc/self/fd/{descriptor}", 0)
        assert os.fstat(descriptor).st_size == size


def test_all_users_can_read_and_none_of_them_can_write(world, agent):
    (worker, other) = pair(world, HALF_MS)
    agent.start()
    path = worker.tenant.root / vgpu_files.SHOWN
    assert (path.stat().st_mode & 0o777, path.stat().st_uid) == (0o644, os.geteuid())
    uuid = world.card.uuid()
    assert [(seat.gpu_uuid, seat.number) for seat in shown(worker.tenant.root)] == [(uuid, 0), (uuid, 1)]
    # Each of the other sockets is for one tenant.
    sockets = {path for path in (worker.tenant.root / vgpu_files.STATE).rglob("*") if path.is_socket()}
    assert sockets == {own(one.tenant) / vgpu_files.AGENT_SOCKET for one in (worker, other)}


def shown_at(state: Path) -> int:
    """Return the time at which the agent last wrote the file that all users may read."""
    return int.from_bytes((state / Path(vgpu_files.SHOWN).name).read_bytes()[8:16], sys.byteorder)


def test_what_is_shown_fits_where_tenants_have_filled_the_rest(world, agent):
    """Update the file that all users may read, even if the file system is full.

    Tenants filled the file system. The agent rewrites the file in place, so the file needs no more space.
    """
    (worker, _other) = pair(world, HALF_MS)
    agent.start()
    state = worker.tenant.root / vgpu_files.STATE
    inode = (worker.tenant.root / vgpu_files.SHOWN).stat().st_ino
    before = shown_at(state)
    wait_until(lambda: shown_at(state) > before, "the agent writes once a second")
    assert (worker.tenant.root / vgpu_files.SHOWN).stat().st_ino == inode
    # A restarted agent creates a new file, which users can read again.
    agent.restart()
    assert len(shown(worker.tenant.root)) == 2


def test_a_tenant_that_reads_nothing_keeps_no_other_from_its_turnstile(world, agent):
    """Limit the unread answers to one tenant.

    Descriptors in unread answers count towards the agent's own limit of open files.
    """
    hostile, honest = (worker.tenant for worker in pair(world, HALF_MS))
    agent.start()
    held = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(64)]
    try:
        for number, connection in enumerate(held):
            connection.setblocking(False)
            connection.connect(f"/proc/self/fd/{folder_of(hostile)}/{vgpu_files.AGENT_SOCKET}")
            if number % 2:
                connection.shutdown(socket.SHUT_RDWR)
        for _ in range(50):
            with handed(own(honest)) as found:
                assert own_page(world, found, 1)
        # The agent has descriptors for its sockets and turnstiles, and those in unread answers.
        assert len(list(Path(f"/proc/{agent.process.pid}/fd").iterdir())) < 40
    finally:
        for connection in held:
            connection.close()
    with handed(own(hostile)) as found:
        assert own_page(world, found), "it is served again when it reads"


class Stopped(Exception):
    """Ends an agent that runs in the process of the test."""


def test_unread_answers_of_all_tenants_together_are_bounded(world, monkeypatch):
    """Limit the unread answers to a user who connects to the sockets of all tenants.

    Tenants without a group accept every user. Descriptors in unread answers count towards the agent's own limit of open
    files.
    """
    tenants = [worker.tenant for worker in pair(world, HALF_MS)]
    monkeypatch.setattr(vgpu_agent, "_MOST_ON_THEIR_WAY", 24, raising=False)
    agent = vgpu_agent.Agent(tenants[0].root, SharedMemory(Notifier({})))
    agent.look()
    held = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(32)]
    try:
        for number, connection in enumerate(held):
            connection.setblocking(False)
            connection.connect(f"/proc/self/fd/{folder_of(tenants[number % 2])}/{vgpu_files.AGENT_SOCKET}")
        looks = iter(range(2))

        def stop() -> None:
            if next(looks, None) is None:
                raise Stopped

        with pytest.raises(Stopped):
            agent.serve(stop)
        answered = 0
        for connection in held:
            with contextlib.suppress(BlockingIOError):
                answered += bool(connection.recv(1 << 16))
        # An answer has three descriptors. So 24 descriptors allow four unread answers on each of the two sockets.
        assert answered == 8
    finally:
        for connection in held:
            connection.close()


@pytest.mark.parametrize("errors", [1, 7], ids=["one error", "many errors"])
def test_tenants_that_are_gone_before_the_answer_flood_no_journal(world, monkeypatch, errors):
    """Limit the log entries if errors alternate between the sockets of two tenants.

    A log entry for one tenant must not reset the limit for the other tenant.
    """
    tenants = [worker.tenant for worker in pair(world, HALF_MS)]
    lines, sent = [], iter(range(1 << 30))

    def fail(*_arguments):
        raise OSError(errno.EPIPE, "error %d" % (next(sent) // 2 % errors))

    monkeypatch.setattr(vgpu_agent, "send", fail)
    agent = vgpu_agent.Agent(tenants[0].root, SharedMemory(Notifier({})), lines.append)
    agent.look()
    rounds = iter(range(400))

    def flood() -> None:
        if next(rounds, None) is None:
            raise Stopped
        for tenant in tenants:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as made:
                made.connect(f"/proc/self/fd/{folder_of(tenant)}/{vgpu_files.AGENT_SOCKET}")

    monkeypatch.setattr(vgpu_agent, "_TICK_SECONDS", 0.001)
    with pytest.raises(Stopped):
        agent.serve(flood)
    assert next(sent) >= 600, "the clients were answered"
    assert 2 <= len(lines) <= 2 * 10, lines[:30]


def test_what_clients_send_is_not_read(world, agent):
    (worker, _other) = pair(world, HALF_MS)
    agent.start()
    for _ in range(40):
        with connected(own(worker.tenant)) as connection:
            connection.send(b"GPU-of-another\n" * 100)
    with handed(own(worker.tenant)) as found:
        assert own_page(world, found)
    assert agent.process.poll() is None


# --- in a container ---


@pytest.mark.skipif(not can_mount(), reason="this user may make no mount namespace")
def test_a_container_reaches_its_own_tenants_socket_and_no_other(world, agent):
    """Run as root with the mounts of the tenant's CDI device.

    File permissions alone would not stop root.
    """
    own_tenant, other = (worker.tenant for worker in pair(world, HALF_MS))
    agent.start()
    folder = f"/{vgpu_files.AGENT}/{own_tenant.name}"
    spec = json.loads(vgpu_files.files(spec_of(own_tenant))[vgpu_files.cdi_path(own_tenant.name)])
    (mount,) = (
        mount for mount in spec["devices"][0]["containerEdits"]["mounts"] if mount["containerPath"].startswith(folder)
    )
    look = world.folder / "look.py"
    look.write_text(LOOK)
    script = world.folder / "container"
    script.write_text(
        f"""#!/bin/sh -e
        test "$1" = inside || exec {" ".join(UNSHARE)} "$0" inside
        mount -t tmpfs none /run
        mkdir -p {folder}
        mount --bind {own_tenant.root}{mount["hostPath"]} {mount["containerPath"]}
        mount -o remount,bind,{",".join(mount["options"][1:])} {mount["containerPath"]}
        exec setpriv --bounding-set -linux_immutable --inh-caps -linux_immutable {sys.executable} {look} {folder}
        """
    )
    script.chmod(0o755)
    done = subprocess.run([str(script)], capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "agent": [own_tenant.name],
        "run": ["agent"],
        "handed": [f"{world.card.uuid()} {what}" for what in ("own 0", "terms 1", "seat 1")],
        "remove": "Read-only file system",
        "truncate": "Operation not permitted",
        "unseal": "Operation not permitted",
        "open": {"terms 1": "Operation not permitted", "seat 1": "Operation not permitted"},
        "write": {"terms 1": "Bad file descriptor", "seat 1": "Bad file descriptor"},
        "map": {"terms 1": "Permission denied", "seat 1": "Permission denied"},
        "protect": {"terms 1": "Permission denied", "seat 1": "Permission denied"},
        "mode": {"terms 1": "Operation not permitted", "seat 1": "Operation not permitted"},
        "mutable": {"terms 1": "Operation not permitted", "seat 1": "Operation not permitted"},
        "punch": {"terms 1": "Bad file descriptor", "seat 1": "Bad file descriptor"},
    }
    with handed(own(other)) as found:
        assert own_page(world, found, 1)


#: This program prints what a container can see, and the errors of its attacks.
LOOK = """
import array, ctypes, fcntl, json, mmap, os, socket, struct, sys
folder = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
def denied(attack, *words):
    try:
        attack(*words)
    except OSError as error:
        return error.strerror
def protect(memory):
    at = libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, memory, 0)
    if libc.mprotect(at, 4096, mmap.PROT_READ | mmap.PROT_WRITE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
    connection.settimeout(60)
    connection.connect(folder + "/turnstiles.1")
    text, control, _flags, _address = connection.recvmsg(4096, socket.CMSG_SPACE(4 * 32))
lines = text.decode().splitlines()
memory = array.array("i", control[0][2])
others = {line.split(" ", 1)[1]: one for line, one in zip(lines, memory) if " own " not in line}
def each(attack):
    return {name: denied(attack, one) for name, one in others.items()}
print(json.dumps({
    "agent": os.listdir("/run/openfleet-gpu/vgpu/agent"),
    "run": os.listdir("/run/openfleet-gpu/vgpu"),
    "handed": lines,
    "remove": denied(os.unlink, folder + "/turnstiles.1"),
    "truncate": denied(os.ftruncate, memory[0], 0),
    "unseal": denied(fcntl.fcntl, memory[0], fcntl.F_ADD_SEALS, 0),
    "open": each(lambda one: os.open("/proc/self/fd/%d" % one, os.O_RDWR)),
    "write": each(lambda one: os.pwrite(one, b"x", 0)),
    "map": each(lambda one: mmap.mmap(one, 4096)),
    "protect": each(protect),
    "mode": each(lambda one: os.fchmod(one, 0o666)),
    "mutable": each(lambda one: fcntl.ioctl(one, 0x40086602, bytes(8))),
    "punch": each(lambda one: os.posix_fallocate(one, 0, 4096)),
}))
"""
