# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pages from the agent: the same shares, memory that no neighbour can write, and an agent that comes, hangs or goes."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import grp
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from agent_lab import Agent, Pause, connected, handed, make_tenant, spec_of, wait_until
from limiter_lab import DEADLINE, Built, Tenant
from mounts import UNSHARE, can_mount
from sm import Worker, World
from test_turnstile import AllTerms, Seat, Turnstile

from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import agent as vgpu_agent
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import files as vgpu_files
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.agent_client import (
    ShownFile,
    ShownSeat,
    handed_out,
    shown,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.agent_memory import Notifier, SharedMemory
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.host import VgpuHost

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


def seat_of(agent: Agent, tenant: Tenant) -> Seat:
    """What is in the tenant's page."""
    return Seat.from_buffer_copy(agent.page(tenant.card.uuid(), tenant.name))


def own_page(world: World, found: dict[str, int], number: int = 0) -> int:
    return found[f"{world.card.uuid()} own {number}"]


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
    assert [seat_of(agent, worker.tenant).tenant for worker in workers] == [b"tenant-0", b"tenant-1"]


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
    assert f"memfd:openfleet-vgpu-seat-1-{world.card.uuid()}-tenant-0" in mapped
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


def test_a_page_without_its_name_keeps_no_later_process_out(world, agent):
    """A forged header of the file does: each process that starts later then has its tenant's whole share."""
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


def test_the_agent_tells_who_has_which_seat(world, agent):
    first, second = (worker.tenant for worker in pair(world, HALF_MS, (30, 60)))
    agent.start()
    with handed(own(first)) as found:
        terms = AllTerms.from_buffer_copy(os.pread(found[f"{world.card.uuid()} terms 1"], 1 << 20, 0))
        told = [(seat.tenant, seat.percent, seat.policy, seat.priority) for seat in terms.seats[:3]]
        assert told == [(b"tenant-0", 30, 0, 0), (b"tenant-1", 60, 0, 0), (b"", 0, 0, 0)]
        make_tenant(second.quota(0, sm=40, policy="burst", priority=3, seat=1))
        changed = found[f"{world.card.uuid()} terms 1"]

        def now() -> tuple[int, int]:
            seat = AllTerms.from_buffer_copy(os.pread(changed, 1 << 20, 0)).seats[1]
            return seat.percent, seat.priority

        wait_until(lambda: now() == (40, 3), "the agent tells of the change")


def test_a_tenant_that_comes_is_seen_by_those_that_run(world, agent):
    """In the same memory: a tenant that is not seen is not waited for."""
    first = make_tenant(world.tenant(50, "tenant-0", 0, policy="contended"))
    second = world.tenant(50, "tenant-1", 1)
    worker = world.worker(first, f"{HALF_MS} --seconds 6")
    other = world.worker(second, f"{HALF_MS} --start 3 --seconds 3")
    pause = Pause(world, first, 1)
    agent.start()
    world.start()
    with pause:
        make_tenant(second)

        def is_told() -> bool:
            with handed(own(first)) as found:
                return f"{world.card.uuid()} seat 1" in found

        wait_until(is_told, "the agent knows the new tenant")
    world.finish()
    assert worker.share(0.1, 1.9) > 97
    assert worker.share(3.3, 6) == pytest.approx(50, abs=POINTS)
    assert other.share(3.1, 6) == pytest.approx(50, abs=POINTS)
    assert seat_of(agent, second).used_ns > 10**9


def test_without_a_lock_on_the_file_a_process_takes_turns_all_the_same(world, agent):
    """A neighbour can take all of its locks, or none is there."""
    workers = pair(world, f"{HALF_MS} --seconds 5")
    file_of(world).unlink()
    agent.start()
    world.run()
    assert [worker.share() for worker in workers] == [pytest.approx(50, abs=POINTS)] * 2
    late = seat_of(agent, workers[0].tenant)
    assert late.used_ns > 10**9


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
    # What there is else is each tenant's own.
    sockets = {path for path in (worker.tenant.root / vgpu_files.STATE).rglob("*") if path.is_socket()}
    assert sockets == {own(one.tenant) / vgpu_files.AGENT_SOCKET for one in (worker, other)}


def shown_at(state: Path) -> int:
    """When the agent wrote last what all users may see."""
    return int.from_bytes((state / Path(vgpu_files.SHOWN).name).read_bytes()[8:16], sys.byteorder)


def test_what_is_shown_fits_where_tenants_have_filled_the_rest(world, agent):
    """It is written where it was before, and takes no more room."""
    (worker, _other) = pair(world, HALF_MS)
    agent.start()
    state = worker.tenant.root / vgpu_files.STATE
    inode = (worker.tenant.root / vgpu_files.SHOWN).stat().st_ino
    before = shown_at(state)
    wait_until(lambda: shown_at(state) > before, "the agent writes once a second")
    assert (worker.tenant.root / vgpu_files.SHOWN).stat().st_ino == inode
    # A restart of the agent makes one, and it is read again.
    agent.restart()
    assert len(shown(worker.tenant.root)) == 2


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
                assert own_page(world, found, 1)
        # Descriptors of the agent: sockets, those of turnstiles, and of each unread answer.
        assert len(list(Path(f"/proc/{agent.process.pid}/fd").iterdir())) < 40
    finally:
        for connection in held:
            connection.close()
    with handed(own(hostile)) as found:
        assert own_page(world, found), "it is served again when it reads"


class Stopped(Exception):
    """Ends an agent of this process."""


def test_unread_answers_of_all_tenants_together_are_bounded(world, monkeypatch):
    """One user may connect to the sockets of all tenants without a group. What is on its way counts against the agent."""
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
        # Each answer has three descriptors: two sockets have four answers each on their way.
        assert answered == 8
    finally:
        for connection in held:
            connection.close()


def folder_of(tenant: Tenant) -> int:
    return os.open(own(tenant), os.O_PATH | os.O_DIRECTORY)


def test_what_clients_send_is_not_read(world, agent):
    (worker, _other) = pair(world, HALF_MS)
    agent.start()
    for _ in range(40):
        with connected(own(worker.tenant)) as connection:
            connection.send(b"GPU-of-another\n" * 100)
    with handed(own(worker.tenant)) as found:
        assert own_page(world, found)
    assert agent.process.poll() is None


# --- what is shown ---


def test_gpu_layout_tells_whether_tenants_are_protected(world, agent):
    pair(world, HALF_MS)
    host = VgpuHost(root=str(world.folder / "root"))
    assert [seen.isolation for seen in host.observe()] == ["none", "none"]
    agent.start()
    assert [seen.isolation for seen in host.observe()] == ["read_only", "read_only"]
    agent.kill()
    wait_until(lambda: [seen.isolation for seen in host.observe()] == ["none", "none"], "its file is stale")


def test_memory_that_root_in_a_container_can_write_is_told(world):
    """As an agent says it on a kernel that has no immutable memory."""
    worker, _other = pair(world, HALF_MS)
    (worker.tenant.root / vgpu_files.SHOWN).parent.mkdir(parents=True, exist_ok=True)
    ShownFile(worker.tenant.root).write([ShownSeat(world.card.uuid(), 0, False, b"")])
    seen = VgpuHost(root=str(world.folder / "root")).observe()
    assert [one.isolation for one in seen] == ["sealed", "sealed"]


def test_vgpu_top_shows_what_the_memory_tells(world, agent, built):
    worker, _other = pair(world, "--kernel 2000000 --seconds 2")
    agent.start()
    world.run()
    environment = dict(os.environ, OPENFLEET_VGPU_ROOT=str(worker.tenant.root))
    top = [str(built.library.parent / "vgpu-top"), "--json", "--interval", "0.01"]

    def held_back() -> float:
        done = subprocess.run(top, env=environment, capture_output=True, text=True, check=True, timeout=DEADLINE)
        (gpu,) = json.loads(done.stdout)["tenants"][0]["gpus"]
        assert gpu["had_percent"] is not None, "the shares are told from two looks of the agent"
        return gpu["held_back_seconds"]

    # The agent shows it with its next look.
    wait_until(lambda: held_back() > 0.5, "what the memory tells is shown")


# --- tenants that come and go ---


def test_a_tenants_socket_comes_and_goes_with_it(world, agent):
    agent.start()
    root = world.folder / "root"
    assert handed_out(root) == {}
    tenant = make_tenant(world.tenant(50))
    wait_until(lambda: handed_out(root) == {world.card.uuid(): True}, "the agent serves the new tenant")
    with handed(own(tenant)) as found:
        assert own_page(world, found)
    assert own(tenant).joinpath(vgpu_files.AGENT_SOCKET).stat().st_mode & 0o777 == 0o666
    (tenant.root / vgpu_files.spec_path(tenant.name)).unlink()
    wait_until(lambda: not handed_out(root), "the agent has nothing to hand out")
    assert not any(path.is_socket() for path in (root / vgpu_files.STATE).rglob("*"))
    wait_until(lambda: not agent.kept, "nothing is kept of GPUs without tenants")


def test_programs_of_both_names_of_a_renamed_tenant_have_one_page_and_one_share(world, agent):
    tenant = make_tenant(world.tenant(50, "tenant-0", 0))
    renamed = world.tenant(50, "tenant-b", 0)
    quota = (renamed.folder / "quota").read_text()
    renamed.write(quota.replace("tenant tenant-b", "tenant tenant-b\ncounted_as tenant-0"))
    old = world.worker(tenant, f"{HALF_MS} --seconds 6")
    new = world.worker(renamed, f"{HALF_MS} --start 3 --seconds 3")
    pause = Pause(world, tenant, 1)
    agent.start()
    world.start()
    with pause:
        kept = {name: os.fstat(descriptor).st_ino for name, descriptor in agent.kept.items()}
        spec = dataclasses.replace(spec_of(renamed), counted_as="tenant-0", aliases=("tenant-0",))
        (tenant.folder / "tenant.json.new").write_text(json.dumps(vgpu_files.to_data(spec)))
        (tenant.folder / "tenant.json.new").rename(tenant.folder / "tenant.json")
        time.sleep(2.5)  # the agent looks once a second
    world.finish()
    assert old.share(0.3, 2.9) == pytest.approx(50, abs=POINTS)
    assert old.share(3.3, 6) + new.share(3.3, 6) == pytest.approx(50, abs=POINTS)
    assert {name: os.fstat(descriptor).st_ino for name, descriptor in agent.kept.items()} == kept
    assert seat_of(agent, tenant).tenant == b"tenant-0"
    assert not any(file_of(world).read_bytes()), "none of them used the file"


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
        assert own_page(world, found)


def test_a_damaged_tenant_leaves_the_others_served(world, agent):
    tenant = make_tenant(world.tenant(50))
    agent.start()
    other = world.folder / "root" / vgpu_files.spec_path("other")
    other.parent.mkdir(parents=True)
    other.write_text("{")
    wait_until(lambda: "those of before are served" in agent.log.read_text(), "the agent has seen it")
    with handed(own(tenant)) as found:
        assert own_page(world, found)


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
    seat = seat_of(agent, worker.tenant)
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
    assert all(seat_of(agent, worker.tenant).used_ns > 3 * 10**9 for worker in workers)


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
    "answer",
    [b"", b"x" * 60000, b"GPU-\n\n\n\xff", b"\n" * 300, b"UUID\n", b"UUID own 0\nUUID terms 1\nUUID seat 1\n"],
    ids=["none", "long", "odd", "empty", "of-an-earlier-release", "of-no-memory"],
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
            socket.send_fds(connection, [answer.replace(b"UUID", world.card.uuid().encode())], [null.fileno()] * 70)
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


#: What a container sees, and what it is told when it attacks.
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
