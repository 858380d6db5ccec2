# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test tenants whose processes wait for each other on several GPUs.

Each tenant must progress at the speed of its share, in simulated time.
"""

from __future__ import annotations

import pytest

from tests.limiter.gangs import MATRIX, MS, POLICIES, Gangs
from tests.limiter.sm import LATE, World
from tests.limiter.test_throttle import field

#: The first of these cells took 110 times as long as its share allows, until turns were aligned on all GPUs.
OFTEN = [
    *(Gangs(2, 2, policy, 2 * MS) for policy in POLICIES),
    Gangs(2, 2, "fixed", 2 * MS, sync=False),
    Gangs(2, 2, "fixed", MS // 5),
    # This cell took four times as long when each of two equal GPUs took the other one to be behind.
    Gangs(4, 3, "fixed", MS // 5, sync=False),
]
#: The seeds for start times, by whether the host waits for each step.
STARTS = {True: (11, 47), False: (9, 30)}


def limit(gangs: Gangs) -> float:
    """Return the limit for the ratio of a cell's time to the time of its share.

    Tenants that run on a GPU at the same time wait for each other's time slices. If steps are shorter than a time
    slice, and both tenants admit each other's next steps, the run takes four times as long.
    """
    return 1.4 if gangs.ranks == gangs.tenants == 2 else 2


@pytest.mark.parametrize("gangs", OFTEN, ids=str)
def test_processes_that_wait_for_each_other_get_their_share(tmp_path, built, gangs):
    assert gangs.ratio(tmp_path, built, seed=1) < limit(gangs)


def test_tenants_do_not_stay_crossed(tmp_path, built):
    """Check that tenants do not keep one GPU each, if kernels are as long as a turn.

    At the start, each tenant holds one of the two GPUs that both need. Earlier, some runs stayed in this state. Each
    tenant then ran beside the other's work, measured wrong kernel lengths, and used up its credit on one GPU first. The
    mean ratio was then 1.23 to 1.31.
    """
    cells = [(Gangs(2, 2, "fixed", 20 * MS, sync, 800 * MS), seed) for sync, seeds in STARTS.items() for seed in seeds]
    ratios = []
    # Runs with the same seed differ by some hundredths, so a mean near the limit is repeated with more runs.
    for again in range(4):
        ratios += [gangs.ratio(tmp_path / f"{gangs}-{seed}-{again}", built, seed) for gangs, seed in cells]
        if sum(ratios) / len(ratios) < 1.14:
            break
    assert sum(ratios) / len(ratios) < 1.18, ratios


def test_a_process_goes_along_where_only_its_gpu_lacks_credit(tmp_path, built):
    """Admit a process if credit is missing only on its own GPU.

    The credit of this GPU is 50 ms below the allowed difference between the tenant's GPUs. The tenant's other GPU has
    work, which waits for this GPU. An earlier version admitted the process only when the other GPU's work was late.
    Steps then took twice as long, and another tenant got a turn on one GPU.
    """
    world = World(tmp_path, built, gpus=2, **LATE)
    tenant = world.tenant(90)
    words = f"--kernel {20 * MS} --kernel meet_{4 * MS}_0_2 --steps 25 --sync 2 --report 0.001"
    first, _ = (world.worker(tenant, f"--device {gpu} {words}") for gpu in range(2))
    owes = f"--poke-file {tenant.gpus / world.card.uuid(1)}.1 --poke-offset {field('paid_until', 0)} --poke-value +{150 * MS}"
    world.worker(tenant, f"{owes} --start 0.3 --seconds 0", preload=False)
    world.run()
    kernels = [line[0] for line in first.lines][::2]
    # From here on, the kernel's length is known.
    steps = [after - before for before, after in zip(kernels, kernels[1:]) if before > 0.1]
    assert len(steps) > 15
    assert max(steps) < 0.035, steps


@pytest.mark.thorough
@pytest.mark.parametrize("gangs", MATRIX, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_the_whole_matrix_of_gangs(tmp_path, built, gangs, seed):
    assert gangs.ratio(tmp_path, built, seed) < limit(gangs)


def test_kernels_that_meet_end_when_all_have_started(tmp_path, built):
    """Check that kernels that wait for each other end, even if one starts later.

    The second process starts half a second later. Until then, the first process's kernel occupies its GPU.
    """
    world = World(tmp_path, built, gpus=2)
    tenant = world.tenant(50)
    workers = [
        world.worker(tenant, f"--device {gpu} --kernel meet_1000000_0_2 --steps 1 --start {gpu / 2}", preload=False)
        for gpu in range(2)
    ]
    world.run()
    first, second = (worker.lines[-1] for worker in workers)
    assert first[0] == second[0] == pytest.approx(0.501, abs=1e-6)
    assert (first[1], second[1]) == (pytest.approx(501_000_000, abs=1000), 1_000_000)
