# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Slurm has given to jobs on this host, whether they use it just now or not.

Asked only where slurmd runs. The node's record says whether anything is given at all (one call, the usual case), the
jobs' records say what and to whom. Formats: https://slurm.schedmd.com/scontrol.html (show node, show job, with -d).
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
#: One resource in a list: name, then type or count, then what of it: gpu:h100:2(IDX:0-1), gpu(IDX:0-1), gpu:8(S:0-1).
_RESOURCE = re.compile(r"([A-Za-z_]\w*)((?::[^,(]+)*)(?:\(([^)]*)\))?(?:,|$)")
_JOB_STATES = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED,SIGNALING,STAGE_OUT"
#: The beginning of a job's record, up to its name; what it was given on some nodes (until Slurm 17.02 as GRES_IDX), and what goes
#: before that.
_RECORD = re.compile(r"JobId=\d+ (?:ArrayJobId=\d+ ArrayTaskId=\S+ )?(?:HetJobId=\d+ HetJobOffset=\d+ )?JobName=")
_JOB_RESOURCES = re.compile(r"\sJOB_GRES=\S*")
#: What stands in a record behind account and WCKey, and ahead of what the job was given; and what stands behind that.
_STATE, _NEEDS = " JobState=", " MinCPUsNode="
#: Of a range: more nodes than slurm.conf(5) allows, and indexes of more GPUs than any has.
_MOST_NUMBERS = 1 << 16
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_GIVEN = re.compile(r"\s+Nodes=(\S+) CPU_IDs=\S* Mem=\S*(?: GRES(?:_IDX)?=(\S*))?")
_NO_INDEX = sys.maxsize
#: A name as slurm.conf(5) has it, and no option of the tools that it is given to.
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*$")
#: (name, how many, their indexes or None where they are not said)
Resource = "tuple[str, int, tuple[int, ...] | None]"


def slurm(host: Host, devices: Devices, processes: Processes, run: Run, deadline: float = math.inf) -> list[Holder]:
    """A holder for each job of this node and each GPU or GPU instance that it was given.

    Each job is asked for by itself, for its name may look like the records of others. After `deadline` (of time.monotonic()) no
    further one is, and what jobs were given is unknown.
    """
    # One machine may be several nodes, each with a slurmd. What one in a container gives away, the container was given.
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
            raise NoAnswerError("there are so many jobs here that asking for them takes too long")
        return self._run(command, **options)


def _of_node(host: Host, devices: Devices, processes: Processes, node: str, run: Run) -> list[Holder]:
    try:
        record = _tell(run, "scontrol", "--details", "--oneliner", "show", "node", node)
        used = sum(count for _name, count, _indexes in resources(fields(record).get("GresUsed", "")))
        if not used:
            return []
        listed = _tell(
            run, "squeue", "--all", "--noheader", "--nodelist", node, "--states", _JOB_STATES, "--format", "%A %u"
        )
        users = dict(line.split(" ", 1) for line in listed.splitlines() if " " in line)
        records = {job: _record(run, job) for job in sorted(users)}
        given_jobs = [Job(job, users[job], name_of(run, job), record) for job, record in records.items() if record]
    except FileNotFoundError as error:
        problem = "slurmd runs here, but %s is not installed" % error.filename
        return unknown(host.gpus, problem, "Install Slurm's client commands.")
    except NoAnswerError as error:
        problem = "slurmd runs here, and what it gave to jobs is not known: %s" % error
        return unknown(
            host.gpus,
            problem,
            "See whether slurmctld answers here (scontrol ping) and how many jobs it has (squeue), then run again.",
        )
    order = _order(devices, host.gpus, fields(record))
    holders: list[Holder] = []
    for job in given_jobs:
        given = job.given_on(node)
        if given is None:
            # Whatever its record says: it may have any, and hides none that others have.
            holders += unknown(
                host.gpus, "what %s was given is not known" % job, "Cancel it (scancel), or wait.", job=job.id
            )
            continue
        used -= sum(count for _name, count, _indexes in given)
        holders += _of_job(host, processes, job, given, order) if given else ()
    if used > 0:
        # A job that is just given its GPUs, or just ends, shows in one record and not yet, or no more, in the other.
        holders += unknown(
            host.gpus, "Slurm has given %d more GPUs of this host than its jobs say they have" % used, "Run again."
        )
    return holders


def _of_job(
    host: Host, processes: Processes, job: Job, given: Sequence[Resource], order: Sequence[Gpu] | None
) -> list[Holder]:
    who = str(job)
    places = _by_index(order, given) or _by_tasks(host, processes, job.id, sum(count for _name, count, _ in given))
    if places is None:
        what = ", ".join("%s:%d" % (name, count) for name, count, _indexes in given)
        who += ", which has %s; which of the GPUs that is cannot be told" % what
        places = {(gpu.uuid, None) for gpu in host.gpus}
    return [Holder(uuid, instance, SLURM, who, user=job.user, job=job.id) for uuid, instance in places]


@frozen
class Job:
    """A job as Slurm tells it: `user` and `name` by squeue, `record` by scontrol.

    Its user chooses the name, and may write into it what looks like the rest of a record: another user, other nodes and GPUs. So
    the record is read from behind the name that squeue tells. Account and WCKey are his to choose where no accounting says which
    there are, and so are paths and comments: they are not among what is read for what it was given.
    """

    id: str
    user: str
    #: As squeue printed it, with more lines where the job is one of an array.
    name: str
    record: str

    def __str__(self) -> str:
        return "Slurm job %s (%s) of user %s" % (self.id, first_line(self.name) or "no name", self.user)

    def given_on(self, node: str) -> list[Resource] | None:
        """The GPU resources of the job on one node; None where its record cannot be told from what its user wrote into it."""
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
    """A tool of Slurm failed; the text says how."""


def _tell(run: Run, *command: str) -> str:
    text, problem = ask(run, list(command))
    if text is None:
        raise NoAnswerError(problem)
    return text


def first_line(name: str) -> str:
    """Return a name as messages show it."""
    return name.split("\n", 1)[0]


def name_of(run: Run, job: str) -> str:
    """Return what squeue says of a job's name and nothing else: it may be anything. Raises NoAnswerError."""
    try:
        return _tell(run, "squeue", "--all", "--noheader", "--jobs", job, "--format", "%j").rstrip("\n")
    except NoAnswerError as error:
        if "Invalid job id" in str(error):
            return ""
        raise


def _record(run: Run, job: str) -> str:
    try:
        return _tell(run, "scontrol", "--details", "--oneliner", "show", "job", job)
    except NoAnswerError as error:
        if "Invalid job id" in str(error):
            # It has ended and was forgotten since squeue named it.
            return ""
        raise


def _by_index(order: Sequence[Gpu] | None, given: Sequence[Resource]) -> set[Place] | None:
    indexes = [index for _name, _count, found in given for index in found or (_NO_INDEX,)]
    if order is None or any(index >= len(order) for index in indexes):
        return None
    return {(order[index].uuid, None) for index in indexes}


def _by_tasks(host: Host, processes: Processes, job: str, count: int) -> set[Place] | None:
    """What the job's processes were told to use, if that is as many devices as the job has; None if not.

    Where slurmd found the devices by itself (AutoDetect=nvml) it names MIG devices to the tasks by UUID.
    """
    told: set[str] = set()
    for pid in processes.seen:
        # Slurm puts its jobs into cgroups; a variable of the environment can be set by any user.
        if processes.origin(pid).job == job:
            told |= set(processes.environment(pid).get("CUDA_VISIBLE_DEVICES", "").split(",")) - {""}
    places = {place_of(host, device) for device in told}
    if len(told) != count or None in places:
        return None
    return {place for place in places if place}


def _order(devices: Devices, gpus: tuple[Gpu, ...], record: dict[str, str]) -> Sequence[Gpu] | None:
    """The GPUs as Slurm counts them, or None where that cannot be told.

    Slurm numbers what gres.conf lists, whole GPUs in the order of their nodes. With MIG the list holds MIG devices,
    in an order that depends on how they were found.
    """
    listed = sum(count for name, count, _ in resources(record.get("Gres", "")) if name == "gpu")
    order = devices.in_minor_order()
    if any(gpu.mig.enabled for gpu in gpus) or not listed == len(gpus) == len(order):
        return None
    return order


def fields(record: str) -> dict[str, str]:
    """The first value of each Key=value of a record."""
    found: dict[str, str] = {}
    for key, value in _FIELD.findall(record):
        found.setdefault(key, value)
    return found


def given_on(record: str, node: str) -> list[Resource]:
    """The GPU resources of a job (as `resources`) on one node, from its record behind its name.

    A detailed record has one Nodes= … GRES= for each, all in a row; what follows them may be its user's to choose.
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
    """The GPU resources of a Gres, GresUsed or GRES value."""
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
    """0-1,3 as numbers; None for anything else, as N/A."""
    found = [number for part in text.split(",") for number in _range(part) or (-1,)]
    return None if -1 in found else tuple(found)


def _range(text: str) -> range | None:
    """0-3 or 5 as numbers; None for anything else, and for very many."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    first, last = int(match.group(1)), int(match.group(2) or match.group(1))
    return range(first, last + 1) if 0 <= last - first < _MOST_NUMBERS else None


def hostnames(text: str) -> set[str]:
    """The names in a Slurm host list such as rack[1-2]-gpu[01-03,7],login1; none of what is no such list, or names very many."""
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
