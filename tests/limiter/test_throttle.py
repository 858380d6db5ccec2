# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test shares of the stub GPU in simulated time.

The stub GPU counts the work that it did for each process, while the limiter sees only events. The results do not depend
on the speed of the machine.
"""

from __future__ import annotations

import ctypes
import signal
import statistics

import pytest

from tests.limiter.limiter_lab import Tenant
from tests.limiter.sm import Worker, World, alone, two
from tests.limiter.turnstile_lab import Seat, Turnstile

KERNELS = ("10000", "100000", "1000000", "50000000")
GRAPH = "--kernel 20000 --graph 10 --form graph"
HALF_MS = "--kernel 500000 --report 0.1"
POINTS = 3  # The tolerance for a tenant's share, in percentage points.


def replace_quota(tenant: Tenant, before: str, after: str) -> str:
    """Return worker options that replace the quota file two seconds after the start."""
    now, later = tenant.folder / "quota", tenant.folder / "later"
    later.write_text(now.read_text().replace(before, after))
    later.chmod(0o644)
    return f"--rename-at 2 --rename-from {later} --rename-to {now}"


# --- fixed ---


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("percent", [20, 50, 80])
def test_a_tenant_gets_its_share_and_no_more(tmp_path, built, percent, kernel):
    share = alone(tmp_path, built, percent, f"--kernel {kernel} --seconds 5")
    assert share == pytest.approx(percent, abs=POINTS)
    assert share < percent + 0.5, "fixed means never more"


def test_without_the_limiter_the_same_program_takes_all(world):
    worker = world.worker(world.tenant(20), "--kernel 1000000 --seconds 2", preload=False)
    world.run()
    assert worker.share() > 99


@pytest.mark.parametrize("form", ["kernel", "kernel_ptsz", "ex", "ex_ptsz", "cooperative", "cooperative_ptsz"])
def test_each_kind_of_launch_is_held_back(tmp_path, built, form):
    assert alone(tmp_path, built, 30, f"--kernel 200000 --form {form} --seconds 3") == pytest.approx(30, abs=POINTS)


@pytest.mark.parametrize("form", ["graph", "graph_ptsz"])
@pytest.mark.parametrize("kernels", [1, 10, 500])
def test_graphs_are_held_back(tmp_path, built, form, kernels):
    share = alone(tmp_path, built, 30, f"--kernel 20000 --graph {kernels} --form {form} --seconds 5")
    assert share == pytest.approx(30, abs=POINTS)


@pytest.mark.parametrize(
    "options",
    [
        "--kernel 200000 --kernel 30000 --kernel 3000000 --streams 4",
        "--kernel 200000 --threads 4 --streams 1",
        "--kernel 200000 --threads 4 --form kernel_ptsz",
        "--kernel 100000 --sync 1",
        "--kernel 100000 --sync 50 --streams 3",
        "--kernel 10000 --kernel 50000000",
    ],
)
def test_streams_threads_and_waiting_in_between_make_no_difference(tmp_path, built, options):
    assert alone(tmp_path, built, 40, f"{options} --seconds 5") == pytest.approx(40, abs=POINTS)


def test_a_gap_on_the_host_is_not_counted_as_busy(tmp_path, built):
    """Do not delay a program whose use is below its share.

    Half a millisecond of work in every 4.5 ms is a use of 11 percent.
    """
    options = "--kernel 500000 --sync 1 --gap 4000000 --seconds 5"
    assert alone(tmp_path / "below", built, 30, options) == pytest.approx(100 / 9, abs=0.5)
    assert alone(tmp_path / "above", built, 5, options) == pytest.approx(5, abs=0.5)


def test_loading_kernels_is_not_counted_as_busy(tmp_path, built):
    """Do not count the time to load kernels.

    Each of a hundred kernels takes 1 ms, and its first launch also takes 20 ms to load it. So the use is 5 percent,
    which is below the share.
    """
    options = "--kernel 1000000 --distinct 100 --sync 1 --report 0.1 --seconds 5"
    world = World(tmp_path, built, STUB_LAZY_NS="20000000")
    worker = world.worker(world.tenant(10), options)
    world.run()
    loaded = next(seconds for seconds, _, launches in worker.lines if launches >= 100)
    assert loaded < 2.5, "nothing was held back while kernels were loaded"
    assert worker.share(2.6, 5) == pytest.approx(10, abs=1)


@pytest.mark.parametrize("sync", ["--sync 1", "--sync 3 --streams 2"])
def test_the_time_of_a_launch_on_the_host_is_not_counted_as_busy(tmp_path, built, sync):
    share = alone(tmp_path, built, 40, f"--kernel 10000 {sync} --seconds 2", STUB_LAUNCH_NS="5000")
    assert share == pytest.approx(40, abs=POINTS)


@pytest.mark.parametrize(
    ("kernels", "runs"),
    [
        ("--kernel 5000", 1),
        ("--kernel 3000 --kernel 8000", 1),
        ("--kernel 3000 --kernel 8000 --kernel 2000 --kernel 6000", 1),
        ("--kernel 7000 --kernel 2000 --kernel 3000", 12),
        ("--kernel 30000 --kernel 2000", 1),
    ],
)
def test_launches_that_take_as_long_as_their_kernels_are_counted(tmp_path, built, kernels, runs):
    """Subtract only the part of a launch in which the GPU is idle from its GPU time.

    During the rest of the launch, the previous kernel runs. Which launches are timed depends on the pid. With three
    kernel lengths, the share of a run differs from the mean by up to 3 points, so the test compares the mean of several
    runs.
    """
    options = f"{kernels} --sync 800 --seconds 2"
    shares = [alone(tmp_path / str(run), built, 40, options, STUB_LAUNCH_NS="5000") for run in range(runs)]
    assert statistics.mean(shares) > 35 and max(shares) < 40 + POINTS, shares


def test_launches_that_wait_for_their_kernels_are_counted(tmp_path, built):
    options = "--kernel 2000000 --distinct 8 --seconds 4"
    assert alone(tmp_path, built, 30, options, CUDA_LAUNCH_BLOCKING="1") == pytest.approx(30, abs=POINTS)


def test_a_capture_goes_on_undisturbed_while_another_stream_is_held_back(world):
    """Delay one stream without disturbing a capture in another stream.

    The worker captures 50 launches, which never run, and fails if the capture fails.
    """
    worker = world.worker(world.tenant(30), "--kernel 500000 --streams 1 --capture-at 1 --seconds 4")
    world.run()
    assert worker.share() == pytest.approx(30, abs=POINTS)


@pytest.mark.parametrize(
    ("options", "kernel"),
    [
        ("", 10000),
        ("--streams 1", 10000),
        ("--streams 1", 100000),
        ("--streams 1 --sync 1 --gap 20000", 10000),
        ("--streams 4", 10000),
        ("--streams 4", 100000),
        ("--streams 1 --threads 4", 10000),
    ],
)
def test_short_kernels_of_known_length_are_sampled(world, options, kernel):
    """Make at most two driver calls per launch of short kernels.

    Driver calls cost host time. The test uses kernels that are much shorter than half a millisecond.
    """
    worker = world.worker(world.tenant(30), f"--kernel {kernel} {options} --seconds 3")
    world.run()
    # With several threads, the machine decides the order of launches.
    assert worker.share() == pytest.approx(30, abs=POINTS + ("threads" in options))
    assert worker.calls_per_launch < 2


@pytest.mark.parametrize("threads", [1, 4])
def test_launches_in_per_thread_streams_are_sampled(world, threads):
    """Allow two more calls per launch in per-thread streams.

    These calls find the context of the launch, and whether the stream is being captured.
    """
    worker = world.worker(world.tenant(50), f"--kernel 10000 --form kernel_ptsz --threads {threads} --seconds 3")
    world.run()
    assert worker.share() == pytest.approx(50, abs=POINTS)
    assert worker.calls_per_launch < 2.2


@pytest.mark.parametrize("often", [400, 5000])
@pytest.mark.parametrize(("short", "long"), [(10000, 100000), (10000, 1000000), (100000, 2000000)])
def test_a_kernel_that_takes_another_time_than_before_is_charged_for_it(tmp_path, built, short, long, often):
    """Charge the new length of a kernel as soon as a timed launch shows it.

    Until then, launches are charged with the previous length.
    """
    share = alone(tmp_path, built, 40, f"--kernel steps_{short}_{long}_{often} --seconds 15")
    assert share == pytest.approx(40, abs=POINTS)


@pytest.mark.parametrize("every", [3, 10])
@pytest.mark.parametrize("options", ["", "--sync 1 --gap 100000"])
def test_a_kernel_of_two_lengths_is_charged_for_both(tmp_path, built, every, options):
    """Charge both lengths of a kernel, of which some launches take longer.

    Which launches are timed depends on the pid, so the test compares the mean of several runs.
    """
    words = f"--kernel mixed_10000_1000000_{every} {options} --report 0.5 --seconds 20"
    shares = []
    for run in range(4):
        world = World(tmp_path / str(run), built)
        worker = world.worker(world.tenant(40), words)
        world.run()
        shares.append(worker.share(2, 20))
    assert statistics.mean(shares) == pytest.approx(40, abs=POINTS), shares


def test_dependent_launches_are_parted_only_while_their_lengths_are_learned(world):
    """Separate two launches with an event, so that the second waits for the first."""
    worker = world.worker(world.tenant(50), "--kernel 10000 --form dependent --streams 1 --seconds 2")
    world.run()
    assert worker.share() == pytest.approx(50, abs=POINTS)
    assert worker.parted <= 4


def test_a_share_of_100_is_never_held_back(tmp_path, built):
    assert alone(tmp_path, built, 100, "--kernel 10000 --seconds 2") > 99.9


@pytest.mark.parametrize(("late", "points"), [(60_000, POINTS), (500_000, 5)])
@pytest.mark.parametrize("kernel", KERNELS)
def test_sleeps_that_last_longer_than_asked_cost_little(tmp_path, built, kernel, late, points):
    """Check shares if each sleep takes 60 us longer, as on a Linux machine.

    On a busy machine, it takes half a millisecond longer, so tenants take turns more slowly.
    """
    options = f"--kernel {kernel} --seconds 5"
    share = alone(tmp_path / "alone", built, 80, options, STUB_LATE_NS=str(late))
    assert share == pytest.approx(80, abs=POINTS)
    shares = two(tmp_path / "two", built, 10, 90, [options] * 2, STUB_LATE_NS=str(late))
    assert shares == (pytest.approx(10, abs=POINTS), pytest.approx(90, abs=points))
    assert shares[0] < 10.5
    assert shares[1] < 90.5, "fixed means never more"


# --- several tenants and processes ---


@pytest.mark.parametrize(
    "kernels", [(f"--kernel {k}",) * 2 for k in KERNELS] + [("--kernel 10000", "--kernel 50000000"), (GRAPH, GRAPH)]
)
def test_two_tenants_share_ten_to_ninety(tmp_path, built, kernels):
    shares = two(tmp_path, built, 10, 90, [f"{words} --seconds 8" for words in kernels])
    assert shares == (pytest.approx(10, abs=POINTS), pytest.approx(90, abs=POINTS))


def test_what_is_not_asked_for_stays_idle(tmp_path, built):
    shares = two(tmp_path, built, 20, 30, ["--kernel 1000000 --seconds 5"] * 2)
    assert shares == (pytest.approx(20, abs=1), pytest.approx(30, abs=1))


def test_processes_of_one_tenant_share_its_percentage(world):
    tenant = world.tenant(40)
    several = [world.worker(tenant, f"{HALF_MS} --seconds 5") for _ in range(3)]
    other = world.worker(world.tenant(50, "tenant-b", 1), f"{HALF_MS} --seconds 5")
    world.run()
    assert sum(worker.share() for worker in several) == pytest.approx(40, abs=POINTS)
    assert other.share() == pytest.approx(50, abs=POINTS)
    assert all(worker.share() > 6 for worker in several), "none of them starves"


def test_six_processes_of_a_tenant_take_turns(world):
    tenant = world.tenant(60)
    workers = [world.worker(tenant, "--kernel 2000000 --seconds 3") for _ in range(6)]
    world.run()
    assert sum(worker.share() for worker in workers) == pytest.approx(60, abs=POINTS)


def test_each_gpu_has_a_turnstile_of_its_own(tmp_path, built):
    world = World(tmp_path, built, gpus=2)
    pair, other = world.tenant(40, "tenant-a", 0), world.tenant(60, "tenant-b", 1)
    on_both = [world.worker(pair, f"--kernel 1000000 --device {gpu} --seconds 4") for gpu in range(2)]
    on_one = world.worker(other, "--kernel 1000000 --device 1 --seconds 4")
    world.run()
    assert [worker.share() for worker in on_both] == [pytest.approx(40, abs=POINTS)] * 2
    assert on_one.share() == pytest.approx(60, abs=POINTS)


@pytest.mark.parametrize("launches", [1, 7])
def test_a_context_of_its_own_for_each_few_launches_evades_nothing(tmp_path, built, launches):
    """Charge the GPU time of a context after its known kernel lengths were forgotten."""
    options = f"--kernel 20000000 --fresh-context {launches} --seconds 6"
    assert alone(tmp_path, built, 30, options) == pytest.approx(30, abs=POINTS)


@pytest.mark.parametrize("current", ["0", "-1"], ids=["of-another-gpu", "none"])
@pytest.mark.parametrize("form", ["--form kernel", "--form ex_ptsz", "--graph 10 --form graph"])
def test_a_launch_runs_on_its_streams_gpu_whatever_context_the_thread_has(tmp_path, built, current, form):
    world = World(tmp_path, built, gpus=2)
    tenant = Tenant(tmp_path / "root", world.card, built).quota(None, 0, sm=30)
    worker = world.worker(tenant, f"--device 1 --streams 2 --current {current} --kernel 200000 {form} --seconds 4")
    world.run()
    assert worker.share() == pytest.approx(30, abs=POINTS)


def test_a_dozen_contexts_on_a_gpu_are_all_held_back(tmp_path, built):
    assert alone(tmp_path, built, 30, "--contexts 12 --kernel 5000000 --seconds 6") == pytest.approx(30, abs=POINTS)


@pytest.mark.parametrize("every", [1, 3])
def test_what_cannot_be_measured_is_paid_for_by_estimate(tmp_path, built, every):
    """Charge the estimate of 2 ms for a kernel that cannot be measured.

    The kernel really takes 2 ms.
    """
    share = alone(tmp_path, built, 30, "--kernel 2000000 --seconds 5", STUB_RECORDS_FAIL=str(every))
    assert share == pytest.approx(30, abs=POINTS)


def test_a_killed_holder_does_not_stop_others(world):
    """Kill the first tenant after it has launched 400 ms of work.

    The tenant's lease lasts longer than this work.
    """
    first = world.tenant(50, "tenant-a", 0)
    world.worker(first, "--kernel 400000000 --sync 1 --die-after 3 --seconds 60", ends_with=-signal.SIGKILL)
    other = world.worker(world.tenant(50, "tenant-b", 1), "--kernel 1000000 --report 0.01 --seconds 8")
    world.run()
    # The tenant dies at its third launch, between seconds 1 and 2. The other tenant may wait long only for the two
    # launches of 400 ms.
    waits = sorted(after[0] - before[0] for before, after in zip(other.lines, other.lines[1:]))
    assert waits[-3] < 0.15, f"the longest waits: {waits[-4:]}"
    assert other.share(3, 8) == pytest.approx(50, abs=POINTS)


def test_a_tenants_seat_is_empty_again_for_the_next(world):
    world.worker(world.tenant(10, "tenant-a", 5), "--kernel 300000000 --seconds 0.1")
    world.run()
    world.workers.clear()
    next_one = world.worker(world.tenant(50, "tenant-b", 5), "--kernel 1000000 --report 0.1 --seconds 1")
    world.run()
    assert next_one.share() == pytest.approx(50, abs=POINTS), "it pays for what the one before it used"


def test_kernels_that_wait_for_later_ones_do_not_hang(world):
    """Run a kernel that ends only when a later kernel in another stream is launched.

    If the limiter delayed the later launch until the first kernel ends, neither kernel would ever end. The waiting time
    counts as busy and delays other tenants. So no tenant gets its full share, but all make progress.
    """
    worker = world.worker(world.tenant(50), "--kernel needs_next --kernel 50000000 --streams 2 --seconds 5")
    other = world.worker(world.tenant(40, "tenant-b", 1), "--kernel 1000000 --seconds 5")
    world.run()
    assert worker.lines[-1][2] >= 10, "at least a pair of launches a second"
    assert worker.share() < 50
    assert 20 < other.share() < 40 + POINTS


def test_who_waits_for_its_turn_sleeps(world):
    """Sleep until the turn of the process, without polling.

    Polling every tenth of a millisecond would wake a thread thousands of times.
    """
    tenants = [world.tenant(50, f"tenant-{seat}", seat, policy="contended") for seat in range(2)]
    workers = [world.worker(tenant, "--kernel 2000000 --seconds 5") for tenant in tenants]
    world.run()
    seats = Turnstile.from_buffer_copy((tenants[0].gpus / f"{world.card.uuid()}.1").read_bytes()).seats
    for worker, seat in zip(workers, seats):
        assert seat.throttled_ns > 2e9
        # The worker also waits for its own work.
        assert worker.waits < 2000 * 5


# --- contended and burst ---


def shares_of_policy(world: World, policy: str) -> tuple[Worker, Worker]:
    """Return the workers of a tenant with this policy and of a fixed tenant.

    The first tenant has 30 percent, and runs for six seconds. The second tenant has 50 percent, and runs from second 2
    to second 4.
    """
    worker = world.worker(world.tenant(30, "tenant-a", 0, policy=policy), f"{HALF_MS} --seconds 6")
    other = world.worker(world.tenant(50, "tenant-b", 1), f"{HALF_MS} --start 2 --seconds 2")
    world.run()
    assert other.share(2.05, 4) == pytest.approx(50, abs=POINTS), "the other gets its own, whatever the first may do"
    return worker, other


def test_fixed_binds_also_where_nobody_else_is(world):
    worker, _ = shares_of_policy(world, "fixed")
    for since, until in ((0.3, 2), (2.1, 4), (4.1, 6)):
        assert worker.share(since, until) == pytest.approx(30, abs=POINTS)


def test_contended_binds_only_while_another_wants_the_gpu(world):
    worker, _ = shares_of_policy(world, "contended")
    assert worker.share(0.1, 2) > 97
    assert worker.share(2.2, 4) == pytest.approx(30, abs=POINTS)
    assert worker.share(4.3, 6) > 97


def test_burst_borrows_what_is_idle_and_gives_it_back(world):
    worker, _ = shares_of_policy(world, "burst")
    assert worker.share(0.1, 2) > 97
    assert worker.share(2.2, 4) == pytest.approx(50, abs=POINTS), "all that the other leaves, and no more"
    assert worker.share(4.3, 6) > 97


def test_borrowers_stand_behind_those_that_use_their_own_share(world):
    borrower = world.worker(world.tenant(20, "tenant-a", 0, policy="burst"), f"{HALF_MS} --seconds 5")
    owner = world.worker(world.tenant(60, "tenant-b", 1), f"{HALF_MS} --seconds 5")
    world.run()
    assert owner.share() == pytest.approx(60, abs=POINTS)
    assert borrower.share() == pytest.approx(39, abs=POINTS)


# --- priority ---


@pytest.mark.parametrize(("priorities", "expected"), [((5, 0), (40, 60)), ((0, 5), (60, 40)), ((3, 3), (50, 50))])
def test_where_shares_are_more_than_there_is_priority_decides(world, priorities, expected):
    workers = [
        world.worker(world.tenant(60, f"tenant-{seat}", seat, priority=priority), f"{HALF_MS} --seconds 5")
        for seat, priority in enumerate(priorities)
    ]
    world.run()
    assert [worker.share() for worker in workers] == [pytest.approx(share, abs=POINTS) for share in expected]


def test_what_is_idle_goes_to_the_most_urgent_borrower(world):
    workers = [
        world.worker(world.tenant(20, f"tenant-{i}", i, policy="burst", priority=i), f"{HALF_MS} --seconds 5")
        for i in range(2)
    ]
    world.run()
    assert [worker.share() for worker in workers] == [pytest.approx(80, abs=POINTS), pytest.approx(20, abs=POINTS)]


# --- a turnstile that a tenant has modified ---

FOREVER, UNUSED = 2**62, 9


def field(name: str, seat: int | None = None) -> int:
    """Return the offset of a field in the file of a turnstile."""
    if seat is None:
        return getattr(Turnstile, name).offset
    return Turnstile.seats.offset + seat * ctypes.sizeof(Seat) + getattr(Seat, name).offset


def poke(world: World, tenant: Tenant, offset: int, value: str | int) -> None:
    """Add a process that writes eight bytes into a turnstile after one second.

    A value `+N` means the current time plus N ns.
    """
    path = tenant.gpus / f"{world.card.uuid()}.1"
    words = f"--poke-file {path} --poke-offset {offset} --poke-value {value} --start 1 --seconds 0"
    world.worker(tenant, words, preload=False)


def lease(process: int) -> str:
    """Return the value of a lease that ends one second after a test writes it.

    Simulated clocks start at 1000 seconds, and tests write after one second.
    """
    return str((process << 48 | 1_002_000_000) - (1 << 64 if process >= 1 << 15 else 0))


WRITES = {
    "waits-for-ever": (field("waiting_until", UNUSED), FOREVER),
    "own-seat-waits-for-ever": (field("waiting_until", 0), FOREVER),
    "active-for-ever": (field("active_until", UNUSED), FOREVER),
    "own-seat-active-for-ever": (field("active_until", 0), FOREVER),
    "owes-for-ever": (field("paid_until", 0), FOREVER),
    "owes-eleven-minutes": (field("paid_until", 0), "+660000000000"),
    "has-saved-for-ever": (field("paid_until", 0), -FOREVER),
    "percent-0-policy-77": (field("percent", 0), 77 << 32),
    "percent-2147483648": (field("percent", 0), 1 << 31),
    "priority-lowest": (field("priority", 0), 2**31 - 1),
    "priority-highest": (field("priority", 1), 1 << 31),
    "lease-of-nobody": (field("lease", UNUSED), lease(4095)),
    "lease-of-nobody-in-own-seat": (field("lease", 0), lease(4095)),
    "lease-for-ever": (field("lease", UNUSED), (4095 - 65536) << 48 | (1 << 48) - 1),
    "lease-for-ever-in-own-seat": (field("lease", 0), (4095 - 65536) << 48 | (1 << 48) - 1),
    "lease-began-in-the-future": (field("lease_since", 0), FOREVER),
    "lease-began-before-time": (field("lease_since", 0), -FOREVER * 2),
}


@pytest.mark.parametrize(
    ("write", "policy"),
    [(write, "fixed") for write in WRITES]
    + [pytest.param(w, p, marks=pytest.mark.thorough) for w in WRITES for p in ("contended", "burst")],
)
def test_a_hostile_write_to_the_turnstile_costs_a_moment(world, write, policy):
    tenants = [world.tenant(50, f"tenant-{seat}", seat, policy=policy) for seat in range(2)]
    workers = [world.worker(tenant, "--kernel 2000000 --report 0.05 --seconds 4") for tenant in tenants]
    poke(world, tenants[0], *WRITES[write])
    world.run()
    for worker in workers:
        waits = [after[0] - before[0] for before, after in zip(worker.lines, worker.lines[1:])]
        assert max(waits) < 1.2, "the delay is bounded by a lease's length"
        assert worker.share(2.1, 4) == pytest.approx(50, abs=5), "what was saved in the delay is spent afterwards"


def test_a_tenant_that_keeps_the_gpu_costs_its_neighbour_a_second_in_ten(world):
    """Limit the harm of a hostile lease that never ends.

    The other tenant waits for 1.02 s, and then ignores the lease for 10 s.
    """
    tenant = world.tenant(50)
    path = tenant.gpus / f"{world.card.uuid()}.1"
    worker = world.worker(tenant, "--kernel 2000000 --report 0.05 --seconds 20")
    poke(world, tenant, field("tenant", UNUSED), int.from_bytes(b"hostile", "little"))
    words = f"--poke-file {path} --poke-offset {field('lease', UNUSED)} --poke-value leases --start 2 --seconds 20"
    world.worker(tenant, words, preload=False)
    world.run()
    waits = [after[0] - before[0] for before, after in zip(worker.lines, worker.lines[1:])]
    assert 1 < max(waits) < 1.3
    assert sum(wait > 0.5 for wait in waits) == 2
    assert worker.share(3.5, 12.5) == pytest.approx(50, abs=POINTS)


def test_a_forged_active_tenant_does_not_bind_a_contended_one(world):
    tenant = world.tenant(30, policy="contended")
    worker = world.worker(tenant, f"{HALF_MS} --seconds 4")
    poke(world, tenant, field("active_until", UNUSED), FOREVER)
    world.run()
    assert worker.share(1.1, 4) > 97


@pytest.mark.parametrize(("policy", "most"), [("fixed", 60), ("contended", 60), ("burst", 1)])
def test_a_forged_debt_costs_no_more_than_the_tenants_other_processes_may_owe(world, policy, most):
    """Limit the harm of a forged debt that the tenant's other processes could owe."""
    tenants = [world.tenant(50, f"tenant-{seat}", seat, policy=policy) for seat in range(2)]
    first, other = (world.worker(tenant, f"--kernel 20000000 --report 0.25 --seconds {most + 6}") for tenant in tenants)
    poke(world, tenants[0], field("paid_until", 0), "+590000000000")
    world.run()
    assert first.share(most + 2.1) == pytest.approx(50, abs=POINTS)
    assert other.share(most + 2.1) == pytest.approx(50, abs=POINTS)


# --- a changed quota ---


@pytest.mark.parametrize(("before", "after"), [(20, 60), (60, 20), (100, 30), (30, 100)])
def test_a_new_share_takes_effect_on_a_running_process(world, before, after):
    tenant = world.tenant(before)
    worker = world.worker(tenant, f"{HALF_MS} --seconds 6 {replace_quota(tenant, f'sm {before}', f'sm {after}')}")
    world.run()
    assert worker.share(0.2, 2) == pytest.approx(before, abs=POINTS)
    assert worker.share(3.3, 6) == pytest.approx(after, abs=POINTS)


def test_a_share_of_100_needs_no_seat_and_touches_none(world):
    """Raise the share of a running process to 100 percent, which ends all throttling.

    The process no longer uses its seat in the turnstile.
    """
    tenant = world.tenant(30)
    worker = world.worker(tenant, f"{HALF_MS} --seconds 6 {replace_quota(tenant, 'sm 30 seat 0', 'sm 100')}")
    world.run()
    assert worker.share(0.2, 2) == pytest.approx(30, abs=POINTS)
    assert worker.share(3.3, 6) > 99.9
    left = Turnstile.from_buffer_copy((tenant.gpus / f"{world.card.uuid()}.1").read_bytes())
    assert left.seats[0].tenant == b"tenant-a"
    assert left.seats[0].lease == 0
    assert not any(seat.tenant or seat.lease for seat in left.seats[1:])


def test_a_quota_file_that_goes_away_leaves_the_last_share(world):
    tenant = world.tenant(30)
    gone = tenant.folder / "gone"
    options = f"--rename-at 2 --rename-from {tenant.folder / 'quota'} --rename-to {gone}"
    worker = world.worker(tenant, f"{HALF_MS} --seconds 6 {options}")
    world.run()
    assert gone.exists()
    assert worker.share(3.3, 6) == pytest.approx(30, abs=POINTS)


def test_without_a_turnstile_each_process_is_held_back_by_itself(world):
    tenant = world.tenant(30)
    for path in tenant.gpus.iterdir():
        path.unlink()
    worker = world.worker(tenant, f"{HALF_MS} --seconds 3")
    world.run()
    assert worker.share() == pytest.approx(30, abs=POINTS)
    assert f"{world.card.uuid()}.1" in tenant.logged(), "the log names the file that is missing"
