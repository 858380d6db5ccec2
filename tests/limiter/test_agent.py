# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Turnstiles from the agent: the same shares, memory that no tenant can truncate, and an agent that comes, hangs or goes."""

from __future__ import annotations

import fcntl
import grp
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from agent_lab import Agent, Pause, connected, handed, make_tenant, spec_of, wait_until
from limiter_lab import DEADLINE, Built, Tenant
from mounts import UNSHARE, can_mount
from sm import Worker, World
from test_throttle import WRITES
from test_turnstile import Turnstile

from ansible_collections.openfleet.gpu.plugins.module_utils import vgpu_files
from ansible_collections.openfleet.gpu.plugins.module_utils.vgpu_agent_client import handed_out
from ansible_collections.openfleet.gpu.plugins.module_utils.vgpu_host import VgpuHost

POINTS = 5  # how near to its share a tenant has to be; a turn is 2 points of a second
HALF_MS = "--kernel 500000 --report 0.1"


@pytest.fixture
def world(tmp_path: Path, built: Built) -> World:
    return World(tmp_path, built)


@pytest.fixture
def agent(tmp_path: Path):
    made = Agent(tmp_path / "root")
    yield made
    made.end()


def pair(world: World, words: str, percents: tuple[int, int] = (50, 50)) -> list[Worker]:
    """Two tenants on one GPU, known to the agent, each with a worker."""
    tenants = [make_tenant(world.tenant(sm, f"tenant-{seat}", seat)) for seat, sm in enumerate(percents)]
    return [world.worker(tenant, words) for tenant in tenants]


def own(tenant: Tenant) -> Path:
    """The folder that only this tenant's containers have."""
    return tenant.root / vgpu_files.agent_folder(tenant.name)


def seats_of(agent: Agent, world: World) -> list:
    return list(Turnstile.from_buffer_copy(agent.memory(world.card.uuid())).seats)


def file_of(world: World) -> Path:
    return world.workers[0].tenant.gpus / f"{world.card.uuid()}.1"


# --- shares ---


@pytest.mark.parametrize("kernel", ["10000", "50000000"])
def test_tenants_have_the_same_shares_and_leave_the_file_alone(world, agent, kernel):
    workers = pair(world, f"--kernel {kernel} --seconds 8", (10, 90))
    agent.start()
    world.run()
    assert [worker.share() for worker in workers] == [pytest.approx(10, abs=POINTS), pytest.approx(90, abs=POINTS)]
    assert not any(file_of(world).read_bytes())
    assert [seat.tenant for seat in seats_of(agent, world)[:2]] == [b"tenant-0", b"tenant-1"]


def test_a_tenant_on_two_gpus_has_both_from_the_agent(tmp_path, built, agent):
    world = World(tmp_path, built, gpus=2)
    tenant = make_tenant(world.tenant(40))
    workers = [world.worker(tenant, f"--kernel 1000000 --device {gpu} --seconds 4") for gpu in range(2)]
    agent.start()
    world.run()
    assert [worker.share() for worker in workers] == [pytest.approx(40, abs=POINTS)] * 2
    assert not any(any(path.read_bytes()) for path in tenant.gpus.iterdir())


def test_a_killed_holder_is_found_out_by_its_lock(world, agent):
    first, second = (make_tenant(world.tenant(50, f"tenant-{seat}", seat)) for seat in range(2))
    world.worker(first, "--kernel 400000000 --sync 1 --die-after 3 --seconds 60", ends_with=-signal.SIGKILL)
    other = world.worker(second, "--kernel 1000000 --report 0.01 --seconds 8")
    agent.start()
    world.run()
    waits = sorted(after[0] - before[0] for before, after in zip(other.lines, other.lines[1:]))
    assert waits[-3] < 0.15, f"the longest waits: {waits[-4:]}"


def test_no_descriptor_stays_open(world, agent):
    """A program may close all descriptors, and use their numbers for its own."""
    worker, _other = pair(world, "--kernel 2000000 --seconds 2")
    pause = Pause(world, worker.tenant, 1)
    agent.start()
    world.start()
    with pause:
        process = Path(f"/proc/{worker.process.pid}")
        opened = [str(link.readlink()) for link in (process / "fd").iterdir()]
        mapped = (process / "maps").read_text()
    world.finish()
    assert f"memfd:openfleet-vgpu-{world.card.uuid()}" in mapped
    assert not any("memfd" in name or "socket" in name for name in opened), opened


# --- attacks ---


def test_truncating_the_file_ends_no_program(world, agent):
    workers = pair(world, "--kernel 2000000 --seconds 4")
    pause = Pause(world, workers[0].tenant, 1)
    agent.start()
    world.start()
    with pause:
        os.truncate(file_of(world), 0)
    world.finish()
    assert [worker.share() for worker in workers] == [pytest.approx(50, abs=POINTS)] * 2


def test_a_forged_header_keeps_no_later_process_out(world, agent):
    """Of a file it would: each process that starts later would then have its tenant's whole share."""
    first, second = pair(world, f"{HALF_MS} --seconds 5")
    late = world.worker(second.tenant, f"{HALF_MS} --start 2 --seconds 3")
    pause = Pause(world, first.tenant, 1)
    agent.start()
    world.start()
    with pause, handed(own(first.tenant)) as found:
        os.pwrite(found[world.card.uuid()], b"\xff" * Turnstile.lease.offset, 0)
    world.finish()
    assert first.share(2.2, 5) == pytest.approx(50, abs=POINTS)
    assert second.share(2.2, 5) + late.share(2.2, 5) == pytest.approx(50, abs=POINTS)


@pytest.mark.parametrize("write", ["own-seat-waits-for-ever", "owes-for-ever", "lease-for-ever"])
def test_a_hostile_write_costs_a_moment_as_in_the_file(world, agent, write):
    workers = pair(world, "--kernel 2000000 --report 0.05 --seconds 4")
    offset, value = WRITES[write]
    pause = Pause(world, workers[0].tenant, 1)
    agent.start()
    world.start()
    with pause, handed(own(workers[1].tenant)) as found:
        os.pwrite(found[world.card.uuid()], (int(value) % (1 << 64)).to_bytes(8, "little"), offset)
    world.finish()
    for worker in workers:
        waits = [after[0] - before[0] for before, after in zip(worker.lines, worker.lines[1:])]
        assert max(waits) < 1.2, "the delay is bounded by a lease's length"
        assert worker.share(2.1, 4) == pytest.approx(50, abs=5)


def test_without_the_agent_truncating_the_file_ends_the_neighbours(world):
    """What the agent is for. If this fails, the documentation says too little."""
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
        assert list(found) == [world.card.uuid()]
        (descriptor,) = found.values()
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


def test_each_client_has_locks_of_its_own(world, agent):
    """Two processes that shared an open file would have each other's locks."""
    (worker, _other) = pair(world, HALF_MS)
    agent.start()
    with handed(own(worker.tenant)) as first, handed(own(worker.tenant)) as second:
        (one,), (two,) = first.values(), second.values()
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_all_users_can_read_and_none_of_them_can_write(world, agent):
    (worker, _other) = pair(world, HALF_MS)
    agent.start()
    with handed(worker.tenant.root / vgpu_files.STATE) as found:
        (descriptor,) = found.values()
        assert len(os.pread(descriptor, 1 << 20, 0)) == vgpu_files.TURNSTILE_BYTES
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pwrite(descriptor, b"x", 0)
        with pytest.raises(PermissionError):
            mmap.mmap(descriptor, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        assert os.fstat(descriptor).st_mode & 0o777 == 0o600


def test_a_tenant_that_reads_nothing_keeps_no_other_from_its_turnstile(world, agent):
    """Descriptors that are on their way count against the agent: it lets a tenant have so many answers unread."""
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
                assert list(found) == [world.card.uuid()]
        # Descriptors of the agent: sockets, those of turnstiles, and of each unread answer.
        assert len(list(Path(f"/proc/{agent.process.pid}/fd").iterdir())) < 40
    finally:
        for connection in held:
            connection.close()
    with handed(own(hostile)) as found:
        assert list(found) == [world.card.uuid()], "it is served again when it reads"


def folder_of(tenant: Tenant) -> int:
    return os.open(own(tenant), os.O_PATH | os.O_DIRECTORY)


def test_what_clients_send_is_not_read(world, agent):
    (worker, _other) = pair(world, HALF_MS)
    agent.start()
    for _ in range(40):
        with connected(own(worker.tenant)) as connection:
            connection.send(b"GPU-of-another\n" * 100)
    with handed(own(worker.tenant)) as found:
        assert list(found) == [world.card.uuid()]
    assert agent.process.poll() is None


# --- what is shown ---


def test_gpu_layout_tells_whether_tenants_are_protected(world, agent):
    pair(world, HALF_MS)
    host = VgpuHost(root=str(world.folder / "root"))
    assert [seen.isolation for seen in host.observe()] == ["none", "none"]
    agent.start()
    assert [seen.isolation for seen in host.observe()] == ["sealed", "sealed"]
    agent.kill()
    assert [seen.isolation for seen in host.observe()] == ["none", "none"]


def test_vgpu_top_shows_what_the_memory_tells(world, agent, built):
    worker, _other = pair(world, "--kernel 2000000 --seconds 2")
    agent.start()
    world.run()
    environment = dict(os.environ, OPENFLEET_VGPU_ROOT=str(worker.tenant.root))
    top = [str(built.library.parent / "vgpu-top"), "--json", "--interval", "0.01"]
    done = subprocess.run(top, env=environment, capture_output=True, text=True, check=True, timeout=DEADLINE)
    (gpu,) = json.loads(done.stdout)["tenants"][0]["gpus"]
    assert gpu["held_back_seconds"] > 0.5


# --- tenants that come and go ---


def test_a_tenants_socket_comes_and_goes_with_it(world, agent):
    agent.start()
    root = world.folder / "root"
    assert handed_out(root) == frozenset()
    tenant = make_tenant(world.tenant(50))
    wait_until(lambda: handed_out(root) == {world.card.uuid()}, "the agent serves the new tenant")
    with handed(own(tenant)) as found:
        assert list(found) == [world.card.uuid()]
    assert own(tenant).joinpath(vgpu_files.AGENT_SOCKET).stat().st_mode & 0o777 == 0o666
    (tenant.root / vgpu_files.spec_path(tenant.name)).unlink()
    wait_until(lambda: not handed_out(root), "the agent has nothing to hand out")
    assert not any(path.is_socket() for path in (root / vgpu_files.STATE).rglob("*"))
    wait_until(lambda: not agent.kept, "nothing is kept of GPUs without tenants")


def test_the_socket_of_a_tenant_with_a_group_is_the_groups(world, agent):
    group = grp.getgrgid(os.getgid()).gr_name
    tenant = make_tenant(world.tenant(50), group)
    agent.start()
    status = own(tenant).joinpath(vgpu_files.AGENT_SOCKET).stat()
    assert (status.st_mode & 0o777, status.st_gid) == (0o660, os.getgid())


def test_a_socket_that_was_removed_is_made_again(world, agent):
    tenant = make_tenant(world.tenant(50))
    agent.start()
    path = own(tenant) / vgpu_files.AGENT_SOCKET
    path.unlink()
    wait_until(path.exists, "the agent makes its socket again")
    with handed(own(tenant)) as found:
        assert list(found) == [world.card.uuid()]


def test_a_damaged_tenant_leaves_the_others_served(world, agent):
    tenant = make_tenant(world.tenant(50))
    agent.start()
    other = world.folder / "root" / vgpu_files.spec_path("other")
    other.parent.mkdir(parents=True)
    other.write_text("{")
    wait_until(lambda: "those of before are served" in agent.log.read_text(), "the agent has seen it")
    with handed(own(tenant)) as found:
        assert list(found) == [world.card.uuid()]


# --- an agent that goes, comes and hangs ---


def test_tenants_go_on_while_the_agent_starts_again_with_what_was_kept(world, agent):
    workers = pair(world, f"{HALF_MS} --seconds 6")
    late = world.worker(workers[0].tenant, f"{HALF_MS} --start 3 --seconds 3")
    pause = Pause(world, workers[0].tenant, 2)
    agent.start()
    world.start()
    with pause:
        inodes = [os.fstat(descriptor).st_ino for descriptor in agent.kept.values()]
        agent.restart()
        assert [os.fstat(descriptor).st_ino for descriptor in agent.kept.values()] == inodes
    world.finish()
    assert workers[1].share(0.2, 6) == pytest.approx(50, abs=POINTS)
    both = workers[0].share(3.2, 6) + late.share(3.2, 6)
    assert both == pytest.approx(50, abs=POINTS), "the new process counts together with the one before the restart"


def test_tenants_go_over_to_new_memory_where_the_agent_has_lost_the_old(world, agent):
    worker = world.worker(make_tenant(world.tenant(50)), "--kernel 5000000 --report 1 --seconds 90")
    pause = Pause(world, worker.tenant, 5)
    agent.start()
    world.start()
    with pause:
        agent.restart(lose=True)
    world.finish()
    assert worker.share(10, 90) == pytest.approx(50, abs=POINTS)
    # A minute is what running programs take at most to notice.
    seat = seats_of(agent, world)[0]
    assert (seat.tenant, seat.used_ns > 10 * 10**9) == (b"tenant-a", True)


def test_a_running_process_goes_over_to_an_agent_that_comes(world, agent):
    workers = pair(world, "--kernel 5000000 --report 1 --seconds 20")
    pause = Pause(world, workers[0].tenant, 5)
    world.start()
    with pause:
        agent.start()
        os.truncate(file_of(world), vgpu_files.TURNSTILE_BYTES)
    world.finish()
    assert [worker.share(12, 20) for worker in workers] == [pytest.approx(50, abs=POINTS)] * 2
    assert all(seat.used_ns > 3 * 10**9 for seat in seats_of(agent, world)[:2])


def test_an_agent_that_hangs_costs_a_moment_and_then_the_file_serves(world, agent):
    workers = pair(world, "--kernel 2000000 --seconds 12")
    agent.start()
    agent.process.send_signal(signal.SIGSTOP)
    world.run()
    assert [worker.share() for worker in workers] == [pytest.approx(50, abs=POINTS)] * 2
    assert Turnstile.from_buffer_copy(file_of(world).read_bytes()).seats[0].tenant == b"tenant-0"
    # It was asked again after ten seconds.
    assert workers[0].tenant.logged().count("the agent does not answer") == 1
    agent.process.send_signal(signal.SIGCONT)


def test_a_socket_without_an_agent_costs_nothing(world, agent):
    workers = pair(world, "--kernel 2000000 --seconds 4")
    agent.start()
    agent.kill()
    world.run()
    assert [worker.share() for worker in workers] == [pytest.approx(50, abs=POINTS)] * 2
    assert "agent" not in workers[0].tenant.logged()


@pytest.mark.parametrize(
    "answer", [b"", b"x" * 60000, b"GPU-\n\n\n\xff", b"\n" * 300], ids=["none", "long", "odd", "empty"]
)
def test_a_strange_answer_is_no_answer(world, answer):
    """An agent of another release, say."""
    workers = pair(world, "--kernel 2000000 --seconds 4")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    descriptor = folder_of(workers[0].tenant)
    listener.bind(f"/proc/self/fd/{descriptor}/{vgpu_files.AGENT_SOCKET}")
    listener.listen()
    with Path(os.devnull).open() as null, listener:
        world.start()
        connection, _address = listener.accept()
        if answer:
            socket.send_fds(connection, [answer], [null.fileno()] * 70)
        connection.close()
        world.finish()
    os.close(descriptor)
    assert [worker.share() for worker in workers] == [pytest.approx(50, abs=POINTS)] * 2


# --- in a container ---


@pytest.mark.skipif(not can_mount(), reason="this user may make no mount namespace")
def test_a_container_reaches_its_own_tenants_socket_and_no_other(world, agent):
    """With the mounts of its CDI device; as root, who could undo what is only a matter of modes."""
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
        exec {sys.executable} {look} {folder}
        """
    )
    script.chmod(0o755)
    done = subprocess.run([str(script)], capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "agent": [own_tenant.name],
        "run": ["agent"],
        "handed": world.card.uuid() + "\n",
        "remove": "Read-only file system",
        "truncate": "Operation not permitted",
        "unseal": "Operation not permitted",
    }
    with handed(own(other)) as found:
        assert list(found) == [world.card.uuid()]


#: What a container sees, and what it is told when it attacks.
LOOK = """
import array, fcntl, json, os, socket, sys
folder = sys.argv[1]
def denied(attack, *words):
    try:
        attack(*words)
    except OSError as error:
        return error.strerror
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
    connection.settimeout(60)
    connection.connect(folder + "/turnstiles.1")
    text, control, _flags, _address = connection.recvmsg(4096, socket.CMSG_SPACE(4))
memory = array.array("i", control[0][2])[0]
print(json.dumps({
    "agent": os.listdir("/run/openfleet-gpu/vgpu/agent"),
    "run": os.listdir("/run/openfleet-gpu/vgpu"),
    "handed": text.decode(),
    "remove": denied(os.unlink, folder + "/turnstiles.1"),
    "truncate": denied(os.truncate, "/proc/self/fd/%d" % memory, 0),
    "unseal": denied(fcntl.fcntl, memory, fcntl.F_ADD_SEALS, 0),
}))
"""
