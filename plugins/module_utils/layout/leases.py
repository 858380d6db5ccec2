# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse and write the key `leases` of an entry in `gpu_layout`.

With this key, a host's accounts, a cluster's pods or Slurm's jobs can lease the free part of the entry's GPUs.
docs/leases.md describes it.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Mapping, Sequence

from ..frozen import frozen
from ..sizes import format_size
from .fields import group_name, size_bytes, word
from .profile_name import ProfileNameError, parse_profile_name
from .reader import Fields, Key, Node, quoted
from .types import MOST_GPUS, MOST_INSTANCES

#: Programs that can grant leases. An entry names one of them.
HOST, KUBERNETES, SLURM = ALLOCATORS = ("host", "kubernetes", "slurm")
#: Value of `online` for all leases.
ALL = "all"
#: Default and maximum of `hours`, and default and maximum of `count`.
HOURS, MOST_HOURS = 24, 8760
COUNT, MOST_COUNT = 16, 64

_MOST_GROUPS = 64
# https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/#priorityclass
_PRIORITY_CLASS = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_PARTITION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
KEYS = {
    "by": Key("by: host", required=True),
    "groups": Key("groups: [researchers]", required=True),
    "most": Key("most: {memory: 40GiB, sm_percent: 50}"),
    "profiles": Key("profiles: [1g.10gb, 2g.20gb]"),
    "hours": Key("hours: 24"),
    "count": Key("count: 16"),
    "unit": Key("unit: {memory: 8GiB, sm_percent: 10}", required=True),
    "online": Key("online: [inference]"),
}
_HOST_KEYS = {name: key for name, key in KEYS.items() if name != "unit"}
#: Keys of an entry with leases that a scheduler counts. Such a lease lasts until its pod or job ends.
_SCHEDULER_KEYS = {
    KUBERNETES: {name: KEYS[name] for name in ("by", "most", "online")},
    SLURM: {name: KEYS[name] for name in ("by", "most", "unit", "online")},
}
_MOST = {"memory": Key("memory: 40GiB"), "sm_percent": Key("sm_percent: 50")}
_UNIT_KEYS = {"memory": Key("memory: 8GiB", required=True), "sm_percent": Key("sm_percent: 10", required=True)}


@frozen
class Leases:
    """The leases that an entry offers.

    Members of the Unix `groups` may take leases. A lease lasts at most `hours`. An account holds at most `count` leases,
    and at most `memory_bytes` and `sm_percent` in all of them, summed over the GPUs. None means no limit.
    `profiles` are the MIG profiles on offer. With `by: kubernetes` or `by: slurm`, there are no groups, and `memory_bytes`
    and `sm_percent` limit one claim or job on one GPU. Slurm counts quotas in units of `unit_memory_bytes` and
    `unit_percent`. With the policy `colocate`, leases of the priority classes or partitions `online` are online, and all
    others are offline. None means that all are online.
    """

    by: str
    groups: tuple[str, ...]
    memory_bytes: int | None = None
    sm_percent: int | None = None
    profiles: tuple[str, ...] = ()
    hours: int = HOURS
    count: int = COUNT
    unit_memory_bytes: int = 0
    unit_percent: int = 0
    online: tuple[str, ...] | None = ()

    def is_online(self, name: str) -> bool:
        """Return whether a lease of this priority class or partition is online.

        `name` is "" for a lease without either.
        """
        return self.online is None or name in self.online


def parse(node: Node, sharing: str | None, limits: Mapping[str, str]) -> Leases | None:
    """Return the leases of an entry with this value of `sharing`.

    Returns None after reporting an error. `sharing` is None if it cannot be read. `limits` maps each value of `sharing`
    that can have leases to the key that limits them (`Form.lease_limit`).
    """
    allocator = node.value.get("by") if isinstance(node.value, Mapping) else None
    scheduler = allocator if isinstance(allocator, str) and allocator in _SCHEDULER_KEYS else None
    fields = node.fields(_SCHEDULER_KEYS[scheduler] if scheduler else _HOST_KEYS)
    if fields is None:
        return None
    if sharing is not None:
        _check_sharing(node, fields, sharing, limits, scheduler)
    # Use Any, because an invalid value is None. The parser then discards the result.
    read: Callable[..., Any] = fields.read
    memory_bytes, sm_percent = read(
        "most", lambda field: _most(field, 100 if scheduler else 100 * MOST_GPUS), (None, None)
    )
    unit_memory_bytes, unit_percent = read("unit", _unit, (0, 0))
    for limit, unit in ((memory_bytes, unit_memory_bytes), (sm_percent, unit_percent)):
        if limit is not None and unit is not None and limit < unit:
            fields["most"].report("it is less than one unit", "Allow at least one unit.")
    return Leases(
        read("by", lambda field: field.choice(ALLOCATORS)),
        read("groups", _groups, ()),
        memory_bytes,
        sm_percent,
        read("profiles", _profiles, ()),
        read("hours", lambda field: field.integer(1, MOST_HOURS), HOURS),
        read("count", lambda field: field.integer(1, MOST_COUNT), COUNT),
        unit_memory_bytes,
        unit_percent,
        read("online", lambda field: _online(field, allocator), ()),
    )


def to_data(leases: Leases) -> dict[str, Any]:
    """Return the leases in their canonical form."""
    data: dict[str, Any] = {"by": leases.by}
    if leases.by == HOST:
        data["groups"] = list(leases.groups)
    most: dict[str, Any] = {}
    if leases.memory_bytes is not None:
        most["memory"] = format_size(leases.memory_bytes)
    if leases.sm_percent is not None:
        most["sm_percent"] = leases.sm_percent
    if most:
        data["most"] = most
    if leases.by == SLURM:
        data["unit"] = {"memory": format_size(leases.unit_memory_bytes), "sm_percent": leases.unit_percent}
    if leases.profiles:
        data["profiles"] = list(leases.profiles)
    if leases.hours != HOURS:
        data["hours"] = leases.hours
    if leases.count != COUNT:
        data["count"] = leases.count
    if leases.online != ():
        data["online"] = ALL if leases.online is None else list(leases.online)
    return data


def _check_sharing(node: Node, fields: Fields, sharing: str, limits: Mapping[str, str], scheduler: str | None) -> None:
    """Report keys that do not match the entry's `sharing`."""
    own = limits.get(sharing)
    if own is None:
        node.report(
            "sharing: %s has no leases" % sharing, "Set sharing: %s, or remove leases." % " or ".join(sorted(limits))
        )
        return
    if scheduler is not None:
        if own == "profiles":
            node.report(
                "%s cannot lease MIG instances yet" % scheduler.capitalize(),
                "Use sharing: vgpu, or leases of the host (by: host).",
            )
        return
    if own == "profiles" and "online" in fields:
        fields["online"].report("MIG instances are neither online nor offline", "Remove it.")
    if own == "profiles" and own not in fields:
        node.report("the key profiles is missing", "Add it, for example `%s`." % KEYS[own].example)
    for other, key in limits.items():
        if key != own and key in fields:
            fields[key].report(
                "the key %s belongs to sharing: %s" % (key, other),
                "Remove it. Leases with sharing: %s are limited by %s and count." % (sharing, own),
            )


def _most(node: Node, most_percent: int) -> tuple[int | None, int | None]:
    fields = node.fields(_MOST)
    if fields is None:
        return None, None
    if not node.value:
        node.report("it limits nothing", "Write it like `%s`, or remove it." % node.example)
    return (
        fields.read("memory", size_bytes),
        fields.read("sm_percent", lambda field: field.integer(1, most_percent)),
    )


def _unit(node: Node) -> tuple[int, int]:
    fields = node.fields(_UNIT_KEYS)
    if fields is None:
        return 0, 0
    # Use Any, because an invalid value is None. The parser then discards the result.
    read: Callable[..., Any] = fields.read
    return read("memory", size_bytes), read("sm_percent", lambda field: field.integer(1, 100))


def _online(node: Node, allocator: Any) -> tuple[str | None, ...] | None:
    """Return the names, or None for all leases and after an error."""
    if node.value == ALL:
        return None
    if allocator == SLURM:
        pattern, kind = _PARTITION, "partition"
    elif allocator == KUBERNETES:
        pattern, kind = _PRIORITY_CLASS, "priority class"
    else:
        node.report("leases of the host have no priority classes or partitions", "Write online: all, or remove it.")
        return None
    cure = "Write the name of a %s." % kind
    return _distinct(
        node.items(1, _MOST_GROUPS) or [], lambda each: word(each, pattern, "the name of a " + kind, cure), kind
    )


def _groups(node: Node) -> tuple[str | None, ...]:
    return _distinct(node.items(1, _MOST_GROUPS) or [], group_name, "group")


def _profiles(node: Node) -> tuple[str | None, ...]:
    return _distinct(node.items(1, MOST_INSTANCES) or [], _profile, "profile")


def _profile(node: Node) -> str | None:
    text = node.text()
    try:
        name = None if text is None else parse_profile_name(text)
    except ProfileNameError as error:
        node.report(error.problem, error.cure)
        return None
    if name is not None and text != name.gpu_instance:
        node.report("%s is a compute instance" % quoted(text), "Write %s." % name.gpu_instance)
        return None
    return text


def _distinct(nodes: Sequence[Node], read: Any, kind: str) -> tuple[str | None, ...]:
    """Return the values of the nodes, and report repeated ones."""
    values: list[str | None] = []
    for each in nodes:
        value = read(each)
        if value is not None and value in values:
            each.report("the %s %s is listed twice" % (kind, value), "List each %s once." % kind)
        values.append(value)
    return tuple(values)
