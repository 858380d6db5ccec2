# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test turnstile pages that programs get from the agent.

A turnstile is shared memory in which tenants take turns on a GPU. With the agent, tenants get the same shares as
without it, but cannot write to the pages of other tenants. Programs keep running if the agent starts, hangs or stops.
"""

from __future__ import annotations

import dataclasses
import grp
import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import files as vgpu_files
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.agent_client import (
    ShownFile,
    ShownSeat,
    handed_out,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.host import VgpuHost
from tests.limiter.agent_lab import (
    HALF_MS,
    POINTS,
    Pause,
    file_of,
    folder_of,
    handed,
    make_tenant,
    own,
    own_page,
    pair,
    seat_of,
    spec_of,
    wait_until,
    wait_until_read,
)
from tests.limiter.limiter_lab import DEADLINE
from tests.limiter.sm import World
from tests.limiter.turnstile_lab import AllTerms, Turnstile


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
    """Close the descriptors of the agent's memory after mapping the memory.

    A program may close all its descriptors and reuse the numbers.
    """
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
    """Show a new tenant's seat to running programs, which then wait for the tenant.

    The seat is in memory that these programs have already mapped.
    """
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


def test_gpu_layout_tells_whether_tenants_are_protected(world, agent):
    pair(world, HALF_MS)
    host = VgpuHost(root=str(world.folder / "root"))
    assert [seen.isolation for seen in host.observe()] == ["none", "none"]
    agent.start()
    assert [seen.isolation for seen in host.observe()] == ["read_only", "read_only"]
    agent.kill()
    wait_until(lambda: [seen.isolation for seen in host.observe()] == ["none", "none"], "its file is stale")


def test_memory_that_root_in_a_container_can_write_is_told(world):
    """Log a message if the kernel cannot prevent writes by root in a container."""
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

    def throttled_seconds() -> float:
        done = subprocess.run(top, env=environment, capture_output=True, text=True, check=True, timeout=DEADLINE)
        (gpu,) = json.loads(done.stdout)["tenants"][0]["gpus"]
        assert gpu["actual_percent"] is not None, "the agent computes the shares from two readings"
        return gpu["throttled_seconds"]

    # The agent publishes changes when it scans the memory the next time.
    wait_until(lambda: throttled_seconds() > 0.5, "what the memory tells is shown")


# --- starting and stopping tenants ---


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
        wait_until_read(tenant.folder / "tenant.json")
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
    wait_until(lambda: "the earlier tenants are served" in agent.log.read_text(), "the agent has seen it")
    with handed(own(tenant)) as found:
        assert own_page(world, found)


# --- an agent that stops, starts and hangs ---


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
    # Running programs notice a new agent within one minute.
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
    # The program has asked the agent again ten seconds later, but logs the message only once.
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
    """Ignore an answer that the program cannot parse.

    An agent of another release may send such an answer.
    """
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
