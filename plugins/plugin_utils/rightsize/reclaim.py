# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find idle units, containers and Slurm jobs that may be stopped. Pure.

All others are spared, with a reason. The module `reclaim` stops the idle ones after another check on their host.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from ...module_utils.holders.essential_units import is_essential
from ...module_utils.leases.names import is_lease_unit
from ..audit.holdings import using
from ..audit.ledger_model import Ledger
from ..audit.model import Audit, Finding
from ..audit.owner_totals import common
from ..audit.resting import least_stop_seconds
from ..audit.workload_model import Workload
from ..host_values import is_a
from .model import Reclaimable

_WORDS = ("idle", "held_without_process")
_STANDBY = "standby"
#: Globs for units that are never stopped: services that hold GPUs for other processes, and interactive sessions.
_NEVER = (
    "init.scope", "user@*", "session-*", "*.slice", "nvidia-*", "dcgm*", "slurm*", "kubelet*", "k3s*", "docker*",
    "containerd*", "crio*", "podman*", "libvirtd*", "gpu-layout*", "gpu-exporter*", "openfleet*", "ssh*", "dbus*", "systemd-*",
)  # fmt: skip
#: Globs for containers that are never stopped.
_NEVER_CONTAINERS = (
    "*dcgm*",
    "*exporter*",
    "*device-plugin*",
    "*feature-discovery*",
    "*gpu-operator*",
    "nvidia-*",
    "openfleet*",
)
#: Container engines that can stop a container by name.
RUNTIMES = ("docker", "podman")
_CONTAINER = re.compile(r"(?:(\S+) )?container (\S+)")
_JOB_ID = re.compile(r"[0-9]{1,12}")
#: A Slurm job in the list of holders' names. Unit names have no blanks.
_JOB = re.compile(r"job ([0-9]{1,12})")
#: A container ID, which replaces an unknown container name.
UNNAMED = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True)
class Bounds:
    """Limits for stopping holders.

    `grace_seconds` is the minimum quiet time and the minimum age of a holder. None means the audit's limit: the quiet
    time after which it reports the holder as idle. In any case, a holder must be at least as old as that. `exempt` has
    globs for units (with or without `.service`), containers, users and hosts whose holders are never stopped. `standby`
    has such globs for holders that may be stopped even with the verdict standby. `jobs` says what happens to Slurm
    jobs: "spare", "notify" or "cancel".
    """

    grace_seconds: float | None = None
    exempt: Sequence[str] = ()
    standby: Sequence[str] = ()
    jobs: str = "spare"


def reclaimable(audit: Audit, states: Mapping[str, Mapping[str, Any]], bounds: Bounds) -> tuple[Reclaimable, ...]:
    """Return all holders that are idle or on standby, sorted by waste.

    A holder is spared if it also holds a GPU in use. A holder that started within the grace period is spared as well,
    because the earlier quiet time is another holder's.
    """
    found = {_place(one): one for one in audit.findings if one.holding.subject.kind in ("gpu", "mig_instance")}
    made = []
    workloads = _workloads(audit.ledger)
    for host in sorted(states):
        held: dict[str, list[tuple[Finding | None, Mapping[str, Any], str]]] = defaultdict(list)
        for where, place, row in _holders(host, states[host]):
            held[_holder_name(row, bounds)].append((found.get(place), row, where))
        for name, rows in sorted(held.items()):
            if any(one and one.verdict.word in (*_WORDS, _STANDBY) for one, _row, _where in rows):
                one = _one(host, name, rows, bounds, audit.made_at_seconds)
                made.append(_with_owner(one, rows, workloads))
    return tuple(sorted(made, key=lambda one: (bool(one.spared), -(one.waste_per_month or 0.0), one.host, one.name)))


def _workloads(book: Ledger) -> dict[str, set[Workload]]:
    """Return the ledger's current workloads, by the finding's ID."""
    found: dict[str, set[Workload]] = defaultdict(set)
    for row in book.rows:
        if row.owner and row.gpus:
            found[row.finding].add(row.owner)
    return found


def _with_owner(
    item: Reclaimable,
    rows: Sequence[tuple[Finding | None, Mapping[str, Any], str]],
    workloads: Mapping[str, set[Workload]],
) -> Reclaimable:
    """Return the item with its owner.

    On a shared GPU, its workload is the one with its name, or else with its user. If several match, only the texts that
    they share are known.
    """
    shared = {one for finding, _row, _where in rows if finding for one in workloads.get(finding.id, ())}
    users = {str(row.get("user")) for _finding, row, _where in rows if row.get("user")}
    named = [one for one in shared if one.name == item.name]
    of_user = [one for one in shared if one.user in users]
    matching = named or of_user or list(shared)
    return dataclasses.replace(
        item,
        user=common(one.owner for one in matching),
        team=common(one.team for one in matching),
        contact=common(one.contact for one in matching),
    )


def _holder_name(row: Mapping[str, Any], bounds: Bounds) -> str:
    """Return the name of a unit or container, or a Slurm job if jobs are notified."""
    job = str(row.get("job") or "")
    if bounds.jobs != "spare" and _JOB_ID.fullmatch(job):
        return "job %s" % job
    return str(row.get("unit_or_container") or "")


def _place(finding: Finding) -> tuple[str, str, str]:
    return finding.holding.subject.place


def _holders(host: str, state: Mapping[str, Any]):
    """Yield (place as text, place, holder).

    For a GPU with instances, yields the instances' holders and not the GPU's.
    """
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
    # Ignore GPUs of which the holder only has the device node open. It does not work there, so they must not prevent
    # its stop.
    holders = [row for _one, row, _where in rows]
    counted = set(map(id, using(holders)))
    used = [row for row in rows if id(row[1]) in counted]
    findings = [one for one, _row, _where in used]
    quiet = min((one.holding.quiet.seconds if one and one.holding.quiet else 0.0) for one in findings)
    wasted = {one.id: one.verdict.waste_per_month for one in findings if one and one.verdict.waste_per_month}
    container, job = _CONTAINER.fullmatch(name), _JOB.fullmatch(name)
    named = container.group(2) if container else job.group(1) if job else name
    found = Reclaimable(
        host,
        "container" if container else "job" if job else "unit" if name else "process",
        named or "; ".join(sorted({str(row.get("who")) for row in holders})),
        (container.group(1) or "") if container else "",
        tuple(sorted({where for _one, _row, where in used})),
        quiet,
        tuple(sorted({str(row.get("who")) for row in holders})),
        sum(wasted.values()) if wasted else None,
        idle_after_seconds=max((one.verdict.idle_after_seconds or 0.0 for one in findings if one), default=0.0),
        stop_quiet_seconds=(
            max((least_stop_seconds(one.holding) for one in findings if one), default=0.0)
            if bounds.grace_seconds is None
            else 0.0
        ),
        stop=not job or bounds.jobs == "cancel",
        rest_watts=_rest_watts([one for one in findings if one]),
    )
    starts = [row["started_seconds"] for _one, row, _where in used if row.get("started_seconds") is not None]
    began = max(starts, default=None)
    age = None if began is None else now_seconds - began
    return dataclasses.replace(found, spared=_spared(found, findings, holders, bounds, age))


def _rest_watts(findings: Sequence[Finding]) -> dict[str, float]:
    """Return the power at rest, by UUID, of GPUs whose instances are held."""
    quiets = {
        one.holding.subject.gpu_uuid: one.holding.quiet
        for one in findings
        if one.holding.subject.kind == "mig_instance"
    }
    return {uuid: quiet.rest_watts for uuid, quiet in quiets.items() if quiet and quiet.rest_watts is not None}


def _spared(found: Reclaimable, findings, holders, bounds: Bounds, age: float | None) -> str:
    if found.kind == "process":
        return "not a unit or container: an operator has to stop it"
    if any(row.get("kind") == "unknown" for row in holders):
        return "the holder of the GPU is unknown"
    if found.kind != "job" and any(row.get("job") for row in holders):
        return "a job of a scheduler: cancel it there"
    named = (
        found.name,
        re.sub(r"\.service$", "", found.name),
        found.host,
        *(str(row.get("user")) for row in holders if row.get("user")),
    )
    rule = _matching(bounds.exempt, named)
    if rule is not None:
        return "exempt (%s)" % rule
    kept = ""
    if found.kind != "job":
        kept = _kept_unit(found.name) if found.kind == "unit" else _kept_container(found, bounds)
    if kept:
        return kept
    if any(one is None or one.verdict.word not in (*_WORDS, _STANDBY) for one in findings):
        return "it also holds another GPU, which is in use or unknown"
    if any(one.verdict.word == _STANDBY for one in findings) and _matching(bounds.standby, named) is None:
        return "it waits for clients (standby)"
    # Check this holder's age too, because the quiet time may include an earlier holder's.
    grace = found.idle_after_seconds if bounds.grace_seconds is None else bounds.grace_seconds
    if found.quiet_seconds < grace:
        return "idle for %s; protected for %.0f h" % (_age(found.quiet_seconds), grace / 3600)
    least = max(grace, found.idle_after_seconds)
    if age is not None and age < least:
        return "started %s ago; protected for %.0f h" % (_age(age), least / 3600)
    return ""


def _age(seconds: float) -> str:
    """Return a duration in whole hours, rounded down.

    Rounded up, a message could show a limit that has not been reached.
    """
    hours = int(seconds // 3600)
    return "%d h" % hours if hours else "less than an hour"


def _kept_unit(name: str) -> str:
    """Return why a unit is never stopped, or ""."""
    if is_lease_unit(name):
        return ""
    if is_essential(name) or any(fnmatch.fnmatchcase(name, rule) for rule in _NEVER):
        return "it holds GPUs for other processes, or is an interactive session"
    if not name.endswith(".service"):
        return "not a service, so nothing would start it again"
    return "" if is_a("unit", name) else "not a valid name of a unit"


def _kept_container(found: Reclaimable, bounds: Bounds) -> str:
    """Return why a container is never stopped, or ""."""
    if found.runtime not in RUNTIMES:
        return "containers of %s have to be stopped where they were started" % (found.runtime or "this kind")
    if not is_a("container", found.name):
        return "not a valid name of a container"
    if any(fnmatch.fnmatchcase(found.name, rule) for rule in _NEVER_CONTAINERS):
        return "it monitors GPUs, or provides them to others"
    return "its name is unknown, and may be exempt" if bounds.exempt and UNNAMED.fullmatch(found.name) else ""


def _matching(rules: Sequence[str], names: Sequence[str]) -> str | None:
    return next((rule for rule in rules if any(fnmatch.fnmatchcase(name, rule) for name in names)), None)
