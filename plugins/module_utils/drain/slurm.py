# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Slurm node out of service and back, and the jobs that still run on it.

States, the forms of State= and of Reason=: https://slurm.schedmd.com/scontrol.html, https://slurm.schedmd.com/sinfo.html
(NODE STATE CODES). Slurm's tools speak for this host to the controller, so root on the host must be what Slurm takes
for an administrator, which it is unless munge's keys are restricted.
"""

from __future__ import annotations

import contextlib
import re
import time
from typing import Any

from ..command import Run, ask, run_tool
from ..command_line import printable
from ..frozen import frozen
from ..holders.slurm import NoAnswerError, fields, first_line, name_of
from .record import DrainError

#: What runs on the node is not known to Slurm, or will not be.
_LOST = {"DOWN", "UNKNOWN", "ERROR", "FUTURE", "NOT_RESPONDING"}
#: Slurm starts no job on it.
_OUT = {"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING"}
#: Marks after a state, as in IDLE* (no answer) and DOWN~ (powered down).
_MARKS = "*~#!%$@^-"
_REASON = re.compile(r"\sReason=(.*?)\s*\[([^@\]\s]+)@[^\]\s]+\]", re.DOTALL)
#: How long slurmd may take to answer after a resume before that is worth telling; it takes about a second.
_ANSWER_SECONDS = 5
#: How long the names of jobs are asked for, one by one. The others are told without their names.
_NAMES_SECONDS = 20
#: Characters of a name, a state or a reason in a message.
_MOST_SHOWN = 200
#: A name as slurm.conf(5) has it, and no option of the tools that it is given to.
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
#: Jobs that have the node: those that run, and those of which something is left.
_JOB_STATES = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED,SIGNALING,STAGE_OUT"


@frozen
class Node:
    """A node as the controller has it. `reason` and `set_by` are of its last change, empty where there are none."""

    name: str
    state: str
    flags: frozenset[str]
    reason: str = ""
    set_by: str = ""
    #: The host on which its slurmd runs.
    host: str = ""

    @property
    def is_out(self) -> bool:
        return bool(self.flags & _OUT)

    @property
    def is_lost(self) -> bool:
        return bool(self.flags & _LOST)

    def described(self) -> str:
        if not self.reason:
            return _shown(self.state)
        parts = (self.state, self.set_by or "an unknown user", self.reason)
        return "%s, by %s with the reason: %s" % tuple(map(_shown, parts))


def parse_node(record: str) -> Node:
    """The node of one line of `scontrol --oneliner show node`."""
    values = fields(record)
    words = values.get("State", "UNKNOWN").split("+")
    flags = {word.rstrip(_MARKS) for word in words}
    if any("*" in word for word in words):
        flags.add("NOT_RESPONDING")
    told = _REASON.search(record)
    reason, set_by = told.groups() if told else ("", "")
    return Node(
        values["NodeName"], "+".join(words), frozenset(flags), reason.strip(), set_by, values.get("NodeHostName", "")
    )


def _shown(text: str) -> str:
    """Return a text of Slurm's as messages have it."""
    return printable(text[:_MOST_SHOWN]) + ("..." if len(text) > _MOST_SHOWN else "")


def check_reason(reason: str) -> str:
    """The reason as Slurm will give it back. Raises DrainError for one that it would change."""
    text = reason.strip()
    if not text or not text.isprintable() or '"' in text or "[" in text:
        problem = "%r cannot be told from others' reasons, since Slurm would not give it back as it is" % reason
        raise DrainError("gpu_drain_slurm_reason", problem, 'Write one line without " and [.')
    return text


def check_name(name: str, where: str) -> str:
    """Return the name of a node. Raises DrainError for one that a tool could take for something else."""
    if not _NODE_NAME.fullmatch(name):
        cure = "Say in gpu_drain_slurm_node what Slurm calls this host (scontrol show nodes)."
        raise DrainError(where, "%r is no name of a Slurm node" % printable(name[:100]), cure)
    return name


class Slurm:
    """Slurm as it is asked on this host."""

    def __init__(self, run: Run = run_tool) -> None:
        self.run = run

    def told_by_slurmd(self) -> str | None:
        """The node that this host is, where slurmd runs and says so. Raises DrainError for what is no name of a node."""
        text, _problem = self._ask("scontrol", "show", "slurmd")
        found = re.search(r"^Hostname\s*=\s*(\S+)", text or "", re.MULTILINE)
        return check_name(found.group(1), "slurmd on this host") if found else None

    def node(self, name: str) -> Node:
        """Raises DrainError for a node that the controller does not have, or where it does not answer."""
        where = "Slurm node %s" % name
        text, problem = self._ask("scontrol", "--oneliner", "show", "node", name)
        if text is None and "not found" in problem:
            cure = "Say in gpu_drain_slurm_node what Slurm calls this host (scontrol show nodes)."
            raise DrainError(where, "Slurm has no node of this name", cure)
        if text is None:
            raise DrainError(
                where, problem, "See whether slurmctld answers on this host (scontrol ping), and run again."
            )
        return parse_node(text)

    def jobs(self, name: str) -> list[dict[str, Any]]:
        """The jobs that have the node, with what is left of their time. All count: one without GPUs can open them too."""
        command = ("squeue", "--all", "--noheader", "--nodelist", name, "--states", _JOB_STATES)
        text, problem = self._ask(*command, "--format", "%A %T %L %u")
        if text is None:
            raise DrainError(
                "Slurm node %s" % name, problem, "See whether slurmctld answers on this host (scontrol ping)."
            )
        deadline = time.monotonic() + _NAMES_SECONDS
        return [self._job(*line.strip().split(" ", 3), deadline) for line in text.splitlines() if line.strip()]

    def _job(self, number: str, state: str, left: str, user: str, deadline: float) -> dict[str, Any]:
        name = ""
        # It may hold anything, lines that look like jobs too: what is asked of all jobs at once has no names in it.
        with contextlib.suppress(NoAnswerError):
            name = _shown(first_line(name_of(self.run, number))) if time.monotonic() < deadline else ""
        limit = "%s left" % left if left[:1].isdigit() else "without a time limit"
        told = "Slurm job %s (%s) of user %s, %s, %s" % (*map(_shown, (number, name, user, state.lower(), limit)),)
        return {"kind": "slurm_job", "id": number, "name": name, "user": user, "state": state, "who": told}

    def drain(self, name: str, reason: str) -> Node:
        """Take the node out of service; gives it as it is then. Raises DrainError where it is not out."""
        self._update(name, "State=DRAIN", "Reason=%s" % reason)
        node = self.node(name)
        if not node.is_out:
            raise DrainError("Slurm node %s" % name, "it is %s after State=DRAIN" % node.state, "See slurmctld's log.")
        return node

    def resume(self, name: str) -> Node:
        """Bring the node back into service; gives it as it is then. Raises DrainError where it is not back."""
        # RESUME and not UNDRAIN: a node that was rebooted meanwhile is DOWN besides, and stays so while it has a reason.
        try:
            self._update(name, "State=RESUME")
        except DrainError:
            # Slurm 22.05 calls it invalid for a node that has not registered since slurmctld started, and does it.
            if self.node(name).is_out:
                raise
        deadline = time.monotonic() + _ANSWER_SECONDS
        while True:
            node = self.node(name)
            if node.is_out or "DOWN" in node.flags:
                raise DrainError(
                    "Slurm node %s" % name, "it is %s after State=RESUME" % node.state, "See slurmctld's log."
                )
            # A node that was resumed is given jobs once slurmd has answered again.
            if not node.is_lost or time.monotonic() > deadline:
                return node
            time.sleep(0.1)

    def _update(self, name: str, *changes: str) -> None:
        _text, problem = self._ask("scontrol", "update", "NodeName=%s" % name, *changes)
        if problem:
            cure = "See whether root on this host may change nodes (scontrol ping; the log of slurmctld)."
            raise DrainError("Slurm node %s" % name, problem, cure)

    def _ask(self, *command: str) -> tuple[str | None, str]:
        try:
            return ask(self.run, list(command))
        except FileNotFoundError:
            cure = (
                "Install Slurm's client commands on it, or put their directory on the PATH of the task (environment:)."
            )
            raise DrainError("this host", "%s is not there" % command[0], cure) from None
