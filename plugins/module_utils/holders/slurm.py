# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read Slurm's GPU allocations on this host, whether jobs use them now or not.

Queried only if slurmd runs. The node's record shows whether any GPU is allocated (usually the only call), and the jobs'
records show which. Formats: https://slurm.schedmd.com/scontrol.html (show node, show job, with -d).
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
from typing import Any, Sequence

from ..command import Run, ask
from ..frozen import frozen
from ..model import Gpu, Holder, Host
from .devices import Devices, Place
from .model import SLURM, SLURM_DAEMON, place_of, unknown
from .processes import Processes

#: Generic resources that are GPUs or parts of them (https://slurm.schedmd.com/gres.html).
_GPU_RESOURCES = ("gpu", "mps", "shard")
_FIELD = re.compile(r"(\S+?)=(\S*)")
#: One resource in a list: name, type or count, details: gpu:h100:2(IDX:0-1), gpu(IDX:0-1), gpu:8(S:0-1).
_RESOURCE = re.compile(r"([A-Za-z_]\w*)((?::[^,(]+)*)(?:\(([^)]*)\))?(?:,|$)")
_JOB_STATES = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED,SIGNALING,STAGE_OUT"
#: Start of a job's record up to its name, and the fields before its resources by node (GRES_IDX until Slurm 17.02).
_RECORD = re.compile(r"JobId=\d+ (?:ArrayJobId=\d+ ArrayTaskId=\S+ )?(?:HetJobId=\d+ HetJobOffset=\d+ )?JobName=")
_JOB_RESOURCES = re.compile(r"\sJOB_GRES=\S*")
#: Fields of a record right after account and WCKey, and right after the resources.
_STATE, _NEEDS = " JobState=", " MinCPUsNode="
#: Maximum size of a range: more than the nodes that slurm.conf(5) allows and the GPUs of any host.
_MOST_NUMBERS = 1 << 16
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_GIVEN = re.compile(r"\s+Nodes=(\S+) CPU_IDs=\S* Mem=\S*(?: GRES(?:_IDX)?=(\S*))?")
_NO_INDEX = sys.maxsize
#: A node name (slurm.conf(5)) that cannot be an option of a tool.
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*$")
#: (name, count, indexes or None if unknown)
Resource = "tuple[str, int, tuple[int, ...] | None]"


def slurm(host: Host, devices: Devices, processes: Processes, run: Run, deadline: float = math.inf) -> list[Holder]:
    """Return a holder for each job of this node and each of its GPUs or GPU instances.

    Each job is queried separately, since its name may look like other records. Queries end at `deadline` (time.monotonic()), and
    the allocations are then unknown.
    """
    # One machine may be several nodes, each with a slurmd. A slurmd in a container is covered by the container.
    daemons = [
        daemon.pid
        for daemon in processes.named(SLURM_DAEMON)
        if processes.is_roots(daemon.pid, SLURM_DAEMON) and not processes.in_container(daemon.pid)
    ]
    nodes = sorted(filter(_NODE_NAME.match, {_node_name(processes.arguments(daemon)) for daemon in daemons}))
    return [holder for node in nodes for holder in _of_node(host, devices, processes, node, _Until(run, deadline))]


class _Until:
    """Runs tools until a deadline."""

    def __init__(self, run: Run, deadline: float) -> None:
        self._run, self._deadline = run, deadline

    def __call__(self, command: list[str], **options: Any) -> Any:
        if time.monotonic() > self._deadline:
            raise NoAnswerError("there are too many jobs here to query in time")
        return self._run(command, **options)


def _of_node(host: Host, devices: Devices, processes: Processes, node: str, run: Run) -> list[Holder]:
    try:
        record = _query(run, "scontrol", "--details", "--oneliner", "show", "node", node)
        used = sum(count for _name, count, _indexes in resources(fields(record).get("GresUsed", "")))
        if not used:
            return []
        listed = _query(
            run, "squeue", "--all", "--noheader", "--nodelist", node, "--states", _JOB_STATES, "--format", "%A %u"
        )
        users = dict(line.split(" ", 1) for line in listed.splitlines() if " " in line)
        records = {job: _record(run, job) for job in sorted(users)}
        jobs = [Job(job, users[job], name_of(run, job), record) for job, record in records.items() if record]
    except FileNotFoundError as error:
        problem = "slurmd runs here, but %s is not installed" % error.filename
        return unknown(host.gpus, problem, "Install Slurm's client commands.")
    except NoAnswerError as error:
        problem = "slurmd runs here, and the GPUs of its jobs are not known: %s" % error
        return unknown(
            host.gpus,
            problem,
            "Check that slurmctld answers (scontrol ping) and how many jobs it has (squeue), then run again.",
        )
    order = _order(devices, host.gpus, fields(record))
    holders: list[Holder] = []
    for job in jobs:
        given = job.given_on(node)
        if given is None:
            # It may have any GPU, but it hides no other job.
            holders += unknown(
                host.gpus, "the GPUs of %s are not known" % job, "Cancel it (scancel), or wait.", job=job.id
            )
            continue
        used -= sum(count for _name, count, _indexes in given)
        holders += _of_job(host, processes, job, given, order) if given else ()
    if used > 0:
        # A job that is just starting or ending is in only one of the two records.
        holders += unknown(
            host.gpus,
            "Slurm has allocated %d more GPUs of this host than the records of its jobs show" % used,
            "Run again.",
        )
    return holders


def _of_job(
    host: Host, processes: Processes, job: Job, given: Sequence[Resource], order: Sequence[Gpu] | None
) -> list[Holder]:
    who = str(job)
    places = _by_index(order, given) or _by_tasks(host, processes, job.id, sum(count for _name, count, _ in given))
    if places is None:
        what = ", ".join("%s:%d" % (name, count) for name, count, _indexes in given)
        who += ", which has %s of unknown GPUs" % what
        places = {(gpu.uuid, None) for gpu in host.gpus}
    return [Holder(uuid, instance, SLURM, who, user=job.user, job=job.id) for uuid, instance in places]


@frozen
class Job:
    """A job: `user` and `name` from squeue, `record` from scontrol.

    The user chooses the name, which may look like the rest of a record with other users, nodes and GPUs. So the record
    is parsed after the name from squeue. Account and WCKey (without accounting), paths and comments are the user's
    choice too, and are not parsed.
    """

    id: str
    user: str
    #: As printed by squeue, with several lines for a job of an array.
    name: str
    record: str

    def __str__(self) -> str:
        return "Slurm job %s (%s) of user %s" % (self.id, first_line(self.name) or "no name", self.user)

    def given_on(self, node: str) -> list[Resource] | None:
        """Return the GPU resources on one node, or None if the record is ambiguous because of text from its user."""
        begins = _RECORD.match(self.record)
        rest = self.record[begins.end() :] if begins else ""
        lines = self.name.split("\n")
        for count in range(len(lines), 0, -1):
            name = "\n".join(lines[:count])
            if rest.startswith(name + " UserId="):
                _before, _state, behind = rest[len(name) :].partition(_STATE)
                return None if _STATE in behind else given_on(behind.partition(_NEEDS)[0], node)
        return None


class NoAnswerError(Exception):
    """A tool of Slurm failed. The text has the reason."""


def _query(run: Run, *command: str) -> str:
    text, problem = ask(run, list(command))
    if text is None:
        raise NoAnswerError(problem)
    return text


def first_line(name: str) -> str:
    """Return the first line of a name, for messages."""
    return name.split("\n", 1)[0]


def name_of(run: Run, job: str) -> str:
    """Query a job's name separately, since it may be any text. Raises NoAnswerError."""
    try:
        return _query(run, "squeue", "--all", "--noheader", "--jobs", job, "--format", "%j").rstrip("\n")
    except NoAnswerError as error:
        if "Invalid job id" in str(error):
            return ""
        raise


def _record(run: Run, job: str) -> str:
    try:
        return _query(run, "scontrol", "--details", "--oneliner", "show", "job", job)
    except NoAnswerError as error:
        if "Invalid job id" in str(error):
            # It has ended since squeue listed it.
            return ""
        raise


def _by_index(order: Sequence[Gpu] | None, given: Sequence[Resource]) -> set[Place] | None:
    indexes = [index for _name, _count, known in given for index in known or (_NO_INDEX,)]
    if order is None or any(index >= len(order) for index in indexes):
        return None
    return {(order[index].uuid, None) for index in indexes}


def _by_tasks(host: Host, processes: Processes, job: str, count: int) -> set[Place] | None:
    """Return the devices in CUDA_VISIBLE_DEVICES of the job's processes, or None if their number differs from the job's.

    With AutoDetect=nvml slurmd passes MIG devices to tasks by UUID.
    """
    uuids: set[str] = set()
    for pid in processes.seen:
        # Find the job's processes by cgroup, since any user can set a job's variables.
        if processes.origin(pid).job == job:
            uuids |= set(processes.environment(pid).get("CUDA_VISIBLE_DEVICES", "").split(",")) - {""}
    places = {place_of(host, device) for device in uuids}
    if len(uuids) != count or None in places:
        return None
    return {place for place in places if place}


def _order(devices: Devices, gpus: tuple[Gpu, ...], record: dict[str, str]) -> Sequence[Gpu] | None:
    """Return the GPUs in Slurm's order, or None if it is unknown.

    Slurm numbers whole GPUs in gres.conf by device node. With MIG it numbers MIG devices, in an order that depends on how they
    were detected.
    """
    listed = sum(count for name, count, _ in resources(record.get("Gres", "")) if name == "gpu")
    order = devices.in_minor_order()
    if any(gpu.mig.enabled for gpu in gpus) or not listed == len(gpus) == len(order):
        return None
    return order


def fields(record: str) -> dict[str, str]:
    """Return the first value of each Key=value of a record."""
    values: dict[str, str] = {}
    for key, value in _FIELD.findall(record):
        values.setdefault(key, value)
    return values


def given_on(record: str, node: str) -> list[Resource]:
    """Return the GPU resources of a job on one node (as `resources`), from its record after the name.

    A detailed record has consecutive Nodes= … GRES= groups. Text after them may come from the user.
    """
    row = _JOB_RESOURCES.search(record)
    part = _GIVEN.search(record, row.end() if row else 0)
    found: list[Resource] = []
    while part:
        if node in hostnames(part.group(1)):
            found += resources(part.group(2) or "")
        part = _GIVEN.match(record, part.end())
    return found


def resources(text: str) -> list[Resource]:
    """Parse the GPU resources of a Gres, GresUsed or GRES value."""
    found = []
    for name, counted, detail in _RESOURCE.findall(text):
        if name not in _GPU_RESOURCES:
            continue
        last = counted.rpartition(":")[2]
        indexes = numbers(detail[len("IDX:") :]) if detail.startswith("IDX:") else None
        count = int(last) if last.isdigit() else len(indexes or ()) or 1
        found.append((name, count, indexes))
    return found


def numbers(text: str) -> tuple[int, ...] | None:
    """Parse 0-1,3 as numbers, or return None for anything else, such as N/A."""
    values = [number for part in text.split(",") for number in _range(part) or (-1,)]
    return None if -1 in values else tuple(values)


def _range(text: str) -> range | None:
    """Parse 0-3 or 5 as a range, or return None for anything else and for too many numbers."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    first, last = int(match.group(1)), int(match.group(2) or match.group(1))
    return range(first, last + 1) if 0 <= last - first < _MOST_NUMBERS else None


def hostnames(text: str) -> set[str]:
    """Return the names of a host list such as rack[1-2]-gpu[01-03,7],login1, or none if it is invalid or too long."""
    names: set[str] = set()
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        names.update(_expand(part, _MOST_NUMBERS))
    return names


def _expand(name: str, most: int) -> list[str]:
    prefix, bracket, rest = name.partition("[")
    if not bracket:
        return [prefix]
    inside, _bracket, suffix = rest.partition("]")
    ends = _expand(suffix, most)
    found: list[str] = []
    for part in inside.split(","):
        among, width = _range(part) or (), len(part.partition("-")[0])
        if len(found) + len(among) * len(ends) > most:
            return []
        found += ["%s%0*d%s" % (prefix, width, number, end) for number in among for end in ends]
    return found


def _node_name(arguments: Sequence[str]) -> str:
    for index, word in enumerate(arguments):
        if word == "-N" and index + 1 < len(arguments):
            return arguments[index + 1]
        if word.startswith("-N"):
            return word[2:]
    return os.uname().nodename.partition(".")[0]
