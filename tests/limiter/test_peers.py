# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test how a process judges the work of its tenant on another GPU.

The process decides whether the other GPU has received more work, and whether that work waits for its own GPU.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.limiter.limiter_lab import DEADLINE, HERE, SOURCE, compile_c


@dataclass(frozen=True)
class Look:
    """One check: its time, and the state of both GPUs. client/peers.c has the format."""

    ms: float
    own: int
    peers: int
    state: str
    works: bool = False

    def __str__(self) -> str:
        return f"{self.ms:g}:{self.own}:{self.peers}:{self.works:d}:{self.state}"


#: For each check: whether this GPU is behind the other one, and whether it must hurry.
Looks = Callable[..., list[tuple[bool, bool]]]


@pytest.fixture
def looks(build_folder: Path) -> Looks:
    sources = [str(SOURCE / f"throttle/{name}.c") for name in ("peers", "words", "credit")]
    program = compile_c(build_folder / "peers", str(HERE / "client/peers.c"), *sources, f"-I{SOURCE}", "-D_GNU_SOURCE")

    def run(*several: Look) -> list[tuple[bool, bool]]:
        done = subprocess.run(
            [str(program), *map(str, several)], capture_output=True, text=True, check=True, timeout=DEADLINE
        )
        return [tuple(word == "1" for word in line.split()) for line in done.stdout.splitlines()]

    return run


def test_one_idle_moment_does_not_change_what_is_even(looks):
    """Do not take the counts at a single idle moment as equal work.

    The other GPU still has to receive a launch of this step. Only then have both GPUs received the same work.
    """
    (_, _, (even, _), (behind, _)) = looks(
        Look(0, own=4, peers=4, state="idle"),
        Look(20, own=5, peers=4, state="idle"),
        Look(40, own=5, peers=5, state="works"),
        Look(41, own=5, peers=6, state="works"),
    )
    assert not even
    assert behind


def test_counts_that_begin_apart_are_even(looks):
    """Take counts that start at different values as equal work.

    The seats also count launches of earlier programs.
    """
    assert looks(
        Look(0, own=0, peers=37, state="idle"),
        Look(20, own=1, peers=38, state="works"),
        Look(21, own=1, peers=39, state="works"),
    ) == [(False, False), (False, False), (True, False)]


def test_turns_that_begin_alike_show_what_is_even(looks):
    """Recognize equal work, although one process launched one additional kernel.

    For example, the process evaluated its model.
    """
    answers = looks(
        Look(0, own=4, peers=4, state="idle"),
        *(Look(30 + 25 * turn, own=5 + turn, peers=15 + turn, state="idle") for turn in range(9)),
        Look(260, own=14, peers=23, state="idle"),
        Look(270, own=14, peers=24, state="works"),
        Look(271, own=14, peers=25, state="works"),
    )
    assert [behind for behind, _ in answers[-2:]] == [False, True]


def test_where_counts_stay_uneven_each_turn_counts_from_its_begin(looks):
    """Count from the start of each step, if the other GPU gets more kernels per step."""
    answers = looks(
        Look(0, own=4, peers=4, state="idle"),
        *(Look(100 * turn, own=4 + turn, peers=4 + 2 * turn, state="idle") for turn in range(1, 5)),
        Look(450, own=8, peers=12, state="works"),
        Look(451, own=8, peers=13, state="works"),
        *(Look(452 + ms, own=9, peers=13, state="late", works=True) for ms in range(6)),
    )
    assert [behind for behind, _ in answers[5:7]] == [False, True]
    assert [hurry for _, hurry in answers[-6:]] == [False] * 4 + [True] * 2, "being late is all there is to go by"


def test_a_peer_that_is_late_is_helped(looks):
    """Hurry at once if only the other GPU has received the work that it waits for.

    When both GPUs have received the work, this GPU hurries only after a delay.
    """
    assert looks(
        Look(0, own=4, peers=4, state="works"),
        Look(1, own=4, peers=5, state="late"),
        Look(2, own=5, peers=5, state="late", works=True),
        Look(5, own=5, peers=5, state="late"),
        Look(7, own=5, peers=5, state="late"),
    ) == [(False, False), (True, True), (False, False), (False, False), (False, True)]


def test_a_peer_may_be_late_for_what_works_here(looks):
    """Do not hurry while this GPU works, if both GPUs have received the same work.

    The other GPU can wait for new work only after this GPU has finished.
    """
    answers = looks(
        Look(0, own=4, peers=4, state="works"),
        *(Look(10 + ms, own=5, peers=5, state="late", works=True) for ms in range(20)),
        Look(31, own=5, peers=5, state="late"),
        Look(32, own=5, peers=5, state="late"),
        Look(34, own=5, peers=5, state="late"),
    )
    assert [hurry for _, hurry in answers[1:-1]] == [False] * 22
    assert answers[-1] == (False, True)
