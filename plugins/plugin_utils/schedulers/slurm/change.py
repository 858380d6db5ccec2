# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide which running jobs must end before the GRES of a node change.

Tested with Slurm 22.05 and 24.11:

- If the total of gres/gpu changes, slurmctld ends every job of the node that holds a GPU ("gres/gpu count mismatch").
- If the total stays the same, jobs continue. Slurm 24.11 takes the new GRES with `scontrol reconfigure`.
  Slurm 22.05 needs a restart of slurmctld and slurmd, and the node must be resumed.
- Pads keep the total the same. A pad is a GRES of the type pad, without a device. Slurm gives pads to requests without a
  type. So pads are added only if the cluster refuses such requests.

A job holds its devices by number, so a job is affected if its number gets another device.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Mapping, Sequence

from ....module_utils.slurm.mig_devices import Device
from .gres import GPU, QUOTA, SHARD, Gres, joined, totals
from .order import is_pad, kept, ordered, types

NOTHING, IN_PLACE, AFFECTED, ALL = WAYS = ("nothing", "in place", "affected jobs", "all jobs")
# Releases in which jobs survived a change of types with the same total in tests. In other releases, all jobs must end
# first.
_SURVIVES = (22, 5)
_RECONFIGURES = (24, 11)
# First release whose slurmctld keeps jobs on shards when it restarts (NEWS of 23.02).
_KEEPS_SHARDS = (23, 2)


@dataclass(frozen=True)
class Job:
    """A running job.

    `gres` has (name, count, device numbers) as in holders.slurm.resources. The numbers may be None.
    """

    id: str
    gres: tuple[tuple[str, int, tuple[int, ...] | None], ...]


@dataclass(frozen=True)
class Desired:
    """The devices and GRES of the layout.

    devices      devices, in the order that a node without jobs has
    shared       GRES other than gres/gpu, such as shards
    room         number of devices that a new total must have room for, so that later changes can keep the total
    keeps_total  whether pads may be added to keep the total
    """

    devices: Sequence[Device]
    shared: Sequence[Gres] = ()
    room: int = 0
    keeps_total: bool = True


@dataclass(frozen=True)
class Current:
    """The current state of a node.

    gres         GRES for GPUs, from `scontrol show node`
    others       other GRES of the node, which a change keeps
    record       type and UUID of each device by number, from gres.conf. Empty if they are unknown
    jobs         running jobs with GRES
    version      version of slurmctld, or None if it is unknown
    pad_problem  why a job could get a pad. Empty if the cluster refuses all requests that could get one
    """

    gres: tuple[Gres, ...]
    others: tuple[str, ...] = ()
    record: tuple[tuple[str, str], ...] = ()
    jobs: tuple[Job, ...] = ()
    version: tuple[int, ...] | None = None
    pad_problem: str = ""


@dataclass(frozen=True)
class Change:
    """How the GRES of a node change.

    way      one of WAYS
    order    devices by number. None is a pad
    jobs     jobs that must end first
    restart  true if slurmctld and slurmd must be restarted and the node resumed. If false, `scontrol reconfigure` is enough
    gres     new value of `Gres=`
    line     line of the plan, or empty if nothing changes
    note     sentence about pads, or empty
    """

    way: str
    order: tuple[Device | None, ...] = ()
    jobs: tuple[str, ...] = ()
    restart: bool = False
    gres: str = ""
    line: str = ""
    note: str = ""


def change(name: str, desired: Desired, current: Current) -> Change:
    """Return how a node changes to a layout's GRES."""
    total, note = _total(desired, current)
    stay = kept(current.record, desired.devices)
    same_shared = list(desired.shared) == [each for each in current.gres if each.name != GPU]
    order = _unchanged(stay, desired, current) if same_shared else None
    if order is not None:
        # Pads stay until the layout changes, because removing them would change the total.
        return Change(NOTHING, order, gres=_text(order, desired, current), note=note)
    restart = needs_restart(current.version)
    fixed: dict[int, Device] = {}
    if not same_shared or not _survives(current.version) or total != totals(current.gres).get(GPU, 0):
        way, jobs = ALL, [job.id for job in current.jobs]
    else:
        jobs = []
        for job in current.jobs:
            if job.gres and all(name == QUOTA for name, _count, _numbers in job.gres):
                # Its lease has no number.
                continue
            numbers = _numbers(job, current.version)
            held = {**fixed, **{number: stay[number] for number in numbers if number in stay}}
            if numbers and stay.keys() >= set(numbers) and ordered(desired.devices, total, held) is not None:
                fixed = held
            else:
                jobs.append(job.id)
        way = AFFECTED if jobs else IN_PLACE
    order = ordered(desired.devices, total, fixed) or ()
    line = _line(name, [*_counted(order), *desired.shared], current, way, jobs, restart)
    return Change(way, order, tuple(jobs), restart, _text(order, desired, current), line, note)


def _total(desired: Desired, current: Current) -> tuple[int, str]:
    """Return the new total of gres/gpu, and a sentence about pads or ""."""
    before = totals(current.gres).get(GPU, 0)
    count, pads = len(desired.devices), sum(each.count for each in current.gres if is_pad(each.type))
    if not desired.keeps_total:
        return count, ""
    problem = current.pad_problem
    if not problem and not _survives(current.version):
        problem = "they were not tested with this release of Slurm"
    if count > before:
        return (count if problem else max(count, desired.room)), ""
    if problem and before - count > pads:
        return count, "Pads could keep the total of gres/gpu, but %s." % problem
    return before, "Jobs can get a pad: %s." % problem if problem and before > count else ""


def needs_restart(version: tuple[int, ...] | None) -> bool:
    """Return whether slurmctld and slurmd only take new GRES when they restart."""
    return version is None or version[:2] < _RECONFIGURES


def _unchanged(stay: Mapping[int, Device], desired: Desired, current: Current) -> tuple[Device | None, ...] | None:
    """Return the current order if it has exactly the layout's devices."""
    if current.record:
        gone = [kind for number, (kind, _uuid) in enumerate(current.record) if number not in stay and not is_pad(kind)]
        if gone or len(stay) != len(desired.devices):
            return None
        return tuple(stay.get(number) for number in range(len(current.record)))
    # Only the GRES can be compared, because the devices' order is unknown, for example with AutoDetect.
    gpus = tuple(each for each in current.gres if each.name == GPU)
    return (
        tuple(desired.devices)
        if gpus == tuple(_counted(desired.devices)) and all(d.uuid for d in desired.devices)
        else None
    )


def _survives(version: tuple[int, ...] | None) -> bool:
    """Return whether jobs survive a change with the same total in this release."""
    release = (version or ())[:2]
    return release == _SURVIVES or release >= _RECONFIGURES


def _numbers(job: Job, version: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the numbers of the job's devices.

    Returns () if they are unknown, or if the job must end in any case.
    """
    if any(name == SHARD for name, _count, _numbers in job.gres) and (version or ())[:2] < _KEEPS_SHARDS:
        return ()
    if not all(name == GPU and numbers for name, _count, numbers in job.gres):
        return ()
    return tuple(number for _name, _count, numbers in job.gres for number in numbers or ())


def _counted(order: Sequence[Device | None]) -> list[Gres]:
    return [Gres(GPU, kind, count) for kind, count in Counter(types(order)).items()]


def _text(order: Sequence[Device | None], desired: Desired, current: Current) -> str:
    return joined([*_counted(order), *desired.shared, *current.others])


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
