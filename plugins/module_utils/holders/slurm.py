# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the GPUs that Slurm has allocated on this host.

A job holds its allocated GPUs even while it does not use them. Slurm is queried only if slurmd runs. The node's record
shows whether any GPU is allocated. If so, the jobs' records show which GPUs. Formats:
https://slurm.schedmd.com/scontrol.html (show node and show job, with -d).
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import socket
import stat
import sys
import time
from pathlib import Path
from typing import Any, Sequence

from ..frozen import frozen
from ..model import Holder, Host
from ..processes.command import Run, ask
from .devices import Devices, Place
from .model import SLURM, SLURM_DAEMON, place_of, unknown
from .processes import Processes

#: Names of slurmd's executable. In Debian and Ubuntu, slurmd is a link to slurmd-wlm.
_SLURMD_FILES = (SLURM_DAEMON, "slurmd-wlm")
#: Generic resources for GPUs or parts of GPUs (https://slurm.schedmd.com/gres.html).
_GPU_RESOURCES = ("gpu", "mps", "shard")
#: Generic resource for units of leases. A job's lease holds the GPU, so these units add no holder.
QUOTA = "quota"
_FIELD = re.compile(r"(\S+?)=(\S*)")
#: A resource in a list: its name, an optional type and count, and details. Examples: gpu:h100:2(IDX:0-1),
#: gpu(IDX:0-1), gpu:8(S:0-1), quota(CNT:3).
_RESOURCE = re.compile(r"([A-Za-z_]\w*)((?::[^,(]+)*)(?:\(([^)]*)\))?(?:,|$)")
_JOB_STATES = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED,SIGNALING,STAGE_OUT"
#: The start of a job's record up to the job's name, and the list of resources on each node. Until Slurm 17.02, the
#: list's key is GRES_IDX.
_RECORD = re.compile(r"JobId=\d+ (?:ArrayJobId=\d+ ArrayTaskId=\S+ )?(?:HetJobId=\d+ HetJobOffset=\d+ )?JobName=")
#: The start of the record of an array's task whose id is the id of the array, and a task of squeue: id, array, number.
_ARRAY = re.compile(r"JobId=\d+ ArrayJobId=(\d+) ")
_TASK = re.compile(r"(\d+) (\d+) (\d+)")
_JOB_RESOURCES = re.compile(r"\sJOB_GRES=\S*")
#: The fields in a job's record that follow the account and WCKey, and the resources.
_STATE, _NEEDS = " JobState=", " MinCPUsNode="
#: Maximum number of values in a range of nodes or GPUs. slurm.conf(5) allows fewer nodes, and hosts have fewer GPUs.
_MOST_NUMBERS = 1 << 16
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_GIVEN = re.compile(r"\s+Nodes=(\S+) CPU_IDs=\S* Mem=\S*(?: GRES(?:_IDX)?=(\S*))?")
_NO_INDEX = sys.maxsize
#: A node name (slurm.conf(5)) that cannot be mistaken for an option.
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*$")
#: The role gpu_slurm writes this list of the devices in the order of Slurm's numbers
#: (module_utils/slurm/task_devices.py).
DEVICES = "etc/openfleet-gpu/slurm/devices"
#: The same list while the role is changing the devices, also in its first run (module_utils/slurm/record.py).
_RECORD_OF = "/var/lib/openfleet-gpu/slurm-%s.json"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
#: (name, count, indexes). The indexes are None if they are unknown.
Resource = "tuple[str, int, tuple[int, ...] | None]"


def slurm(host: Host, devices: Devices, processes: Processes, run: Run, deadline: float = math.inf) -> list[Holder]:
    """Return a holder for each GPU or GPU instance of each job on this node.

    Each job is queried separately, because a job's name may look like other jobs' records. If the queries do not end
    before `deadline` (time.monotonic()), the result has unknown holders.
    """
    # A machine may be several Slurm nodes, each with its own slurmd. Skip a slurmd in a container, because the
    # container is a holder.
    daemons = [
        daemon.pid
        for daemon in processes.named(SLURM_DAEMON)
        if any(processes.is_roots(daemon.pid, name) for name in _SLURMD_FILES)
        and not processes.in_container(daemon.pid)
    ]
    nodes = sorted(filter(NODE_NAME.match, {_node_name(processes.arguments(daemon)) for daemon in daemons}))
    return [holder for node in nodes for holder in _of_node(host, devices, processes, node, _Until(run, deadline))]


class _Until:
    """Run tools until a deadline."""

    def __init__(self, run: Run, deadline: float) -> None:
        self._run, self._deadline = run, deadline

    def __call__(self, command: list[str], **options: Any) -> Any:
        if time.monotonic() > self._deadline:
            raise NoAnswerError("there are too many jobs here to query in time")
        return self._run(command, **options)


def _of_node(host: Host, devices: Devices, processes: Processes, node: str, run: Run) -> list[Holder]:
    try:
        if not _may_connect():
            raise NoAnswerError("this process may not use the network")
        record = _query(run, "scontrol", "--details", "--oneliner", "show", "node", node)
        used = sum(count for _name, count, _indexes in resources(fields(record).get("GresUsed", "")))
        if not used:
            return []
        users = _listed(run, node)
        records = {job: _record(run, job) for job in sorted(users)}
        jobs = [Job(job, users[job], name_of(run, job), record) for job, record in records.items() if record]
    except FileNotFoundError as error:
        problem = "slurmd runs here, but %s is not installed" % error.filename
        return unknown(host.gpus, problem, "Install Slurm's client commands.", recorded=True)
    except NoAnswerError as error:
        problem = "slurmd runs here, and the GPUs of its jobs are not known: %s" % error
        return unknown(
            host.gpus,
            problem,
            "Check that slurmctld answers (scontrol ping) and how many jobs it has (squeue), then run again.",
            recorded=True,
        )
    order = _order(devices, host, fields(record), node)
    holders: list[Holder] = []
    for job in jobs:
        given = job.given_on(node)
        if given is None:
            # This job may have any GPU. Add an unknown holder for it, and also list the other jobs' GPUs.
            holders += unknown(
                host.gpus,
                "the GPUs of %s are not known" % job,
                "Cancel the job (scancel), or wait.",
                job=job.id,
                recorded=True,
            )
            continue
        used -= sum(count for _name, count, _indexes in given)
        holders += _of_job(host, processes, job, given, order) if given else ()
    if used > 0:
        # While a job starts or ends, its GPUs may be in only one of the node's and the job's records.
        holders += unknown(
            host.gpus,
            "Slurm has allocated %d more GPUs of this host than the records of its jobs show" % used,
            "Run again. If it persists, slurmctld counts GPUs of ended jobs: restart slurmctld. Running jobs continue.",
            recorded=True,
        )
    return holders


def _may_connect() -> bool:
    """Return whether this process may open network sockets.

    The collection's units may not (RestrictAddressFamilies=). Slurm's tools would then retry for 10 s.
    """
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()
    except OSError as error:
        return error.errno != errno.EAFNOSUPPORT
    return True


def _of_job(
    host: Host, processes: Processes, job: Job, given: Sequence[Resource], order: Sequence[Place | None] | None
) -> list[Holder]:
    who = str(job)
    places = _by_index(order, given) or _by_tasks(
        host, processes, job.id, sum(count for _name, count, _unused in given)
    )
    if places is None:
        what = ", ".join("%s:%d" % (name, count) for name, count, _indexes in given)
        who += ", which has %s of unknown GPUs" % what
        places = {(gpu.uuid, None) for gpu in host.gpus}
    return [Holder(uuid, instance, SLURM, who, user=job.user, job=job.id) for uuid, instance in places]


@frozen
class Job:
    """A job. `user` and `name` are from squeue, `record` is from scontrol.

    Users choose job names, which may look like the rest of a record with other users, nodes and GPUs. So the parser
    skips the name that squeue reported. Users also choose account and WCKey (without accounting), paths and comments,
    so these are not parsed.
    """

    id: str
    user: str
    #: Name as squeue prints it. squeue prints one line for each task of a job array.
    name: str
    record: str

    def __str__(self) -> str:
        return "Slurm job %s (%s) of user %s" % (self.id, first_line(self.name) or "no name", self.user)

    def given_on(self, node: str, names: Sequence[str] = _GPU_RESOURCES) -> list[Resource] | None:
        """Return the job's resources with these names on a node.

        Returns None if texts that users chose make the record ambiguous.
        """
        begins = _RECORD.match(self.record)
        rest = self.record[begins.end() :] if begins else ""
        lines = self.name.split("\n")
        for count in range(len(lines), 0, -1):
            name = "\n".join(lines[:count])
            if rest.startswith(name + " UserId="):
                _before, _state, behind = rest[len(name) :].partition(_STATE)
                return None if _STATE in behind else given_on(behind.partition(_NEEDS)[0], node, names)
        return None


class NoAnswerError(Exception):
    """A Slurm tool failed. The text has the reason."""


def _query(run: Run, *command: str) -> str:
    text, problem = ask(run, list(command))
    if text is None:
        raise NoAnswerError(problem)
    return text


def first_line(name: str) -> str:
    """Return the first line of a name, for messages."""
    return name.split("\n", 1)[0]


def job_gres(run: Run, node: str) -> list[tuple[str, str, Any]]:
    """Return (id, user, resources) of each job with GPUs or leases on a node.

    The resources are None if they are unknown. Raises NoAnswerError, and FileNotFoundError if Slurm's tools are missing.
    """
    found = []
    for job, user in sorted(_listed(run, node).items()):
        given = resources_of(run, job, user, node)
        if given is None or given:
            found.append((job, user, given))
    return found


def resources_of(run: Run, job: str, user: str, node: str) -> list[Resource] | None:
    """Return a job's GPU resources and units of leases on a node.

    The result has the format of `Job.given_on`. Raises NoAnswerError.
    """
    record = _record(run, job)
    names = (*_GPU_RESOURCES, QUOTA)
    return Job(job, user, name_of(run, job), record).given_on(node, names) if record else []


def _listed(run: Run, node: str) -> dict[str, str]:
    """Return the users of the jobs on a node, by job id."""
    command = ("squeue", "--all", "--noheader", "--nodelist", node, "--states", _JOB_STATES, "--format", "%A %u")
    listed = _query(run, *command)
    return dict(line.split(" ", 1) for line in listed.splitlines() if " " in line)


def name_of(run: Run, job: str) -> str:
    """Ask Slurm for the name of one job.

    Needs one query per job, because a name may be any text. Raises NoAnswerError.
    """
    try:
        return _query(run, "squeue", "--all", "--noheader", "--jobs", job, "--format", "%j").rstrip("\n")
    except NoAnswerError as error:
        if "Invalid job id" in str(error):
            return ""
        raise


def exact_id(run: Run, job: str) -> str:
    """Return the id with which Slurm's tools select only this job.

    One task of an array has the id of the array, which selects all tasks. Raises NoAnswerError.
    """
    listed = _query(run, "squeue", "--all", "--noheader", "--jobs", job, "--format", "%A %F %K")
    tasks = (_TASK.fullmatch(line) for line in listed.splitlines())
    return next(("%s_%s" % task.group(2, 3) for task in tasks if task and task.group(1) == job), job)


def _record(run: Run, job: str) -> str:
    show = ("scontrol", "--details", "--oneliner", "show", "job")
    try:
        record = _query(run, *show, job)
        array = _ARRAY.match(record)
        return _query(run, *show, exact_id(run, job)) if array and array.group(1) == job else record
    except NoAnswerError as error:
        if "Invalid job id" in str(error):
            # The job has ended since squeue listed it.
            return ""
        raise


def _by_index(order: Sequence[Place | None] | None, given: Sequence[Resource]) -> set[Place] | None:
    indexes = [index for _name, _count, known in given for index in known or (_NO_INDEX,)]
    if order is None or any(index >= len(order) for index in indexes):
        return None
    places = {order[index] for index in indexes}
    return None if None in places else {place for place in places if place}


def _by_tasks(host: Host, processes: Processes, job: str, count: int) -> set[Place] | None:
    """Return the devices in the job processes' CUDA_VISIBLE_DEVICES.

    Returns None if their number differs from `count`, the number of allocated devices. With AutoDetect=nvml, slurmd
    passes MIG devices to tasks by UUID.
    """
    uuids: set[str] = set()
    for pid in processes.seen:
        # Find the job's processes by cgroup, because any user's processes can have a job's environment variables.
        if processes.origin(pid).job == job:
            uuids |= set(processes.environment(pid).get("CUDA_VISIBLE_DEVICES", "").split(",")) - {""}
    places = {place_of(host, device) for device in uuids}
    if len(uuids) != count or None in places:
        return None
    return {place for place in places if place}


def _order(devices: Devices, host: Host, record: dict[str, str], node: str) -> Sequence[Place | None] | None:
    """Return the GPUs or GPU instances in Slurm's order, or None if it is unknown.

    The role gpu_slurm records this order. Without its record, Slurm numbers the whole GPUs in gres.conf by device node.
    With MIG, Slurm numbers MIG devices in an order that depends on how it detected them.
    """
    types = _types(record.get("Gres", ""))
    for read in (_listed_devices, _recorded_devices):
        listed = read(node)
        if listed and [kind for kind, _uuid in listed] == types:
            return [place_of(host, uuid) for _kind, uuid in listed]
    order = devices.in_minor_order()
    if any(gpu.mig.enabled for gpu in host.gpus) or not len(types) == len(host.gpus) == len(order):
        return None
    return [(gpu.uuid, None) for gpu in order]


def _types(gres: str) -> list[str]:
    """Return the type of each device of gres/gpu, by number."""
    found: list[str] = []
    for name, counted, _detail in _RESOURCE.findall(gres):
        if name == "gpu":
            *types, last = counted[1:].split(":")
            found += ["".join(types)] * (int(last) if last.isdigit() else 1)
    return found


def _listed_devices(node: str) -> list[tuple[str, str]]:
    """Return type and UUID of each of the node's devices, by Slurm's number.

    They come from the file that root wrote since the last boot. Returns an empty list if there is no such file.
    """
    try:
        path = Path("/", DEVICES)
        status = path.stat()
        boot = Path(_BOOT_ID).read_text(encoding="utf-8").strip()
        rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return []
    if (
        status.st_uid
        or stat.S_IMODE(status.st_mode) & 0o022
        or ["boot", boot] not in rows
        or ["node", node] not in rows
    ):
        return []
    return [(row[1], row[2]) for row in rows if len(row) == 3 and row[0].isdigit()]


def _recorded_devices(node: str) -> list[tuple[str, str]]:
    """Return type and UUID of each device from the role's record.

    Returns an empty list if no change has begun.
    """
    try:
        path = Path(_RECORD_OF % node)
        status = path.stat()
        record = json.loads(path.read_text(encoding="utf-8"))
        rows = record["devices"] if record["pending"] else ()
        listed = [(str(row["type"]), str(row["uuid"])) for row in rows or ()]
    except (OSError, ValueError, LookupError, TypeError):
        return []
    return [] if status.st_uid or stat.S_IMODE(status.st_mode) & 0o022 else listed


def fields(record: str) -> dict[str, str]:
    """Return the first value for each key in a record of Key=value fields."""
    values: dict[str, str] = {}
    for key, value in _FIELD.findall(record):
        values.setdefault(key, value)
    return values


def given_on(record: str, node: str, names: Sequence[str] = _GPU_RESOURCES) -> list[Resource]:
    """Return a job's resources on a node, in the format of `resources`.

    `record` is the part of the job's record after the name. A detailed record has consecutive groups of Nodes= … GRES=.
    The text after these groups may come from the user.
    """
    row = _JOB_RESOURCES.search(record)
    part = _GIVEN.search(record, row.end() if row else 0)
    found: list[Resource] = []
    while part:
        if node in hostnames(part.group(1)):
            found += resources(part.group(2) or "", names)
        part = _GIVEN.match(record, part.end())
    return found


def resources(text: str, names: Sequence[str] = _GPU_RESOURCES) -> list[Resource]:
    """Return the resources with these names in a Gres, GresUsed or GRES value."""
    found = []
    for name, counted, detail in _RESOURCE.findall(text):
        if name not in names:
            continue
        last = counted.rpartition(":")[2]
        indexes = numbers(detail[len("IDX:") :]) if detail.startswith("IDX:") else None
        # The details of a resource without device files have its number.
        counted = last or (detail[len("CNT:") :] if detail.startswith("CNT:") else "")
        count = int(counted) if counted.isdigit() else len(indexes or ()) or 1
        found.append((name, count, indexes))
    return found


def numbers(text: str) -> tuple[int, ...] | None:
    """Return the numbers in a text such as 0-1,3.

    Returns None for any other text, such as N/A.
    """
    values = [number for part in text.split(",") for number in _range(part) or (-1,)]
    return None if -1 in values else tuple(values)


def _range(text: str) -> range | None:
    """Return a range such as 0-3, or 5 for a single number.

    Returns None for any other text, and for a range that is too large.
    """
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    first, last = int(match.group(1)), int(match.group(2) or match.group(1))
    return range(first, last + 1) if 0 <= last - first < _MOST_NUMBERS else None


def hostnames(text: str) -> set[str]:
    """Return the names in a host list, as `expanded` does."""
    return set(expanded(text))


def expanded(text: str) -> list[str]:
    """Return the words in a list such as rack[1-2]-gpu[01-03,7],login1.

    Returns no words for a part that is invalid or too long.
    """
    return [name for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text) for name in _expand(part, _MOST_NUMBERS)]


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
