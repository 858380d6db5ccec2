# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure changes of MIG instances on a Slurm node with running jobs.

The node is a lab host with Debian 13, whose Slurm 24.11 is real, and with simulated GPUs. GPUs 0 and 1 change between
random layouts, and random jobs run on all four GPUs. slurmctld refuses requests for GPUs without a type. Each change is
a run of the roles gpu_slurm and gpu_layout in the order of site.yml, with `gpu_layout_on_busy: drain`. While the run
waits for jobs, the benchmark ends them one by one in random order. SEED selects the transitions, and CASES sets their
number. Different seeds' results add up, so several runs can share a long measurement. The log has each transition's
time.

A job is lost if it does not run on the same devices after the change, although the run did not wait for it. A job waits
without need if the run waits for it, although its devices stay and the jobs of all staying devices can keep their
numbers. The time to the first job is that from the start of the run, so it includes the waiting.
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import testinfra

from tests.benchmark.amounts import amount
from tests.lab.fleet import FleetError, play_quietly
from tests.lab.lab_fixtures import container_name
from tests.lab.role_plays import run_role

ROOT = Path(__file__).resolve().parents[2]
SCENARIO = ROOT / "molecule" / "gpu_slurm"
FIGURES = ("slurm_jobs_lost", "slurm_needless_waits", "slurm_seconds_to_first_job")
TRANSITIONS = 50
RELEASE = "trixie"
# Instances of GPUs 0 and 1. The node starts with the first entry, so its total has room for all others.
DIVISIONS = (
    {"1g.10gb": 7},
    {"7g.80gb": 1},
    {"3g.40gb": 2},
    {"4g.40gb": 1, "3g.40gb": 1},
    {"3g.40gb": 1, "1g.10gb": 2},
    {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 2},
    {"2g.20gb": 3, "1g.10gb": 1},
    {"2g.20gb": 2, "1g.10gb": 3},
    {"1g.10gb": 3},
    {"1g.10gb": 5},
)
# Jobs on the node share two cores (OverSubscribe=FORCE:4).
MOST_JOBS = 6


def figures(options):
    """Yield (name, value, unit) or (name, None, reason)."""
    os.environ.update(
        LAB_RELEASE=RELEASE, OPENFLEET_LAB="bench-slurm-%s" % (os.environ.get("OPENFLEET_CHECKOUT") or "local")
    )
    inventory = ("-i", str(SCENARIO / "inventory"))
    try:
        subprocess.run([str(ROOT / "tests/lab/image/build"), "slurm"], cwd=ROOT, stdout=sys.stderr, check=True)
        play_quietly("tests/lab/destroy.yml", "bench-destroy.log", *inventory)
        try:
            for playbook in ("tests/lab/create.yml", "tests/lab/slurm.yml", "molecule/gpu_slurm/converge.yml"):
                play_quietly(playbook, "bench-create.log", *inventory)
            transitions = amount(options, TRANSITIONS, 2, "CASES")
            lost, needless, seconds = measured(lab_host(), random.Random(int(options.get("SEED") or 1)), transitions)
        finally:
            play_quietly("tests/lab/destroy.yml", "bench-destroy.log", *inventory)
    except FleetError as error:
        yield from ((name, None, str(error).splitlines()[0]) for name in FIGURES)
        return
    print(f"bench: the slowest first job ran after {max(seconds):.1f} s", file=sys.stderr)
    yield "slurm_jobs_lost", lost, "count"
    yield "slurm_needless_waits", needless, "count"
    yield "slurm_seconds_to_first_job", statistics.median(seconds), "s"


def lab_host():
    """Return the prepared node."""
    sys.path.insert(0, str(SCENARIO / "tests"))
    from slurm_host import prepared

    return prepared("one", testinfra.get_host("podman://%s" % container_name("one")))


def measured(host, rng, transitions):
    """Return the lost jobs, the needless waits and the times to the first job.

    Each transition has a time in seconds.
    """
    from slurm_host import layout

    divisions = [DIVISIONS[0], DIVISIONS[0]]
    host.require_types()
    host.reset(layout(*map(entry, divisions)))
    lost = needless = 0
    seconds, jobs = [], {}
    for transition in range(transitions):
        start_jobs(host, rng, jobs, host.mapping(layout(*map(entry, divisions)))["devices"])
        divisions[rng.randrange(2)] = rng.choice(DIVISIONS)
        wanted = layout(*map(entry, divisions))
        planned = host.mapping(wanted)
        started = time.monotonic()
        needless += change(host, rng, wanted, planned, jobs)
        job, environment = host.submit("gpu:%s:1" % free_type(host, rng))
        seconds.append(time.monotonic() - started)
        found = host.mapping(wanted)
        if found["change"]["way"] != "nothing":
            raise FleetError(
                "transition %d" % transition, "Slurm does not follow the layout: %s" % found["plan"][0], ""
            )
        ended = [one for one, uuids in jobs.items() if not lives(host, one, uuids, found["devices"])]
        lost += len(ended)
        for one in ended:
            print(f"bench: transition {transition} lost job {one}: {planned['plan'][0]}", file=sys.stderr)
            jobs.pop(one)
        progress = f"bench: {transition + 1} transitions, {lost} lost, {needless} needless, {seconds[-1]:.1f} s"
        print(f"{progress}: {planned['plan'][0]}", file=sys.stderr, flush=True)
        jobs[job] = uuids_of(environment, found["devices"])
        end_jobs(host, jobs, rng.sample(sorted(jobs), rng.randint(0, len(jobs) - 1)))
    return lost, needless, seconds


def change(host, rng, wanted, planned, jobs):
    """Run the roles, and end the jobs that the run waits for.

    Remove the ended jobs from `jobs`, and return the number of needless waits.
    """
    from slurm_host import INVENTORY, NODE, PLANNED_STEPS, follow

    run = follow(wanted, steps=PLANNED_STEPS, gpu_layout_on_busy="drain", gpu_drain_poll=1)
    needless = set()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(run_role, INVENTORY, "gpu_slurm", "one", [run])
        waiting = planned["change"]["jobs"]
        if waiting:
            host.wait_until(f"scontrol -o show node {NODE} | grep -q '+DRAIN'")
        while waiting:
            needless |= waits_without_need(host, wanted, set(waiting), jobs)
            end_jobs(host, jobs, [rng.choice(waiting)])
            waiting = host.mapping(wanted)["change"]["jobs"]
        done.result()
    return len(needless)


def entry(division):
    return {"sharing": "mig", "mig": [{"profile": name, "count": count} for name, count in division.items()]}


def free_types(host):
    """Return the types with a free device, without pads."""
    node = host.ask("scontrol -d -o show node gpu-a")
    fields = dict(word.split("=", 1) for word in node.split() if "=" in word)
    counts = {}
    for sign, key in ((1, "Gres"), (-1, "GresUsed")):
        for part in fields[key].split(",gpu:"):
            kind, count = part.removeprefix("gpu:").partition("(")[0].split(":")
            counts[kind] = counts.get(kind, 0) + sign * int(count)
    return sorted(kind for kind, count in counts.items() if count > 0 and not kind.startswith("pad"))


def free_type(host, rng):
    """Return a type with a free device."""
    return rng.choice(free_types(host))


def start_jobs(host, rng, jobs, devices):
    """Start random jobs, and add their devices' UUIDs to `jobs`."""
    # One free core and one free device are for the first job after the change.
    for _job in range(rng.randint(1, MOST_JOBS) - len(jobs)):
        if len(free_types(host)) < 2:
            return
        job, environment = host.submit("gpu:%s:1" % free_type(host, rng))
        jobs[job] = uuids_of(environment, devices)


def end_jobs(host, jobs, ended):
    if ended:
        host.ask(f"scancel {' '.join(ended)}")
        host.wait_until(f'[ -z "$(squeue --noheader --jobs {",".join(ended)} 2>/dev/null)" ]')
    for job in ended:
        jobs.pop(job)


def uuids_of(environment, devices):
    """Return the UUIDs of a job's devices by number."""
    return {int(number): devices[int(number)] for number in environment["CUDA_VISIBLE_DEVICES"].split(",")}


def lives(host, job, uuids, devices):
    """Return whether a job runs without a restart on the same devices."""
    return host.state(job) == "JobState=RUNNING Restarts=0" and all(
        devices[number] == uuid for number, uuid in uuids.items()
    )


def waits_without_need(host, wanted, waiting, jobs):
    """Return the jobs that wait without need.

    All jobs whose devices stay could continue together.
    """
    types, node = host.types(), host.node()["Gres"]
    kept = set(host.kept(wanted))
    stay = {uuid: kind for uuid, kind in types.items() if uuid in kept or not uuid.startswith("MIG-")}
    staying = {job: uuids for job, uuids in jobs.items() if stay.keys() >= set(uuids.values())}
    counts = {"h100": sum(one["sharing"] != "mig" for one in wanted)}
    for part in (part for one in wanted for part in one.get("mig", ())):
        counts[part["profile"]] = counts.get(part["profile"], 0) + part["count"]
    fixed = {number: stay[uuid] for uuids in staying.values() for number, uuid in uuids.items()}
    total = sum(int(part.partition("(")[0].rpartition(":")[2]) for part in node.split(",gpu:"))
    return waiting & set(staying) if numbers_fit(counts, fixed, total) else set()


def numbers_fit(counts, fixed, total):
    """Return whether the types fit into `total` numbers.

    Each type has consecutive numbers, and `fixed` are types that must have a number.
    """
    for kinds in itertools.permutations(counts):
        end = 0
        for kind in kinds:
            numbers = [number for number, one in fixed.items() if one == kind]
            end = max([end, *(number - counts[kind] + 1 for number in numbers)])
            if numbers and end > min(numbers):
                break
            end += counts[kind]
        else:
            if end <= total:
                return True
    return False
