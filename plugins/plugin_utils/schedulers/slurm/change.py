# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide which running jobs must end before the GRES of a node change.

Tested with Slurm 22.05 and 24.11:

- If the total of gres/gpu changes, slurmctld ends every job of the node that holds a GPU ("gres/gpu count mismatch").
- If the total stays the same, jobs continue. Slurm 24.11 takes the new GRES with `scontrol reconfigure`.
  Slurm 22.05 needs a restart of slurmctld and slurmd, and the node must be resumed.

A job holds its devices by number, so a job is affected if another device gets the number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from ....module_utils.slurm.mig_devices import Device
from .gres import GPU, SHARD, Gres, joined, totals

NOTHING, IN_PLACE, AFFECTED, ALL = WAYS = ("nothing", "in place", "affected jobs", "all jobs")
# Releases in which jobs were seen to survive a change of types with the same total. Others wait for all jobs.
_SURVIVES = (22, 5)
_RECONFIGURES = (24, 11)
# First release whose slurmctld keeps jobs on shards when it restarts (NEWS of 23.02).
_KEEPS_SHARDS = (23, 2)


@dataclass(frozen=True)
class Job:
    """A running job.

    `gres` lists (name, count, device numbers), as holders.slurm.resources returns them. The numbers may be None.
    """

    id: str
    gres: tuple[tuple[str, int, tuple[int, ...] | None], ...]


@dataclass(frozen=True)
class Current:
    """The current state of a node.

    gres     GRES for GPUs, from `scontrol show node`
    others   other GRES of the node. They are kept
    devices  current devices, in the order that the collection writes
    jobs     running jobs with GRES
    version  version of slurmctld, or None if it is unknown
    """

    gres: tuple[Gres, ...]
    others: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    jobs: tuple[Job, ...] = ()
    version: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Change:
    """How the GRES of a node change.

    way      one of WAYS
    jobs     jobs that must end first
    restart  true if slurmctld and slurmd must be restarted and the node resumed. If false, `scontrol reconfigure` is enough
    gres     new value of `Gres=`
    line     line of the plan, or empty if nothing changes
    """

    way: str
    jobs: tuple[str, ...] = ()
    restart: bool = False
    gres: str = ""
    line: str = ""


def change(name: str, gres: Sequence[Gres], devices: Sequence[Device], current: Current) -> Change:
    """Return how a node changes to other GRES.

    `gres` and `devices` are those of the layout, in Slurm's order.
    """
    new = joined([*gres, *current.others])
    same_gres = tuple(gres) == current.gres
    old = known(current)
    if same_gres and all(_stays(number, old, devices) for number in range(len(devices))):
        return Change(NOTHING, gres=new)
    restart = needs_restart(current.version)
    if _must_empty(gres, current):
        way, jobs = ALL, tuple(job.id for job in current.jobs)
    else:
        jobs = tuple(job.id for job in current.jobs if _is_affected(job, old, devices, current.version))
        way = AFFECTED if jobs else IN_PLACE
    return Change(way, jobs, restart, new, _line(name, gres, current, way, jobs, restart))


def needs_restart(version: tuple[int, ...] | None) -> bool:
    """Return whether slurmctld and slurmd take new GRES only when they restart."""
    return version is None or version[:2] < _RECONFIGURES


def known(current: Current) -> list[Device]:
    """Return the current devices by number.

    Returns an empty list if the GRES of the node do not match them.
    """
    counts: dict[str, int] = {}
    for device in current.devices:
        counts[device.type] = counts.get(device.type, 0) + 1
    shown = [(each.type, each.count) for each in current.gres if each.name == GPU]
    return list(current.devices) if shown == list(counts.items()) else []


def _must_empty(gres: Sequence[Gres], current: Current) -> bool:
    """Return whether every job with GPUs must end first.

    This is the case if slurmctld would end them, and for changes that were not tested with running jobs.
    """
    version = (current.version or ())[:2]
    tested = version == _SURVIVES or version >= _RECONFIGURES
    shared = [each for each in gres if each.name != GPU]
    return not tested or totals(gres) != totals(current.gres) or shared != [e for e in current.gres if e.name != GPU]


def _is_affected(job: Job, known: Sequence[Device], devices: Sequence[Device], version: tuple[int, ...] | None) -> bool:
    """Return whether a job would lose a device, or get another one.

    If a device of the job is unknown, the job is affected.
    """
    if any(name == SHARD for name, _count, _numbers in job.gres) and (version or ())[:2] < _KEEPS_SHARDS:
        return True
    return not all(
        name == GPU and numbers and all(_stays(number, known, devices) for number in numbers)
        for name, _count, numbers in job.gres
    )


def _stays(number: int, known: Sequence[Device], devices: Sequence[Device]) -> bool:
    if number >= min(len(known), len(devices)):
        return False
    old, new = known[number], devices[number]
    return bool(old.uuid) and (old.type, old.uuid) == (new.type, new.uuid)


def _line(name: str, gres: Sequence[Gres], current: Current, way: str, jobs: Sequence[str], restart: bool) -> str:
    before, after = totals(current.gres).get(GPU, 0), totals(gres).get(GPU, 0)
    total = "total %d" % after if before == after else "total %d -> %d" % (before, after)
    if jobs:
        how = "%s must end first: %s" % ("all GPU jobs" if way == ALL else "jobs on changed GPUs", ", ".join(jobs))
    elif way == ALL:
        how = "no GPU job is running"
    else:
        how = "in place, with %s" % ("a restart of slurmctld and slurmd" if restart else "scontrol reconfigure")
    return "node %s: gres %s (was %s; %s): %s" % (
        name,
        joined(gres) or "none",
        joined(current.gres) or "none",
        total,
        how,
    )
