# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure sizing on a real trace (docs/sizing.md).

The benchmark plans with one part of a day, and scores the plan on the other part.
"""

from __future__ import annotations

import functools
import random
import sys

import numpy as np

from ansible_collections.openfleet.gpu.plugins.plugin_utils.idle.rhythm import Rhythm
from ansible_collections.openfleet.gpu.plugins.plugin_utils.idle.rule import Policy as IdlePolicy
from ansible_collections.openfleet.gpu.plugins.plugin_utils.idle.rule import threshold_seconds
from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.model import Fleet, Policy
from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.sharing import share
from tests.benchmark import sizing_paths
from tests.benchmark import sizing_trace as trace
from tests.benchmark.amounts import amount

#: Card sizes in GiB: the card of each container in the trace, and the cards to share.
HELD, CARDS = 48, (80, 141)
#: Containers with fewer duty samples share no card.
LEAST_SAMPLES = 1300
CELLS = [(reverse, card) for reverse in (False, True) for card in CARDS]
#: An idle flag is false if duty reaches this percentage within this time after the first flag. Flags too close to the
#: end do not count. INJECTED is the number of idle containers that the benchmark adds.
WORK_PERCENT, AHEAD_SECONDS, INJECTED = 10, 6 * 3600, 20
#: The audit's idle rule with hours instead of days, because the trace is one day long. Duty of 1 % is work, and ten
#: minutes without samples are a gap.
IDLE = IdlePolicy(grace_seconds=2 * 3600, new_seconds=86400, new_threshold_seconds=6.4 * 3600)
WORKING_PERCENT, GAP_SECONDS = 1, 600
#: The share of containers in a random subset.
SUBSET_SHARE = 0.7
#: Number of subsets for plans with shared GPUs, the splits of the trace in turn, and the confidences of the curve. With fewer
#: rounds than by default, a plan needs a few GPUs more.
SUBSETS, SPLITS, CURVE, ROUNDS = 100, (0.5, 0.6, 0.7), (0.95, 0.97, 0.99, 0.995), 60
#: The confidence for planning shared GPUs before 2026-11-29, and the default.
PAST, DEFAULT = 0.97, 0.99
#: Random subsets for single workloads' sizes (sizing_paths.py).
SIZE_SUBSETS = 25

SIZE_NAMES = tuple(
    f"rightsize_{path}_{what}"
    for path, _wish in sizing_paths.PATHS
    for what in (
        "over_memory_percent",
        "gpus_ratio",
        "hindsight_gpus_ratio",
        "over_compute_percent",
        "past_over_memory_percent",
    )
)
SUBSET_NAMES = (
    "rightsize_broken_plans_percent",
    *(f"rightsize_broken_plans_{what}_at_{share:g}" for share in CURVE for what in ("percent", "gpus")),
    *(f"rightsize_broken_plans_{what}_joint_rule" for what in ("percent", "gpus")),
)
REFERENCES = (("krr_rule", trace.krr_rule), ("joint_rule", trace.joint_rule))


def cell(reverse, card):
    return f"{'reverse' if reverse else 'forward'}_{card}"


def all_names():
    """Yield the names of all results in the order of printing."""
    for what in ("gpus", "over_memory", "saturated"):
        yield from (f"rightsize_{what}_{cell(*which)}" for which in CELLS)
    yield "rightsize_gpus_total"
    yield "rightsize_gpus_total_default"
    yield from (f"rightsize_{rule}_{what}" for rule, _ in REFERENCES for what in ("gpus_total", "cells_failed"))
    yield from (f"rightsize_saved_{way}_{HELD}" for way in ("forward", "reverse"))
    yield from SIZE_NAMES
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
    yield from size_figures(fleet, min(SIZE_SUBSETS, amount(options, SIZE_SUBSETS, 1, "CASES")), seed)
    yield from subset_figures(fleet, amount(options, SUBSETS, 1, "CASES"), seed)
    yield from idle_figures(whole, seed)


def planned(fleet, card_bytes, policy):
    """Return the policy's groups of container names."""
    found = share(fleet, card_bytes, policy)
    return [card.names for card in found.cards] + [(name,) for name, _reason in found.left_alone]


def at(confidence, **settings):
    """Return the rule that plans with this confidence."""
    return functools.partial(planned, policy=Policy(confidence=confidence, **settings))


def cells(fleet, rule, split=trace.SPLIT):
    """Yield a Verdict for each of CELLS."""
    for reverse, card in CELLS:
        seen, to_come = trace.halves(fleet, reverse, split)
        yield trace.judge(rule(seen, card * trace.GIB), to_come, card * trace.GIB)


def sharing_figures(fleet):
    found = list(zip(CELLS, cells(fleet, at(PAST))))
    for what, attribute, unit in (
        ("gpus", "gpus", "count"),
        ("over_memory", "over", "count"),
        ("saturated", "saturated", "percent"),
    ):
        for which, verdict in found:
            yield f"rightsize_{what}_{cell(*which)}", getattr(verdict, attribute), unit
    yield "rightsize_gpus_total", sum(verdict.gpus for _, verdict in found), "count"
    yield "rightsize_gpus_total_default", sum(verdict.gpus for verdict in cells(fleet, at(DEFAULT))), "count"
    for name, rule in REFERENCES:
        verdicts = list(cells(fleet, rule))
        print(f"rightsize: {name}: {verdicts}", file=sys.stderr)
        yield f"rightsize_{name}_gpus_total", sum(verdict.gpus for verdict in verdicts), "count"
        yield f"rightsize_{name}_cells_failed", sum(not verdict.holds for verdict in verdicts), "count"
    for reverse, way in ((False, "forward"), (True, "reverse")):
        seen, _to_come = trace.halves(fleet, reverse)
        yield f"rightsize_saved_{way}_{HELD}", len(fleet.names) - share(seen, HELD * trace.GIB).gpus, "count"


def size_figures(fleet, subsets, seed):
    """Score single workloads' sizes, by current and by past rules."""
    if not subsets:
        for name in SIZE_NAMES:
            yield name, None, "no subsets asked for"
        return
    now = sizing_paths.scores(fleet, sizing_paths.shipped, subsets, SUBSET_SHARE, seed)
    past = sizing_paths.scores(fleet, sizing_paths.past, subsets, SUBSET_SHARE, seed)
    hindsight = sizing_paths.scores(fleet, sizing_paths.shipped, subsets, SUBSET_SHARE, seed, hindsight=True)
    for path, _wish in sizing_paths.PATHS:
        print(f"rightsize: {path}: {now[path]}, by past rules {past[path]}", file=sys.stderr)
        yield f"rightsize_{path}_over_memory_percent", now[path].percent(now[path].over_memory), "percent"
        yield f"rightsize_{path}_gpus_ratio", now[path].gpus / past[path].gpus, "ratio"
        yield f"rightsize_{path}_hindsight_gpus_ratio", hindsight[path].gpus / past[path].gpus, "ratio"
        yield f"rightsize_{path}_over_compute_percent", now[path].percent(now[path].over_compute), "percent"
        yield f"rightsize_{path}_past_over_memory_percent", past[path].percent(past[path].over_memory), "percent"


def subset_figures(fleet, subsets, seed):
    """Count plans for random subsets that miss the limits, as a curve.

    The benchmark plans each subset for the four cells of one split.
    """
    size = round(SUBSET_SHARE * len(fleet.names))
    if not subsets or not size:
        for name in SUBSET_NAMES:
            yield name, None, "no subsets asked for"
        return
    chance = random.Random(seed)
    parts = [fleet.part(sorted(chance.sample(range(len(fleet.names)), size))) for _subset in range(subsets)]
    curve = {}
    for name, rule in (*((f"at_{c:g}", at(c, rounds=ROUNDS)) for c in CURVE), ("joint_rule", trace.joint_rule)):
        verdicts = [
            verdict for number, part in enumerate(parts) for verdict in cells(part, rule, SPLITS[number % len(SPLITS)])
        ]
        over = sum(verdict.over > 0 for verdict in verdicts)
        broken = sum(not verdict.holds for verdict in verdicts)
        print(f"rightsize: {name}: {broken} of {len(verdicts)} plans broken, {over} by memory", file=sys.stderr)
        curve[name] = (100 * broken / len(verdicts), sum(verdict.gpus for verdict in verdicts))
    yield "rightsize_broken_plans_percent", curve[f"at_{DEFAULT:g}"][0], "percent"
    for name, (percent, gpus) in curve.items():
        yield f"rightsize_broken_plans_percent_{name}", percent, "percent"
        yield f"rightsize_broken_plans_gpus_{name}", gpus, "count"


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
