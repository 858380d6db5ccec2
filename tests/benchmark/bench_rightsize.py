# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure sizing on a real trace (docs/sizing.md).

One part of a day is used for the plan, and the other part for scoring the plan.
"""

from __future__ import annotations

import random
import sys

import numpy as np

from ansible_collections.openfleet.gpu.plugins.plugin_utils.idle.rhythm import Rhythm
from ansible_collections.openfleet.gpu.plugins.plugin_utils.idle.rule import Policy, threshold_seconds
from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.model import Fleet
from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.sharing import share
from tests.benchmark import sizing_trace as trace

#: Card sizes in GiB: the card that each container of the trace has, and the cards to share.
HELD, CARDS = 48, (80, 141)
#: Containers with fewer duty samples are excluded from sharing.
LEAST_SAMPLES = 1300
CELLS = [(reverse, card) for reverse in (False, True) for card in CARDS]
#: Idle flags are false if duty reaches this percentage within this time after the first flag. Flags too close to the
#: end do not count. INJECTED is the number of idle containers that are added.
WORK_PERCENT, AHEAD_SECONDS, INJECTED = 10, 6 * 3600, 20
#: The audit's idle rule with hours instead of days, because the trace is one day long. Duty of 1 % is work, and ten
#: minutes without samples are a gap.
IDLE = Policy(grace_seconds=2 * 3600, new_seconds=86400, new_threshold_seconds=6.4 * 3600)
WORKING_PERCENT, GAP_SECONDS = 1, 600
#: Number and size of the random subsets of containers for which the limits are also checked.
SUBSETS, SUBSET_SHARE = 6, 0.7

SUBSET_NAMES = (
    "rightsize_subset_cells",
    "rightsize_subset_cells_failed",
    "rightsize_joint_rule_subset_cells_failed",
)
REFERENCES = (("krr_rule", trace.krr_rule), ("joint_rule", trace.joint_rule))


def cell(reverse, card):
    return f"{'reverse' if reverse else 'forward'}_{card}"


def all_names():
    """Yield the names of all figures in the order in which they are printed."""
    for what in ("gpus", "over_memory", "saturated"):
        yield from (f"rightsize_{what}_{cell(*which)}" for which in CELLS)
    yield "rightsize_gpus_total"
    yield from (f"rightsize_{rule}_{what}" for rule, _ in REFERENCES for what in ("gpus_total", "cells_failed"))
    yield from (f"rightsize_saved_{way}_{HELD}" for way in ("forward", "reverse"))
    yield from SUBSET_NAMES
    yield from ("rightsize_idle_false_flags", "rightsize_idle_recall", "rightsize_idle_hours_to_flag")


FIGURES = tuple(all_names())


def figures(options):
    """Yield (name, value, unit) or (name, None, reason)."""
    try:
        if "TRACE" not in options:
            raise trace.TraceError("no trace: make bench BENCH=rightsize TRACE=FILE")
        whole = trace.read(options["TRACE"], HELD * trace.GIB)
        fleet = trace.lasting(whole, LEAST_SAMPLES)
        if not fleet.names:
            raise trace.TraceError(f"no container has more than {LEAST_SAMPLES} samples")
    except trace.TraceError as error:
        for name in FIGURES:
            yield name, None, str(error)
        return
    seed = int(options.get("SEED", 1))
    yield from sharing_figures(fleet)
    yield from subset_figures(fleet, int(options.get("CASES", SUBSETS)), seed)
    yield from idle_figures(whole, seed)


def planned(fleet, card_bytes):
    """Return the default policy's groups of container names."""
    found = share(fleet, card_bytes)
    return [card.names for card in found.cards] + [(name,) for name, _reason in found.left_alone]


def cells(fleet, rule):
    """Yield a Verdict for each of CELLS."""
    for reverse, card in CELLS:
        seen, to_come = trace.halves(fleet, reverse)
        yield trace.judge(rule(seen, card * trace.GIB), to_come, card * trace.GIB)


def sharing_figures(fleet):
    found = list(zip(CELLS, cells(fleet, planned)))
    for what, attribute, unit in (
        ("gpus", "gpus", "count"),
        ("over_memory", "over", "count"),
        ("saturated", "saturated", "percent"),
    ):
        for which, verdict in found:
            yield f"rightsize_{what}_{cell(*which)}", getattr(verdict, attribute), unit
    yield "rightsize_gpus_total", sum(verdict.gpus for _, verdict in found), "count"
    for name, rule in REFERENCES:
        verdicts = list(cells(fleet, rule))
        print(f"rightsize: {name}: {verdicts}", file=sys.stderr)
        yield f"rightsize_{name}_gpus_total", sum(verdict.gpus for verdict in verdicts), "count"
        yield f"rightsize_{name}_cells_failed", sum(not verdict.holds for verdict in verdicts), "count"
    for reverse, way in ((False, "forward"), (True, "reverse")):
        seen, _to_come = trace.halves(fleet, reverse)
        yield f"rightsize_saved_{way}_{HELD}", len(fleet.names) - share(seen, HELD * trace.GIB).gpus, "count"


def subset_figures(fleet, subsets, seed):
    """Score the four cells for random subsets of the containers.

    The figures count how often a subset does not meet the limits.
    """
    size = round(SUBSET_SHARE * len(fleet.names))
    if not subsets or not size:
        for name in SUBSET_NAMES:
            yield name, None, "no subsets asked for"
        return
    chance = random.Random(seed)
    failed = {"planned": 0, "joint_rule": 0}
    for _subset in range(subsets):
        part = fleet.part(sorted(chance.sample(range(len(fleet.names)), size)))
        for name, rule in (("planned", planned), ("joint_rule", trace.joint_rule)):
            for which, verdict in zip(CELLS, cells(part, rule)):
                if not verdict.holds:
                    failed[name] += 1
                    print(f"rightsize: {name}: a subset fails in {cell(*which)}: {verdict}", file=sys.stderr)
    for name, value in zip(SUBSET_NAMES, (subsets * len(CELLS), failed["planned"], failed["joint_rule"])):
        yield name, value, "count"


def first_flags(fleet):
    """Return the index of each workload's first idle sample, or -1."""
    memory = fleet.whole_memory()
    return [first_flag(fleet.times, duty, held) for duty, held in zip(fleet.duty, memory)]


def first_flag(times, duty, memory):
    rhythm, seen = None, None
    for place, now in enumerate(times):
        if memory[place] == 0:
            rhythm = None
        elif rhythm is None:
            rhythm = Rhythm(now)
        if np.isnan(duty[place]):
            continue
        if rhythm is not None:
            if seen is not None and now - seen > GAP_SECONDS:
                rhythm.gap(seen, now)
            if duty[place] >= WORKING_PERCENT:
                rhythm.works(now, now)
            known = {"longest_seconds": rhythm.longest_seconds, "history_seconds": now - times[0]}
            if rhythm.quiet_seconds(now) >= threshold_seconds(IDLE, **known):
                return place
        seen = now
    return -1


def idle_figures(fleet, seed):
    """Flag idle containers, after adding containers that hold memory without work.

    Half of the added containers have noise below 1 %.
    """
    length, there = len(fleet.times), len(fleet.names)
    chance = np.random.default_rng(seed)
    noise = np.where(np.arange(INJECTED)[:, None] % 2, chance.uniform(0, 0.99, (INJECTED, length)), 0.0)
    held = np.repeat(chance.uniform(1, 40, (INJECTED, 1)) * trace.GIB, length, axis=1)
    together = Fleet.of(
        [*fleet.names, *(f"injected-{i:02d}" for i in range(INJECTED))],
        fleet.times,
        np.vstack([fleet.duty, noise]),
        np.vstack([fleet.memory, held]),
        HELD * trace.GIB,
    )
    flags, end = first_flags(together), together.times[-1]
    false, hours = 0, []
    for place, (name, flag) in enumerate(zip(together.names, flags)):
        if flag < 0 or end - together.times[flag] < AHEAD_SECONDS:
            continue
        ahead = (together.times >= together.times[flag]) & (together.times <= together.times[flag] + AHEAD_SECONDS)
        false += int(np.nan_to_num(together.duty[place, ahead]).max() >= WORK_PERCENT)
        if name.startswith("injected-"):
            hours.append((together.times[flag] - together.times[0]) / 3600)
        else:
            print(f"rightsize: idle in the trace: {name}", file=sys.stderr)
    print(f"rightsize: {there} containers, {INJECTED} injected", file=sys.stderr)
    yield "rightsize_idle_false_flags", false, "count"
    yield "rightsize_idle_recall", len(hours) / INJECTED, "ratio"
    if hours:
        yield "rightsize_idle_hours_to_flag", float(np.median(hours)), "hours"
    else:
        yield "rightsize_idle_hours_to_flag", None, "none of them was found"
