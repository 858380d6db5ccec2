# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse a request on the lease socket. Every value in it is checked.

A request is one JSON object: {"op": "take", "shape": {...}, "gpus": N, "seconds": N or null, "wait": true or false,
"number": N or null}, {"op": "list"}, {"op": "end", "number": N}, {"op": "extend", "number": N, "seconds": N} or
{"op": "resize", "number": N, "shape": {...}}. A shape has `memory_bytes` and `sm_percent`, or `profile`.

The plugin of the kubelet sends {"op": "pool"}, {"op": "claims"}, {"op": "prepare", "claim": UID, "name": "NAMESPACE/NAME",
"shape": {...}, "uuids": [UUID, ...], "priority_class": NAME or ""} and {"op": "unprepare", "claim": UID}.

Prolog and Epilog of Slurm send {"op": "jobs"}, {"op": "job_begin", "job": ID, "user": USER, "units": N,
"partition": NAME} and {"op": "job_end", "job": ID}.
"""

from __future__ import annotations

import json
import re
from typing import Any, Mapping

from ..frozen import frozen
from ..layout.leases import MOST_HOURS
from ..layout.types import MOST_GPUS
from ..leases.model import LeaseError, Shape
from ..sizes import BYTES_PER_UNIT

COMMAND = "gpu-layout lease"
#: Minimum duration of a lease in seconds, and maximum memory of a quota in bytes.
LEAST_SECONDS, _MOST_BYTES = 60, 1 << 50
_PROFILE = re.compile(r"[0-9][0-9a-z.+]{0,31}", re.ASCII)
_KEYS = {
    "take": {"op", "shape", "gpus", "seconds", "wait", "number"},
    "list": {"op"},
    "end": {"op", "number"},
    "extend": {"op", "number", "seconds"},
    "resize": {"op", "number", "shape"},
    "pool": {"op"},
    "claims": {"op"},
    "prepare": {"op", "claim", "name", "shape", "uuids", "priority_class"},
    "unprepare": {"op", "claim"},
    "jobs": {"op"},
    "job_begin": {"op", "job", "user", "units", "partition"},
    "job_end": {"op", "job"},
}
#: Requests that only the kubelet's plugin may send.
OF_PODS = frozenset({"pool", "claims", "prepare", "unprepare"})
#: Requests that only Slurm's Prolog and Epilog may send.
OF_JOBS = frozenset({"jobs", "job_begin", "job_end"})
# Names of objects: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
_NAME = "[a-z0-9][a-z0-9.-]{0,252}"
_TEXTS = {
    "claim": re.compile(r"[0-9a-zA-Z-]{1,64}", re.ASCII),
    "name": re.compile("%s/%s" % (_NAME, _NAME), re.ASCII),
    "job": re.compile(r"[0-9]{1,10}", re.ASCII),
    "priority_class": re.compile("(?:%s)?" % _NAME, re.ASCII),
    "partition": re.compile(r"[^\s,/]{0,128}"),
    "user": re.compile(r"[^\s/]{1,64}"),
}
_UUID = re.compile(r"GPU-[0-9a-f-]{1,64}", re.ASCII)


@frozen
class Ask:
    """A valid request.

    `number` is the lease. For "take", it is the place in the queue that a client had before the service restarted.
    `seconds` is None if the request declares no duration. `claim` is the UID of a ResourceClaim, `name` its namespace and
    name, and `uuids` are its GPUs. `job` is the ID of a Slurm job, `user` its user, and `units` the number of its units.
    `priority_class` is what all pods of the claim have, or "", and `partition` is where the job runs.
    """

    operation: str
    shape: Shape = Shape()
    gpus: int = 1
    seconds: int | None = None
    wait: bool = False
    number: int | None = None
    claim: str = ""
    name: str = ""
    uuids: tuple[str, ...] = ()
    job: str = ""
    user: str = ""
    units: int = 0
    priority_class: str = ""
    partition: str = ""


def parse(line: bytes) -> Ask:
    """Return the request in a line. Raises LeaseError if the request is invalid."""
    try:
        data = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        data = None
    operation = data.get("op") if isinstance(data, dict) else None
    if not isinstance(operation, str) or set(data) != _KEYS.get(operation):
        raise LeaseError("the request", "it is invalid", "Use %s." % COMMAND)
    is_optional = operation == "take"
    return Ask(
        operation,
        _shape(data["shape"]) if "shape" in data else Shape(),
        _integer(data, "gpus", 1, MOST_GPUS) or 1,
        _integer(data, "seconds", LEAST_SECONDS, 3600 * MOST_HOURS, is_optional),
        data.get("wait") is True,
        _integer(data, "number", 1, 10**15 - 1, is_optional),
        _text(data, "claim"),
        _text(data, "name"),
        _uuids(data),
        _text(data, "job"),
        _text(data, "user"),
        _integer(data, "units", 1, 100) or 0,
        _text(data, "priority_class"),
        _text(data, "partition"),
    )


def _integer(data: Mapping[str, Any], name: str, least: int, most: int, is_optional: bool = False) -> int | None:
    value = data.get(name)
    if name not in data or (value is None and is_optional):
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise LeaseError("the request", "%s is not an integer from %d to %d" % (name, least, most), "Use %s." % COMMAND)
    return value


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name, "")
    if name in data and not (isinstance(value, str) and _TEXTS[name].fullmatch(value)):
        raise LeaseError("the request", "the %s is invalid" % name, "Send the value of the scheduler.")
    return str(value)


def _uuids(data: Mapping[str, Any]) -> tuple[str, ...]:
    values = data.get("uuids", [])
    valid = isinstance(values, list) and all(isinstance(value, str) and _UUID.fullmatch(value) for value in values)
    if not valid or len(set(values)) < len(values) or ("uuids" in data and not 1 <= len(values) <= MOST_GPUS):
        raise LeaseError("the request", "the UUIDs are invalid", "Send each GPU once.")
    return tuple(values)


def _shape(data: Any) -> Shape:
    if isinstance(data, dict) and set(data) == {"profile"}:
        profile = data["profile"]
        if isinstance(profile, str) and _PROFILE.fullmatch(profile):
            return Shape(profile=profile)
        raise LeaseError("the request", "the profile is invalid", "Write a MIG profile, such as 1g.10gb.")
    if not isinstance(data, dict) or set(data) != {"memory_bytes", "sm_percent"}:
        raise LeaseError("the request", "its size is invalid", "Use --memory and --sm, or --profile.")
    memory_bytes = _integer(data, "memory_bytes", BYTES_PER_UNIT["MiB"], _MOST_BYTES)
    sm_percent = _integer(data, "sm_percent", 1, 100)
    if memory_bytes is None or sm_percent is None or memory_bytes % BYTES_PER_UNIT["MiB"]:
        raise LeaseError("the request", "the memory is not a whole number of MiB", "Write it like 18GiB.")
    return Shape(memory_bytes, sm_percent)
