# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stop idle units, containers and Slurm jobs that hold GPUs.

The steps are: send a notice, wait while owners can keep their items, watch the GPUs again, and stop. A workload that
was idle for days may have started to work a minute ago. In case of doubt, an item is spared, and the reason is
reported.
"""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Sequence, Tuple

from ..drain import units
from ..errors import FleetError
from ..frozen import frozen
from ..holders.bare_handles import may_be_handed
from ..holders.peer_owner import ContainerOwner, UserOfUnitOwner
from ..keep.keeps import Keep, kept
from ..keep.notices import Record, utc
from ..leases.names import is_lease_unit
from ..model import Holder, Host
from ..processes.command import FAILURES, run_tool
from ..processes.peer import Owner, PeerError
from . import jobs, jupyter, tell, wording
from .checks import cannot_tell, held_by, in_words, spared, using, worked, young
from .watch import Measure, Watched, watch

#: A function that returns the host with telemetry, and all its holders.
Look = Callable[[], Tuple[Host, Sequence[Holder]]]

RUNTIMES = ("docker", "podman")
#: Time limit for a stop. Docker and Podman kill a container 10 s after the stop signal.
STOP_SECONDS = 60
_CONTAINER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


#: The reason that Slurm records for a cancelled job.
REASON = "openfleet.gpu: cancelled because it used none of its GPUs"


class ReclaimError(FleetError):
    """A unit or container could not be stopped."""


@frozen
class Policy:
    """The options of a run.

    Without `record`, no notices are sent, and this run stops idle items.
    """

    #: Items with a process that started within this period are ignored.
    grace_seconds: float = 0.0
    #: Seconds for which the GPUs are watched right before a stop.
    look_seconds: float = 0.0
    #: Whether this is a dry run, which changes nothing.
    dry: bool = False
    #: Jupyter servers, of which only idle kernels are shut down.
    jupyter: Sequence[Mapping[str, Any]] = ()
    record: Record | None = None
    #: Whether this run records notices. If not, the controller sends the notices and confirms them.
    records: bool = True
    #: Ways to notify owners (tell.py).
    ways: Sequence[str] = ()
    #: Name of the host in messages, and whether and where owners can keep their items.
    host: str = "this host"
    can_keep: bool = False
    keep_url: str = ""


@frozen
class Tools:
    """Functions that read and change the host."""

    look: Look
    #: Measures the work of GPUs and instances for some seconds.
    measure: Measure
    #: Returns the current keeps.
    keeps: Callable[[], Sequence[Keep]] = tuple
    stop: Callable[[Mapping[str, Any]], None] | None = None
    closure: Callable[..., Any] = units.closure
    #: Returns a Slurm job by its ID, or None if it has ended.
    job: Callable[[str], jobs.SlurmJob | None] = jobs.read_job


@dataclass
class _Done:
    """The result of a run."""

    noticed: list[dict[str, Any]] = field(default_factory=list)
    stopped: list[dict[str, Any]] = field(default_factory=list)
    spared: list[dict[str, Any]] = field(default_factory=list)

    def spare(self, item: Mapping[str, Any], why: str) -> None:
        self.spared.append({"kind": item["kind"], "name": item["name"], "why": why})


def reclaim(items: Sequence[Mapping[str, Any]], tools: Tools, policy: Policy) -> dict[str, Any]:
    """Send notices for idle items, and stop items whose notice period has ended.

    Returns `noticed`, `stopped` and `spared`. An item that cannot be checked or stopped is spared, and the run
    continues. Raises FleetError if the record cannot be used.
    """
    done = _Done()
    run = _Run(tools, policy)
    due = []
    for item in items:
        why, found = run.checked(item)
        if why:
            done.spare(item, why)
        elif policy.record is None:
            if not item.get("stop", True):
                done.spare(item, "the inventory does not allow to stop it")
            elif _wait_seconds(item):
                done.spare(item, "it may be paused, to be stopped after %s" % utc(run.now + _wait_seconds(item)))
            else:
                due.append(item)
        else:
            announced = policy.record.announced(item, run.now)
            after = None
            if announced is not None:
                after = max(announced + policy.record.period_seconds, run.now + _wait_seconds(item))
            if after is None:
                done.noticed.append(run.notice(item, found))
            elif not item.get("stop", True):
                done.spare(item, "notice sent %s; the inventory does not allow to stop it" % utc(announced or 0))
            elif run.now < after:
                done.spare(item, "notice sent %s, to be stopped after %s" % (utc(announced or 0), utc(after)))
            else:
                due.append(item)
    if policy.record is not None and not policy.dry:
        policy.record.keep_only(items)
        if done.noticed and policy.records:
            policy.record.add(done.noticed, run.now)
    # Watch all items at the same time, because watching takes minutes.
    whole = [item for item in due if not run.is_jupyter(item)]
    watched = dict(zip(map(id, whole), watch(whole, tools.measure, policy.look_seconds)))
    run.not_idle += [item for item in whole if watched[id(item)].why]
    for item in due:
        run.end(item, watched.get(id(item), Watched()), done)
    if policy.record is not None and not policy.dry:
        for item in run.not_idle:
            policy.record.remove(item)
    return {"noticed": done.noticed, "stopped": done.stopped, "spared": done.spared}


class _Run:
    """A run on one host."""

    def __init__(self, tools: Tools, policy: Policy) -> None:
        self._tools, self._policy = tools, policy
        self._servers = {_plain(server["name"]): server for server in policy.jupyter}
        self.now = time.time()
        #: Items that may not be idle. Their owners get a new notice before a stop.
        self.not_idle: list[Mapping[str, Any]] = []
        #: The holders of each item at its last check.
        self._seen: dict[int, Sequence[Holder]] = {}
        #: The holders of each item at the check before the last one.
        self._before: dict[int, Sequence[Holder]] = {}

    def is_jupyter(self, item: Mapping[str, Any]) -> bool:
        return _plain(item["name"]) in self._servers

    def checked(self, item: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Check an item.

        Returns (reason to spare it, {}), or ("", its row) if it is idle.
        """
        found: dict[str, Any] = {}
        try:
            host, holders = self._tools.look()
            mine = held_by(item, holders)
            count = using(mine)
            server = self._servers.get(_plain(item["name"]))
            # The Jupyter server continues to run, and its other kernels may be using the GPU.
            why = spared(item, host, holders, count, server is not None)
            if not why and server is None and id(item) in self._seen:
                why = worked(self._seen[id(item)], count, self._policy.look_seconds)
                self._before[id(item)] = self._seen[id(item)]
            self._seen[id(item)] = count
            if not why and server is None:
                least = max(self._policy.grace_seconds, item.get("idle_after_seconds") or 0.0)
                why = young(count, least) or (_along(item, self._tools.closure) if item["kind"] == "unit" else "")
            if not why and item["kind"] == "job":
                why, found["user"] = self._job(
                    item, max(self._policy.grace_seconds, item.get("idle_after_seconds") or 0.0)
                )
            if not why and item["kind"] == "unit" and server is None and all(map(may_be_handed, count)):
                why = "it only has the GPU open, and a user may have passed it the open file"
            if why:
                self.not_idle.append(item)
            else:
                keep = kept(item["kind"], item["name"], count, self._tools.keeps())
                why = "" if keep is None else "kept until %s by %s" % (utc(keep.until), keep.user)
            if not why and server is not None:
                found["kernels"] = self._kernels(item, server, dry=True)
                why = "" if found["kernels"] else "no kernel was idle for that long without a connected client"
            found["holders"] = sorted({str(one) for one in mine})
            found["places"] = [in_words(text, host) for text in item["gpus"]]
        except FleetError as error:
            why = str(error)
        return (why, {}) if why else ("", found)

    def notice(self, item: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
        """Notify the owner on the host, and return the row for the controller."""
        policy = self._policy
        uid = tell.owner_of(item)
        idle = item.get("quiet_seconds")
        row = {
            **{name: item.get(name) or "" for name in ("kind", "name", "runtime")},
            "gpus": list(item["gpus"]),
            "places": found["places"],
            "holders": found["holders"],
            "user": found.get("user") or tell.user_of(uid),
            "stop": item.get("stop", True),
            "idle_since": None if idle is None else self.now - idle,
            "stop_after": self.now + max(policy.record.period_seconds if policy.record else 0.0, _wait_seconds(item)),
            "jupyter": "kernels" in found,
            # Users cannot keep a job by name. Until the notice period ends, they decide whether to cancel it.
            "keep": item["name"] if policy.can_keep and item["kind"] != "job" else "",
            "told": [],
            "untold": [],
        }
        if not policy.dry:
            self._tell(row, uid, wording.notice(policy.host, row, policy.keep_url))
        return row

    def end(self, item: Mapping[str, Any], watched: Watched, done: _Done) -> None:
        """Check an item again and stop it. In a dry run, only report the stop."""
        why, found = (watched.why, {}) if watched.why else self.checked(item)
        if not why and id(item) in self._before:
            # This is no evidence of work, so the notice stays valid.
            before, after = self._before[id(item)], self._seen[id(item)]
            why = cannot_tell(watched.unmeasured, before, after, self._policy.look_seconds)
        uid = None if why else tell.owner_of(item)
        try:
            if not why and not self._policy.dry:
                if self.is_jupyter(item):
                    found["kernels"] = self._kernels(item, self._servers[_plain(item["name"])], dry=False)
                else:
                    (self._tools.stop or (lambda unwanted: _stop(unwanted, self._tools.closure)))(item)
        except FleetError as error:
            why = str(error)
        if why:
            done.spare(item, why)
            return
        row = {
            "kind": item["kind"],
            "name": item["name"],
            "runtime": item.get("runtime") or "",
            "gpus": list(item["gpus"]),
        }
        row.update(found, user=found.get("user") or tell.user_of(uid), told=[], untold=[])
        done.stopped.append(row)
        if self._policy.dry:
            return
        self._tell(row, uid, wording.stopped(self._policy.host, row))
        if self._policy.record is not None:
            # If this fails, the next run no longer lists the item and therefore removes the notice.
            with contextlib.suppress(FleetError):
                self._policy.record.remove(item)

    def _job(self, item: Mapping[str, Any], least_seconds: float) -> tuple[str, str]:
        """Return (why the job is spared or "", its user). Raises FleetError."""
        job = self._tools.job(item["name"])
        return ("it has ended", "") if job is None else (job.spared(least_seconds, self.now), job.user)

    def _tell(self, row: dict[str, Any], uid: int | None, text: str) -> None:
        for way in self._policy.ways:
            try:
                tell.tell(way, row, uid, text)
                row["told"].append(way)
            except FleetError as error:
                row["untold"].append(str(error))

    def _kernels(self, item: Mapping[str, Any], server: Mapping[str, Any], dry: bool) -> list[str]:
        return jupyter.shut_down(_jupyter(item, server), self._policy.grace_seconds, dry=dry)


def _jupyter(item: Mapping[str, Any], server: Mapping[str, Any]) -> jupyter.Server:
    """Return an item's Jupyter server.

    Raises ReclaimError if the server's processes are unknown.
    """
    try:
        owner: Owner = (
            UserOfUnitOwner(item["name"]) if item["kind"] == "unit" else ContainerOwner(_runtime(item), item["name"])
        )
    except PeerError as error:
        raise ReclaimError(
            "the Jupyter server of %s %s" % (item["kind"], item["name"]),
            "%s, so the state of its kernels is not known" % error,
            "Start it, or remove it from gpu_rightsize_jupyter.",
        ) from None
    return jupyter.Server(str(server["url"]), owner, str(server.get("token") or ""))


def _wait_seconds(item: Mapping[str, Any]) -> float:
    """Return how long the item must stay idle before it may be stopped."""
    return max(0.0, (item.get("stop_quiet_seconds") or 0.0) - (item.get("quiet_seconds") or 0.0))


def _plain(name: str) -> str:
    return name[: -len(".service")] if name.endswith(".service") else name


def _along(item: Mapping[str, Any], closure: Callable[..., Any]) -> str:
    """Return why a unit cannot be stopped alone, or "".

    Units that would start it again, such as its socket, do not count: they are stopped with it.
    """
    name = item["name"]
    if not is_lease_unit(name) and (units.unit_name(name) != name or not name.endswith(".service")):
        return "it is not a service"
    unit, found = closure(name)
    if not unit.runs:
        return "it is not running"
    if unit.bus_name:
        # Any user can pass an open GPU node to the unit (essential_units.py).
        return "it is on D-Bus (%s), where users can pass files to others" % unit.bus_name
    affected = [one.name for one in found if one.name not in (name, *units.triggers_of(found)) and one.runs]
    return "this would also stop %s" % ", ".join(affected) if affected else ""


def _stop(item: Mapping[str, Any], closure: Callable[..., Any]) -> None:
    """Stop a unit, container or job. Raises FleetError if it does not stop."""
    name = item["name"]
    if item["kind"] == "job":
        jobs.cancel(name, REASON)
        return
    if item["kind"] == "unit":
        _unit, found = closure(name)
        for one in found:
            if one.runs:
                units.stop(one.name)
        (now,) = units.show([name])
        if not now.is_off:
            raise ReclaimError("unit %s" % name, "it is %s" % now.active, "See `systemctl status %s`." % name)
        return
    where, runtime = "container %s" % name, _runtime(item)
    try:
        done = run_tool([runtime, "stop", "--", name], timeout_seconds=STOP_SECONDS)
    except FAILURES as error:
        raise ReclaimError(where, "it cannot be stopped: %s" % error, "Try %s stop %s." % (runtime, name)) from None
    if done.returncode != 0:
        output = " ".join((done.stderr or done.stdout).split())[:300]
        raise ReclaimError(where, "it cannot be stopped: %s" % output, "Try %s stop %s." % (runtime, name))


def _runtime(item: Mapping[str, Any]) -> str:
    """Return a container's engine.

    Raises ReclaimError if the container is not in root's Docker or Podman.
    """
    runtime = item.get("runtime") or ""
    if runtime not in RUNTIMES or not _CONTAINER_NAME.fullmatch(item["name"]):
        where = "container %s" % item["name"]
        raise ReclaimError(
            where, "it is not a container of docker or podman", "Stop it with the engine that started it."
        )
    return runtime
