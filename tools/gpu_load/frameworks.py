# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run framework_program.py on one GPU, alone and as a tenant, and judge the share.

A share is a fraction of the GPU's time. If NVML reports for which fraction of the time the GPU worked (GPM), the checks
judge this value. The ratio of steps with and without the limiter is then only a lower bound, because a GPU with idle
periods may run at higher clocks. Without GPM, the checks judge the ratio of steps.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Iterator, Mapping

from activity import Activity
from card_program import HERE, Card, program, tried
from tenants import Tenant, environment

from ansible_collections.openfleet.gpu.plugins.plugin_utils.hardware.outcome import (
    DIFFERS,
    PASSED,
    Check,
    not_run,
)

AREA = "frameworks"
#: A quota that suffices for the memory that the frameworks themselves need.
QUOTA_BYTES = 8 << 30
#: Limit on allocations, so that a program cannot fill the GPU if the limiter is broken.
MOST_BYTES = QUOTA_BYTES + (1 << 30)
SECONDS = 2.0
#: Tested shares by framework.
SHARES_PERCENT = {"torch": (20, 50, 80), "cupy": (50,), "numba": (50,), "jax": (50,)}
#: Tolerance for kernels of equal duration. See docs/vgpu-limits.md.
TOLERANCE_POINTS = 5.0
#: Kinds of work that keep the GPU busy all the time, by framework. JAX is not in the memory test, because it allocates
#: most memory at its start.
WORKS = {
    "torch": ("matmul", "transformer", "graph"),
    "cupy": ("matmul",),
    "numba": ("saxpy",),
    "jax": ("matmul",),
}
#: Kinds of work that leave the GPU idle between kernels. A tenant should get about its share of the steps.
SHORT, SHORT_POINTS = {"torch": ("short",)}, 10.0
MEMORY = ("torch", "cupy", "numba")
#: A test of two concurrent tenants: their shares, their work, and the test's duration.
PAIR_PERCENT, PAIR_WORK, PAIR_SECONDS = (30, 70), "transformer", 5.0
#: Tolerance for the larger share, because that tenant's turns begin with an empty queue. See docs/vgpu-tested.md, "on a
#: real GPU".
PAIR_POINTS = 15.0

RUN = (sys.executable, str(HERE / "framework_program.py"))


def measure(card: Card, library: Path) -> dict[str, Any]:
    """Return the measurements by framework.

    For a missing measurement, the value is the reason.
    """
    found: dict[str, Any] = {}
    for name in WORKS:
        card.tell("%s alone and with shares" % name)
        found[name] = {"shares": tried(lambda name=name: _shares(card, library, name))}
        if name in MEMORY and not isinstance(found[name]["shares"], str):
            card.tell("%s: memory under a quota" % name)
            found[name]["memory"] = tried(lambda name=name: _memory(card, library, name))
    if not isinstance(found["torch"]["shares"], str):
        card.tell("torch: two tenants, %d and %d percent" % PAIR_PERCENT)
        found["torch"]["pair"] = {
            policy: tried(lambda policy=policy: _pair(card, library, policy)) for policy in ("fixed", "contended")
        }
    return found


def _on(card: Card, tenant: Mapping[str, str]) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": card.uuid, **tenant}


def _shares(card: Card, library: Path, name: str) -> dict[str, Any]:
    """Return the steps per second of each work, by share. `bare` has no limiter."""
    works = (*WORKS[name], *SHORT.get(name, ()))
    found: dict[str, Any] = {"version": "", "bare": _rates(card, name, works, {})}
    found["version"] = found["bare"].pop("version")
    for percent in SHARES_PERCENT[name]:
        tenant = Tenant("%s-%d" % (name, percent), percent, memory_bytes=QUOTA_BYTES)
        where = environment(card, library, tenant)
        found[str(percent)] = tried(lambda where=where: _rates(card, name, works, where))
    return found


def _rates(card: Card, name: str, works: tuple[str, ...], tenant: Mapping[str, str]) -> dict[str, Any]:
    """Return the `rate` of each work in steps per second, and the GPU's activity."""
    with program(card, name, "work", str(SECONDS), *works, environment=_on(card, tenant), run=RUN) as one:
        found = dict(one.line())
        for work in works:
            one.go()
            one.line()
            activity = Activity(card.index)
            done = one.line()
            found[work] = {"rate": done["steps"] / done["took"], **activity.end(done["took"])}
    return found


def _memory(card: Card, library: Path, name: str) -> dict[str, Any]:
    tenant = environment(card, library, Tenant("%s-memory" % name, memory_bytes=QUOTA_BYTES))
    with program(card, name, "memory", str(MOST_BYTES), environment=_on(card, tenant), run=RUN) as one:
        one.line()
        one.go()
        held = one.line()
        one.go()
        return {**held, **one.line()}


def _pair(card: Card, library: Path, policy: str) -> dict[str, Any]:
    """Return the steps per second of two concurrent tenants, and the GPU's activity."""
    with ExitStack() as both:
        made = []
        for seat, percent in enumerate(PAIR_PERCENT):
            tenant = Tenant("%s-%d" % (policy, percent), percent, seat, "pair-%s" % policy, QUOTA_BYTES, policy)
            where = _on(card, environment(card, library, tenant))
            arguments = ("torch", "work", str(PAIR_SECONDS), PAIR_WORK)
            made.append(both.enter_context(program(card, *arguments, environment=where, run=RUN)))
        for one in made:
            one.line()
        for one in made:
            one.go()
        for one in made:
            one.line()
        activity = Activity(card.index)
        done = [one.line() for one in made]
        return {"rates": [one["steps"] / one["took"] for one in done], **activity.end(done[0]["took"])}


def checks(index: int, found: Mapping[str, Any] | str) -> Iterator[Check]:
    """Yield a check for each measurement. This function has no side effects."""
    if isinstance(found, str):
        yield not_run(AREA, index, "all", found)
        return
    for name, of in found.items():
        shares = of["shares"]
        if isinstance(shares, str):
            yield not_run(AREA, index, name, shares)
            continue
        yield from _judged_shares(index, name, shares)
        if "memory" in of:
            yield from _judged_memory(index, "%s %s" % (name, shares["version"]), of["memory"])
        for policy, said in of.get("pair", {}).items():
            yield _judged_pair(index, policy, said, shares["bare"][PAIR_WORK])


def _judged_shares(index: int, name: str, shares: Mapping[str, Any]) -> Iterator[Check]:
    for percent in SHARES_PERCENT[name]:
        rates = shares[str(percent)]
        title = "%s %s" % (name, shares["version"])
        if isinstance(rates, str):
            yield not_run(AREA, index, "%s: share of %d percent" % (title, percent), rates)
            continue
        for work in (*WORKS[name], *SHORT.get(name, ())):
            what = "%s: %s with a share of %d percent" % (title, work, percent)
            yield _check(index, what, *_share(percent, rates[work], shares["bare"][work], work in WORKS[name]))


def _share(percent: int, said: Mapping[str, float], bare: Mapping[str, float], busy: bool) -> tuple[bool, str, str]:
    """Return (whether the work got its share, the expected value, the measured value).

    `busy` means that the work keeps the GPU busy all the time.
    """
    steps, low, high = 100 * said["rate"] / bare["rate"], percent - TOLERANCE_POINTS, percent + TOLERANCE_POINTS
    if not busy:
        low = percent - SHORT_POINTS
        return steps >= low, "at least %g %% of the steps" % low, "%.1f" % steps
    if "active" not in said:
        return low <= steps <= high, "%d %% of the steps within %g points" % (percent, TOLERANCE_POINTS), "%.1f" % steps
    active = 100 * said["active"]
    expected = "%d %% of the time within %g points, at least %g %% of the steps" % (percent, TOLERANCE_POINTS, low)
    return low <= active <= high and steps >= low, expected, "%.1f of the time, %.1f of the steps" % (active, steps)


def _judged_memory(index: int, title: str, said: Mapping[str, Any] | str) -> Iterator[Check]:
    what = "%s: memory" % title
    if isinstance(said, str):
        yield not_run(AREA, index, what, said)
        return
    total, held, continues = said["total"], said["held"], said.get("continues", False)
    yield _check(index, "%s: size of the card shown to the tenant" % what, total == QUOTA_BYTES, QUOTA_BYTES, total)
    holds, expected = said["refused"] > 0 and held <= QUOTA_BYTES, "at most %d, then refused" % QUOTA_BYTES
    yield _check(index, "%s: bytes allocated by a tenant" % what, holds, expected, held)
    yield _check(index, "%s: the program continues after a refusal" % what, continues, True, continues)


def _judged_pair(index: int, policy: str, said: Any, bare: Mapping[str, float]) -> Check:
    what = "torch: %s of two tenants of %d and %d percent, %s" % (PAIR_WORK, *PAIR_PERCENT, policy)
    if isinstance(said, str):
        return not_run(AREA, index, what, said)
    rates = [100 * rate / bare["rate"] for rate in said["rates"]]
    least = (PAIR_PERCENT[0] - TOLERANCE_POINTS, PAIR_PERCENT[1] - PAIR_POINTS)
    holds = all(rate >= limit for rate, limit in zip(rates, least))
    expected = "at least %g and %g %% of the steps" % least
    active = ", the GPU active %.1f %% of the time" % (100 * said["active"]) if "active" in said else ""
    return _check(index, what, holds, expected, "%.1f and %.1f%s" % (*rates, active))


def _check(index: int, what: str, holds: bool, expected: Any, found: Any) -> Check:
    return Check(AREA, index, what, PASSED if holds else DIFFERS, str(expected), str(found))
