# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drain the GPUs of a host and restore its clients.

Clients are custom commands, a Slurm node and systemd units. Every step is recorded before it is taken (record.py). If a
step fails, everything is restored at once. The next execution completes an interrupted one. No execution waits for
workloads. It lists them, and the next execution checks again.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

from ..errors import ApplyError, FleetError
from ..plan.transaction import DIRECTORY, locked
from ..printable import printable
from ..processes.command import TimeoutExpired, run_tool
from . import units
from .record import DrainError, Record
from .slurm import Node, Slurm, check_reason

# Time limit for the lock. Another execution holds it for seconds, plus the time of its custom commands.
LOCK_SECONDS = 60
# Time limit for one custom command. It equals the default wait of a drain.
HOOK_SECONDS = 3600


@dataclass
class Wanted:
    """The clients to drain."""

    services: Sequence[str] = ()
    slurm: bool = False
    #: Name of the Slurm node, or "" for the node of this host's slurmd.
    slurm_node: str = ""
    slurm_reason: str = "openfleet.gpu: clients taken off the GPUs"
    #: Jobs on the Slurm node that must end, or None for all jobs.
    slurm_jobs: Sequence[str] | None = None
    #: {"node": name, "cordoned_before": bool}. Only recorded here: the controller cordons the node.
    kubernetes: dict[str, Any] | None = None
    commands_before: Sequence[Any] = ()
    commands_after: Sequence[Any] = ()


@dataclass
class Done:
    """The results of an execution. If `dry` is true, they are predictions."""

    #: Steps taken, in order.
    steps: list[str] = field(default_factory=list)
    #: Workloads that still use the GPUs: {"kind", "id", "name", "user", "state", "who"}.
    waiting: list[dict[str, Any]] = field(default_factory=list)
    #: Messages about states that are kept because they were set by other programs or users.
    kept: list[str] = field(default_factory=list)
    #: Units that this host does not have.
    absent: list[str] = field(default_factory=list)
    #: Changed objects: (object, state before, state after).
    states: list[tuple[str, str, str]] = field(default_factory=list)
    #: The Kubernetes node that the controller must still restore.
    kubernetes: dict[str, Any] | None = None


def drain(wanted: Wanted, directory: str = DIRECTORY, dry: bool = False) -> Done:
    """Drain the requested clients.

    If a step fails, rolls everything back and raises a DrainError that reports both the failure and the rollback.
    """
    names = [units.unit_name(name) for name in wanted.services]
    reason = check_reason(wanted.slurm_reason) if wanted.slurm else ""
    with _held(directory, dry):
        drainer = _Drainer(Record.load(directory), Slurm(), dry)
        try:
            drainer.prepare(wanted)
            if wanted.kubernetes:
                drainer.note_kubernetes(wanted.kubernetes)
            if wanted.slurm:
                drainer.drain_node(wanted.slurm_node or drainer.own_node(), reason, wanted.slurm_jobs)
            if dry or not drainer.result.waiting:
                drainer.stop(names)
        except FleetError as error:
            if dry:
                raise
            raise _with_aftermath(error, directory) from error
        return drainer.result


def resume(directory: str = DIRECTORY, dry: bool = False, kubernetes_done: bool = False) -> Done:
    """Restore each recorded client.

    Raises DrainError with the clients that are still drained. If there is a Kubernetes node, the controller restores it
    and calls this function again with `kubernetes_done`. Only then do the commands after the drain run.
    """
    # Without a record, no lock is needed.
    if not Record.load(directory).path.exists():
        return Done()
    with _held(directory, dry):
        restorer = _Restorer(Record.load(directory), Slurm(), dry)
        if kubernetes_done:
            restorer.record.kubernetes = None
        restorer.all()
        if restorer.problems:
            raise _still_off(restorer)
        return restorer.result


class _Execution:
    """The common parts of a drain and a resume: the record and the result."""

    def __init__(self, record: Record, slurm: Slurm, dry: bool) -> None:
        self.record, self.slurm, self.dry = record, slurm, dry
        self.result = Done()

    def save(self) -> None:
        if not self.dry:
            self.record.save()

    def report_kubernetes(self, node: dict[str, Any], action: str) -> None:
        """In a dry run, report the action that the controller would take.

        In a dry run, the controller's own tasks are skipped.
        """
        if self.dry and not node["cordoned_before"]:
            states = ("schedulable", "cordoned") if action == "cordon" else ("cordoned", "schedulable")
            self.result.steps.append("%s Kubernetes node %s" % (action, node["node"]))
            self.result.states.append(("Kubernetes node %s" % node["node"], *states))

    def run(self, command: Any) -> None:
        self.result.steps.append("run %s" % _shown(command))
        if not self.dry:
            _run(command)


class _Drainer(_Execution):
    def prepare(self, wanted: Wanted) -> None:
        """Run the commands before the drain.

        After an interrupted drain, all of them run again.
        """
        if self.record.prepared:
            return
        if wanted.commands_before or wanted.commands_after:
            self.record.commands_after = list(wanted.commands_after)
            self.save()
            for command in wanted.commands_before:
                self.run(command)
            self.record.prepared = True
            self.save()

    def note_kubernetes(self, node: dict[str, Any]) -> None:
        # Keep the record of an earlier execution, because that execution may have cordoned the node.
        if not self.record.kubernetes:
            self.record.kubernetes = dict(node)
            self.save()
            self.report_kubernetes(node, "cordon")

    def own_node(self) -> str:
        """Return this host's name in Slurm.

        Ask slurmd, or read the record if the drain stopped slurmd.
        """
        recorded = next(iter(self.record.slurm), None)
        name = self.slurm.name_from_slurmd()
        if name and name != recorded:
            self._check_host(self.slurm.node(name))
        return name or recorded or os.uname().nodename.partition(".")[0]

    def _check_host(self, node: Node) -> None:
        """Raise DrainError if the Slurm node belongs to another host.

        A fake slurmd could report the node name of another host.
        """
        own = os.uname().nodename
        if node.host and node.host not in (own, own.partition(".")[0]):
            problem = "this node belongs to the host %s, but this host is %s" % (printable(node.host[:255]), own)
            cure = "Set gpu_drain_slurm_node to Slurm's name of this host (scontrol show nodes)."
            raise DrainError("Slurm node %s" % node.name, problem, cure)

    def drain_node(self, name: str, reason: str, awaited: Sequence[str] | None = None) -> None:
        node = self.slurm.node(name)
        own = self.record.slurm.get(name)
        if node.is_lost and not (node.is_out and own and node.reason == own):
            problem = "it is %s, so its jobs are unknown" % node.described()
            cure = "Return the node to service (check that slurmd runs here), or leave gpu_drain_slurm false for this host."
            raise DrainError("Slurm node %s" % name, problem, cure)
        after = node.state
        if not node.is_out:
            self.record.slurm[name] = reason
            self.save()
            self.result.steps.append("drain Slurm node %s" % name)
            after = node.state + "+DRAIN"
            if not self.dry:
                after = self.slurm.drain(name, reason).state
        elif not own or node.reason != own:
            self.result.kept.append(
                "Slurm node %s was already out of service and stays so: %s" % (name, node.described())
            )
            if name not in self.record.slurm:
                self.record.slurm[name] = None
                self.save()
        self.result.states.append(("Slurm node %s" % name, node.state, after))
        # List the jobs after the drain of the node, so that no job is missed.
        jobs = () if awaited == [] else self.slurm.jobs(name)
        self.result.waiting += [job for job in jobs if awaited is None or job["id"] in awaited]

    def stop(self, names: Sequence[str]) -> None:
        for name in names:
            target, affected = units.closure(name)
            if target.load == "not-found":
                self.result.absent.append(name)
                continue
            self._stop(target, affected)
            if self.result.waiting and not self.dry:
                return

    def _stop(self, target: units.Unit, affected: list[units.Unit]) -> None:
        running = [unit for unit in affected if unit.runs]
        new = [unit.name for unit in running if unit.name not in self.record.units]
        if new:
            self.record.units += new
            self.save()
        triggers = units.triggers_of(affected)
        if not self.dry:
            for unit in affected:
                if not unit.is_off and (unit.name in triggers or unit is target):
                    units.stop(unit.name)
        after = {unit.name: unit for unit in (units.show([unit.name for unit in affected]) if not self.dry else ())}
        for unit in running:
            now = after[unit.name].active if after else "inactive"
            self.result.states.append((unit.name, unit.active, now))
            if now != unit.active:
                self.result.steps.append("stop %s" % unit.name)
        for unit in after.values():
            if unit.active == "deactivating":
                self.result.waiting.append(_stopping(unit))
            elif unit.runs and unit.name == target.name:
                problem = "it restarted right after it was stopped"
                raise DrainError("unit %s" % unit.name, problem, "Find what starts it and stop that first.")


class _Restorer(_Execution):
    def __init__(self, record: Record, slurm: Slurm, dry: bool) -> None:
        super().__init__(record, slurm, dry)
        #: Failed restores, each with a command with which an administrator can restore the client.
        self.problems: list[tuple[DrainError, str]] = []

    def all(self) -> None:
        """Restore everything in reverse order. Continue after failures."""
        for name in units.starting_order(self.record.units):
            self._one(lambda name=name: self._start(name), "systemctl start %s" % name)
        for name, reason in list(self.record.slurm.items()):
            by_hand = "scontrol update NodeName=%s State=RESUME" % name
            self._one(lambda name=name, reason=reason: self._resume(name, reason), by_hand)
        self.result.kubernetes = self.record.kubernetes
        self.save()
        if self.record.kubernetes:
            self.report_kubernetes(self.record.kubernetes, "uncordon")
        if not self.problems and (self.dry or not self.record.kubernetes):
            self._after()

    def _one(self, restore: Callable[[], None], by_hand: str) -> None:
        try:
            restore()
        except DrainError as error:
            self.problems.append((error, by_hand))

    def _start(self, name: str) -> None:
        (unit,) = units.show([name])
        if unit.load == "not-found":
            self.result.absent.append(name)
        elif not unit.runs:
            if not self.dry:
                self._start_unit(unit)
            self.result.steps.append("start %s" % name)
            self.result.states.append((name, unit.active, "active"))
        self.record.units.remove(name)

    def _start_unit(self, unit: units.Unit) -> None:
        # systemd refuses to start a socket while its service runs. This can happen if a drain was interrupted after it
        # stopped only the socket.
        of_socket = unit.triggers if unit.name.endswith(".socket") else ()
        running = [service.name for service in (units.show(of_socket) if of_socket else ()) if service.runs]
        new = [name for name in running if name not in self.record.units]
        if new:
            self.record.units += new
            self.save()
        for name in running:
            units.stop(name)
        units.start(unit.name)
        for name in running:
            units.start(name)
        self.record.units = [name for name in self.record.units if name not in new]

    def _resume(self, name: str, reason: str | None) -> None:
        node = self.slurm.node(name)
        if node.is_out and reason and node.reason == reason:
            after = "+".join(word for word in node.state.split("+") if word != "DRAIN")
            if not self.dry:
                resumed = self.slurm.resume(name)
                after = resumed.state
                if resumed.is_lost:
                    self.result.kept.append("Slurm node %s is resumed, but slurmd does not respond: %s" % (name, after))
            self.result.steps.append("resume Slurm node %s" % name)
            self.result.states.append(("Slurm node %s" % name, node.state, after))
        elif node.is_out:
            self.result.kept.append("Slurm node %s stays out of service: %s" % (name, node.described()))
        del self.record.slurm[name]

    def _after(self) -> None:
        """Run the commands after the drain. Remove each completed command from the record.

        A retry starts with the command that failed.
        """
        while self.record.commands_after:
            command = self.record.commands_after[0]
            try:
                self.run(command)
            except DrainError as error:
                self.problems.append((error, _shown(command)))
                return
            del self.record.commands_after[0]
            self.save()
        self.record.prepared = False
        self.save()


def _stopping(unit: units.Unit) -> dict[str, Any]:
    who = "%s, which is stopping" % unit.name
    return {"kind": "unit", "id": unit.name, "name": unit.name, "user": None, "state": unit.active, "who": who}


def _with_aftermath(error: FleetError, directory: str) -> DrainError:
    """Roll back after a failure.

    Returns the error with the result of the rollback.
    """
    # Read the record from disk, because a step that could not be recorded was not taken.
    restorer = _Restorer(Record.load(directory), Slurm(), dry=False)
    try:
        restorer.all()
    except FleetError as rollback_error:
        problem = DrainError(rollback_error.where, rollback_error.problem, rollback_error.cure)
        restorer.problems.append((problem, "see %s" % restorer.record.path))
    if restorer.problems:
        after = str(_still_off(restorer))
    elif restorer.result.kubernetes:
        after = "The drain was rolled back, except the Kubernetes node %s." % restorer.result.kubernetes["node"]
    else:
        after = "The drain was rolled back." if restorer.result.steps else "Nothing was drained."
    return DrainError(error.where, error.problem, ("%s %s" % (error.cure, after)).strip())


def _still_off(restorer: _Restorer) -> DrainError:
    failures = "; ".join("%s (by hand: %s)" % (str(error).rstrip("."), by_hand) for error, by_hand in restorer.problems)
    cure = (
        "The rest is restored. %s keeps the record of the failures. Fix them and resume again, or restore by hand and resume "
        "again." % restorer.record.path
    )
    return DrainError("this host", "not everything could be restored: %s" % failures, cure)


@contextlib.contextmanager
def _held(directory: str, dry: bool) -> Iterator[None]:
    if dry:
        yield
        return
    # Use another lock than the layout's: a unit that this code starts may apply the layout, as gpu-layout.service does.
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(str(Path(directory) / "drain"), LOCK_SECONDS))
        except ApplyError as error:
            raise DrainError(
                error.where, error.problem.replace("changing the layout", "draining it"), error.cure
            ) from None
        yield


def _shown(command: Any) -> str:
    return command if isinstance(command, str) else " ".join(str(word) for word in command)


def _run(command: Any) -> None:
    """Run a command. Raises DrainError unless its exit status is 0.

    The command is a line for /bin/sh, or a list with a program and its arguments.
    """
    words = ["/bin/sh", "-c", command] if isinstance(command, str) else [str(word) for word in command]
    where = "the command %r" % _shown(command)
    try:
        done = run_tool(words, timeout_seconds=HOOK_SECONDS)
    except TimeoutExpired:
        problem, cure = "it did not exit within %d s" % HOOK_SECONDS, "Find out why it hangs, or shorten it."
        raise DrainError(where, problem, cure) from None
    except OSError as error:
        raise DrainError(where, "it cannot be run: %s" % error, "See gpu_drain_commands_before and _after.") from None
    if done.returncode != 0:
        output = " ".join((done.stderr or done.stdout).split())[-300:]
        raise DrainError(where, "it exited with status %d%s" % (done.returncode, ": " + output if output else ""))
