# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes clients off a host's GPUs and brings them back: own commands, a Slurm node, systemd units.

Everything is recorded before it is taken (record.py). An execution that fails brings all back at once; one that was
cut off leaves it to the next. Waiting is not done here: an execution says who is awaited, and the next one looks again.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

from ..command import TimeoutExpired, run_tool
from ..errors import ApplyError, FleetError
from ..printable import printable
from ..transaction import DIRECTORY, locked
from . import units
from .record import DrainError, Record
from .slurm import Node, Slurm, check_reason

#: Other executions take seconds, or as long as the commands given to them.
LOCK_SECONDS = 60
#: For one of the site's own commands: as long as a drain waits by default.
HOOK_SECONDS = 3600


@dataclass
class Wanted:
    """What is to be taken off."""

    services: Sequence[str] = ()
    slurm: bool = False
    #: Empty: what slurmd on this host is.
    slurm_node: str = ""
    slurm_reason: str = "openfleet.gpu: clients taken off the GPUs"
    #: {"node": name, "cordoned_before": bool}: to be recorded; it is cordoned from elsewhere.
    kubernetes: dict[str, Any] | None = None
    commands_before: Sequence[Any] = ()
    commands_after: Sequence[Any] = ()


@dataclass
class Done:
    """What an execution did, or with `dry` would do."""

    #: Each thing taken off or brought back, in order.
    steps: list[str] = field(default_factory=list)
    #: Who still uses the GPUs: {"kind", "id", "name", "user", "state", "who"}.
    waiting: list[dict[str, Any]] = field(default_factory=list)
    #: What stays as others left it, in words.
    kept: list[str] = field(default_factory=list)
    #: Units that this host does not have.
    absent: list[str] = field(default_factory=list)
    #: (what, state before, state after)
    states: list[tuple[str, str, str]] = field(default_factory=list)
    #: The Kubernetes node that is still to be brought back, from elsewhere.
    kubernetes: dict[str, Any] | None = None


def drain(wanted: Wanted, directory: str = DIRECTORY, dry: bool = False) -> Done:
    """Take off what is wanted. Where that fails, what was taken off is brought back; the FleetError says so."""
    names = [units.unit_name(name) for name in wanted.services]
    reason = check_reason(wanted.slurm_reason) if wanted.slurm else ""
    with _held(directory, dry):
        taking = _Taking(Record.load(directory), Slurm(), dry)
        try:
            taking.prepare(wanted)
            if wanted.kubernetes:
                taking.note_kubernetes(wanted.kubernetes)
            if wanted.slurm:
                taking.drain_node(wanted.slurm_node or taking.own_node(), reason)
            if dry or not taking.told.waiting:
                taking.stop(names)
        except FleetError as error:
            if dry:
                raise
            raise _with_aftermath(error, directory) from error
        return taking.told


def resume(directory: str = DIRECTORY, dry: bool = False, kubernetes_done: bool = False) -> Done:
    """Bring back what is recorded, each thing for itself. Raises DrainError with all that is still off.

    The Kubernetes node is left to a controller that can reach the cluster, which then calls again with `kubernetes_done`; the
    commands after the drain wait for that.
    """
    # Without a record there is nothing to wait for, so no lock is taken.
    if not Record.load(directory).path.exists():
        return Done()
    with _held(directory, dry):
        giving = _Giving(Record.load(directory), Slurm(), dry)
        if kubernetes_done:
            giving.record.kubernetes = None
        giving.all()
        if giving.problems:
            raise _still_off(giving)
        return giving.told


class _Drain:
    """What taking and giving back share: the record, the account, and whether all is only said."""

    def __init__(self, record: Record, slurm: Slurm, dry: bool) -> None:
        self.record, self.slurm, self.dry = record, slurm, dry
        self.told = Done()

    def save(self) -> None:
        if not self.dry:
            self.record.save()

    def say_kubernetes(self, node: dict[str, Any], what: str) -> None:
        """In a dry run: what others would do, for who does it there does not do dry runs."""
        if self.dry and not node["cordoned_before"]:
            states = ("schedulable", "cordoned") if what == "cordon" else ("cordoned", "schedulable")
            self.told.steps.append("%s Kubernetes node %s" % (what, node["node"]))
            self.told.states.append(("Kubernetes node %s" % node["node"], *states))

    def run(self, command: Any) -> None:
        self.told.steps.append("run %s" % _shown(command))
        if not self.dry:
            _run(command)


class _Taking(_Drain):
    def prepare(self, wanted: Wanted) -> None:
        """The commands before. One that was cut off runs again, and so do those before it."""
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
        # What an earlier drain found counts: by now it is that drain which has cordoned the node.
        if not self.record.kubernetes:
            self.record.kubernetes = dict(node)
            self.save()
            self.say_kubernetes(node, "cordon")

    def own_node(self) -> str:
        """What Slurm calls this host: slurmd knows. It may be among the units that a drain has stopped already."""
        recorded = next(iter(self.record.slurm), None)
        told = self.slurm.told_by_slurmd()
        if told and told != recorded:
            self._check_host(self.slurm.node(told))
        return told or recorded or os.uname().nodename.partition(".")[0]

    def _check_host(self, node: Node) -> None:
        """Whatever answers in slurmd's place may name any node: one of another host is not drained by that."""
        own = os.uname().nodename
        if node.host and node.host not in (own, own.partition(".")[0]):
            problem = "it is a node of the host %s, and this host is %s" % (printable(node.host[:255]), own)
            cure = "Say in gpu_drain_slurm_node what Slurm calls this host (scontrol show nodes)."
            raise DrainError("Slurm node %s" % node.name, problem, cure)

    def drain_node(self, name: str, reason: str) -> None:
        node = self.slurm.node(name)
        own = self.record.slurm.get(name)
        if node.is_lost and not (node.is_out and own and node.reason == own):
            problem = "it is %s, so that what runs on it is not known" % node.described()
            cure = "Bring the node back to Slurm (see whether slurmd runs here), or leave gpu_drain_slurm false for this host."
            raise DrainError("Slurm node %s" % name, problem, cure)
        after = node.state
        if not node.is_out:
            self.record.slurm[name] = reason
            self.save()
            self.told.steps.append("drain Slurm node %s" % name)
            after = node.state + "+DRAIN"
            if not self.dry:
                after = self.slurm.drain(name, reason).state
        elif not own or node.reason != own:
            self.told.kept.append("Slurm node %s is out of service already and stays so: %s" % (name, node.described()))
            if name not in self.record.slurm:
                self.record.slurm[name] = None
                self.save()
        self.told.states.append(("Slurm node %s" % name, node.state, after))
        # Asked after the node takes no more jobs, so that none can slip in.
        self.told.waiting += self.slurm.jobs(name)

    def stop(self, names: Sequence[str]) -> None:
        for name in names:
            asked, found = units.closure(name)
            if asked.load == "not-found":
                self.told.absent.append(name)
                continue
            self._stop(asked, found)
            if self.told.waiting and not self.dry:
                return

    def _stop(self, asked: units.Unit, found: list[units.Unit]) -> None:
        running = [unit for unit in found if unit.runs]
        new = [unit.name for unit in running if unit.name not in self.record.units]
        if new:
            self.record.units += new
            self.save()
        triggers = units.triggers_of(found)
        if not self.dry:
            for unit in found:
                if not unit.is_off and (unit.name in triggers or unit is asked):
                    units.stop(unit.name)
        after = {unit.name: unit for unit in (units.show([unit.name for unit in found]) if not self.dry else ())}
        for unit in running:
            now = after[unit.name].active if after else "inactive"
            self.told.states.append((unit.name, unit.active, now))
            if now != unit.active:
                self.told.steps.append("stop %s" % unit.name)
        for unit in after.values():
            if unit.active == "deactivating":
                self.told.waiting.append(_stopping(unit))
            elif unit.runs and unit.name == asked.name:
                problem = "it runs again right after it was stopped"
                raise DrainError("unit %s" % unit.name, problem, "Find out what starts it, and stop that first.")


class _Giving(_Drain):
    def __init__(self, record: Record, slurm: Slurm, dry: bool) -> None:
        super().__init__(record, slurm, dry)
        #: What could not be brought back, and how a person does it.
        self.problems: list[tuple[DrainError, str]] = []

    def all(self) -> None:
        """Everything, in the reverse order, whatever fails in between."""
        for name in units.starting_order(self.record.units):
            self._one(lambda name=name: self._start(name), "systemctl start %s" % name)
        for name, reason in list(self.record.slurm.items()):
            by_hand = "scontrol update NodeName=%s State=RESUME" % name
            self._one(lambda name=name, reason=reason: self._resume(name, reason), by_hand)
        self.told.kubernetes = self.record.kubernetes
        self.save()
        if self.record.kubernetes:
            self.say_kubernetes(self.record.kubernetes, "uncordon")
        if not self.problems and (self.dry or not self.record.kubernetes):
            self._after()

    def _one(self, bring_back: Callable[[], None], by_hand: str) -> None:
        try:
            bring_back()
        except DrainError as error:
            self.problems.append((error, by_hand))

    def _start(self, name: str) -> None:
        (unit,) = units.show([name])
        if unit.load == "not-found":
            self.told.absent.append(name)
        elif not unit.runs:
            if not self.dry:
                self._start_unit(unit)
            self.told.steps.append("start %s" % name)
            self.told.states.append((name, unit.active, "active"))
        self.record.units.remove(name)

    def _start_unit(self, unit: units.Unit) -> None:
        # systemd refuses a socket whose service runs, as it does where a drain was cut off between the two.
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
                back = self.slurm.resume(name)
                after = back.state
                if back.is_lost:
                    self.told.kept.append("Slurm node %s is back, but slurmd does not answer: %s" % (name, after))
            self.told.steps.append("resume Slurm node %s" % name)
            self.told.states.append(("Slurm node %s" % name, node.state, after))
        elif node.is_out:
            self.told.kept.append("Slurm node %s stays out of service: %s" % (name, node.described()))
        del self.record.slurm[name]

    def _after(self) -> None:
        """The commands after. Each that has run is struck out, so that a second try begins with the one that failed."""
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
    """Bring all back after a failure, and tell it with what came of that."""
    # What is on the disk and not what this execution had in mind: what could not be recorded was not taken.
    giving = _Giving(Record.load(directory), Slurm(), dry=False)
    try:
        giving.all()
    except FleetError as second:
        problem = DrainError(second.where, second.problem, second.cure)
        giving.problems.append((problem, "see %s" % giving.record.path))
    if giving.problems:
        after = str(_still_off(giving))
    elif giving.told.kubernetes:
        after = "What had been taken off is back, except the Kubernetes node %s." % giving.told.kubernetes["node"]
    else:
        after = "What had been taken off is back." if giving.told.steps else "Nothing had been taken off."
    return DrainError(error.where, error.problem, ("%s %s" % (error.cure, after)).strip())


def _still_off(giving: _Giving) -> DrainError:
    told = "; ".join("%s (by hand: %s)" % (str(error).rstrip("."), by_hand) for error, by_hand in giving.problems)
    cure = (
        "The rest is back. What is still off stays recorded in %s: mend it and resume again, which then has nothing left to "
        "start, or bring it back by hand." % giving.record.path
    )
    return DrainError("this host", "not everything could be brought back: %s" % told, cure)


@contextlib.contextmanager
def _held(directory: str, dry: bool) -> Iterator[None]:
    if dry:
        yield
        return
    # A lock of its own, not the layout's: a unit that is started here may apply the layout first, as gpu-layout.service does.
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
    """A line is for /bin/sh, a list is a program with its arguments. Raises DrainError unless it ends with status 0."""
    words = ["/bin/sh", "-c", command] if isinstance(command, str) else [str(word) for word in command]
    where = "the command %r" % _shown(command)
    try:
        done = run_tool(words, timeout_seconds=HOOK_SECONDS)
    except TimeoutExpired:
        problem, cure = "it did not end within %d s" % HOOK_SECONDS, "Find out why it hangs, or let it end earlier."
        raise DrainError(where, problem, cure) from None
    except OSError as error:
        raise DrainError(where, "it cannot be run: %s" % error, "See gpu_drain_commands_before and _after.") from None
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())[-300:]
        raise DrainError(where, "it ended with status %d%s" % (done.returncode, ": " + said if said else ""))
