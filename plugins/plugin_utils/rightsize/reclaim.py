# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Units and containers that hold GPUs and use none: which may be stopped, and which are spared, and why. Pure.

Nothing is stopped here. What may be is looked at once more on its host, right before it is: the module reclaim.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from ...module_utils.essential_units import is_essential
from ..audit.holdings import using
from ..audit.model import Audit, Finding
from ..host_values import is_a
from .model import Reclaimable

_WORDS = ("idle", "held_without_process")
_STANDBY = "standby"
#: Units that hold GPUs for other processes, and interactive sessions: never stopped for being idle.
_NEVER = (
    "init.scope", "user@*", "session-*", "*.slice", "nvidia-*", "dcgm*", "slurm*", "kubelet*", "k3s*", "docker*",
    "containerd*", "crio*", "podman*", "libvirtd*", "gpu-layout*", "gpu-exporter*", "openfleet*", "ssh*", "dbus*", "systemd-*",
)  # fmt: skip
#: The same of containers.
_NEVER_CONTAINERS = (
    "*dcgm*",
    "*exporter*",
    "*device-plugin*",
    "*feature-discovery*",
    "*gpu-operator*",
    "nvidia-*",
    "openfleet*",
)
#: Whose containers a tool on the host can stop by what the holder's name tells.
RUNTIMES = ("docker", "podman")
_CONTAINER = re.compile(r"(?:(\S+) )?container (\S+)")
#: What a container is called where its name is not known: by its id.
UNNAMED = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True)
class Bounds:
    """What may be stopped at all.

    Nothing that was quiet for less than `grace_seconds`, and nothing that has run for less than that and than the time after
    which the audit calls it idle. None: the latter alone.
    Nothing that `exempt` matches: globs on units (with or without .service), containers, users and hosts. What the audit calls
    standby only where `standby`, such globs too, matches it.
    """

    grace_seconds: float | None = None
    exempt: Sequence[str] = ()
    standby: Sequence[str] = ()


def reclaimable(audit: Audit, states: Mapping[str, Mapping[str, Any]], bounds: Bounds) -> tuple[Reclaimable, ...]:
    """All that hold a GPU or instance that the audit calls idle or standby, the dearest first.

    One that holds another GPU that is in use is spared, and one that began within the grace: what was quiet before was something
    else.
    """
    found = {_place(one): one for one in audit.findings if one.holding.subject.kind in ("gpu", "mig_instance")}
    made = []
    for host in sorted(states):
        held: dict[str, list[tuple[Finding | None, Mapping[str, Any], str]]] = defaultdict(list)
        for where, place, row in _holders(host, states[host]):
            held[str(row.get("unit_or_container") or "")].append((found.get(place), row, where))
        for name, rows in sorted(held.items()):
            if any(one and one.verdict.word in (*_WORDS, _STANDBY) for one, _row, _where in rows):
                made.append(_one(host, name, rows, bounds, audit.made_at_seconds))
    return tuple(sorted(made, key=lambda one: (bool(one.spared), -(one.waste_per_month or 0.0), one.host, one.name)))


def _place(finding: Finding) -> tuple[str, str, str]:
    return finding.holding.subject.place


def _holders(host: str, state: Mapping[str, Any]):
    """(where in words, place, holder): of instances where a GPU has some, since only these tell who is in which."""
    for gpu in state.get("gpus") or ():
        instances = (gpu.get("mig") or {}).get("instances") or ()
        for instance in instances:
            for row in instance.get("holders") or ():
                if not row.get("watches"):
                    where = "%s %s" % (gpu["uuid"], instance["id"])
                    yield where, (host, str(gpu["uuid"]), str(instance["id"])), row
        for row in () if instances else gpu.get("holders") or ():
            if not row.get("watches"):
                yield str(gpu["uuid"]), (host, str(gpu["uuid"]), ""), row


def _one(host: str, name: str, rows: Sequence[tuple], bounds: Bounds, now_seconds: float) -> Reclaimable:
    # A process of the unit that only has another GPU's node open, or began to a minute ago, does nothing there: it spares none.
    holders = [row for _one, row, _where in rows]
    counted = set(map(id, using(holders)))
    used = [row for row in rows if id(row[1]) in counted]
    findings = [one for one, _row, _where in used]
    quiet = min((one.holding.quiet.seconds if one and one.holding.quiet else 0.0) for one in findings)
    wasted = {one.id: one.verdict.waste_per_month for one in findings if one and one.verdict.waste_per_month}
    container = _CONTAINER.fullmatch(name)
    found = Reclaimable(
        host,
        "container" if container else "unit" if name else "process",
        (container.group(2) if container else name) or "; ".join(sorted({str(row.get("who")) for row in holders})),
        (container.group(1) or "") if container else "",
        tuple(sorted({where for _one, _row, where in used})),
        quiet,
        tuple(sorted({str(row.get("who")) for row in holders})),
        sum(wasted.values()) if wasted else None,
        idle_after_seconds=max((one.verdict.idle_after_seconds or 0.0 for one in findings if one), default=0.0),
    )
    starts = [row["started_seconds"] for _one, row, _where in used if row.get("started_seconds") is not None]
    began = max(starts, default=None)
    age = None if began is None else now_seconds - began
    return dataclasses.replace(found, spared=_spared(found, findings, holders, bounds, age))


def _spared(found: Reclaimable, findings, holders, bounds: Bounds, age: float | None) -> str:
    if found.kind == "process":
        return "no unit or container: a person has to end it"
    if any(row.get("kind") == "unknown" for row in holders):
        return "who holds the GPU is not known"
    if any(row.get("job") for row in holders):
        return "a scheduler's: cancel it there"
    named = (
        found.name,
        re.sub(r"\.service$", "", found.name),
        found.host,
        *(str(row.get("user")) for row in holders if row.get("user")),
    )
    rule = _matching(bounds.exempt, named)
    if rule is not None:
        return "exempt (%s)" % rule
    kept = _kept_unit(found.name) if found.kind == "unit" else _kept_container(found, bounds)
    if kept:
        return kept
    if any(one is None or one.verdict.word not in (*_WORDS, _STANDBY) for one in findings):
        return "it holds another GPU too, which is in use or not known"
    if any(one.verdict.word == _STANDBY for one in findings) and _matching(bounds.standby, named) is None:
        return "it waits for clients (standby)"
    # What holds a GPU since yesterday did not rest on it for a week, whatever the GPU did.
    grace = found.idle_after_seconds if bounds.grace_seconds is None else bounds.grace_seconds
    if found.quiet_seconds < grace:
        return "idle for %s; protected for %.0f h" % (_age(found.quiet_seconds), grace / 3600)
    least = max(grace, found.idle_after_seconds)
    if age is not None and age < least:
        return "started %s ago; protected for %.0f h" % (_age(age), least / 3600)
    return ""


def _age(seconds: float) -> str:
    """Return a time in whole hours, rounded down: a rounded time could equal the limit that it has not reached."""
    hours = int(seconds // 3600)
    return "%d h" % hours if hours else "less than an hour"


def _kept_unit(name: str) -> str:
    """Return why a unit is never stopped; empty where it may be."""
    if is_essential(name) or any(fnmatch.fnmatchcase(name, rule) for rule in _NEVER):
        return "it holds GPUs for other processes, or is an interactive session"
    if not name.endswith(".service"):
        return "not a service: nothing would start it again"
    return "" if is_a("unit", name) else "no unit has such a name"


def _kept_container(found: Reclaimable, bounds: Bounds) -> str:
    """Return why a container is never stopped; empty where it may be."""
    if found.runtime not in RUNTIMES:
        return "containers of %s are stopped where they were started" % (found.runtime or "this kind")
    if not is_a("container", found.name):
        return "no container has such a name"
    if any(fnmatch.fnmatchcase(found.name, rule) for rule in _NEVER_CONTAINERS):
        return "it watches GPUs, or gives them to others"
    return "its name is not known, and may be exempt" if bounds.exempt and UNNAMED.fullmatch(found.name) else ""


def _matching(rules: Sequence[str], names: Sequence[str]) -> str | None:
    return next((rule for rule in rules if any(fnmatch.fnmatchcase(name, rule) for name in names)), None)
