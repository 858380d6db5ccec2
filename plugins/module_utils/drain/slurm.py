# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drain and resume a Slurm node, and list its jobs.

States and the values of State= and Reason= are documented at https://slurm.schedmd.com/scontrol.html and
https://slurm.schedmd.com/sinfo.html (NODE STATE CODES). Slurm's tools contact the controller from this host, so root on
this host must be a Slurm administrator. This is the case unless munge's keys are restricted.
"""

from __future__ import annotations

import contextlib
import re
import time
from typing import Any

from ..frozen import frozen
from ..holders.slurm import NoAnswerError, fields, first_line, name_of
from ..processes.command import Run, ask, run_tool
from ..processes.command_line import printable
from .record import DrainError

# States in which Slurm does not know the jobs on the node.
_LOST = {"DOWN", "UNKNOWN", "ERROR", "FUTURE", "NOT_RESPONDING"}
# States in which Slurm starts no jobs on the node.
_OUT = {"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING"}
# Characters that Slurm appends to states, as in IDLE* (not responding) and DOWN~ (powered down).
_MARKS = "*~#!%$@^-"
_REASON = re.compile(r"\sReason=(.*?)\s*\[([^@\]\s]+)@[^\]\s]+\]", re.DOTALL)
# Seconds for slurmd to respond after a resume. It normally takes about a second. A longer time is reported.
_ANSWER_SECONDS = 5
# Seconds for querying names of jobs one by one. Jobs after this time are reported without names.
_NAMES_SECONDS = 20
# Maximum length of a name, a state or a reason in a message.
_MOST_SHOWN = 200
# A node name (slurm.conf(5)) that cannot be mistaken for an option.
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
# States of jobs that occupy the node.
_JOB_STATES = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED,SIGNALING,STAGE_OUT"


@frozen
class Node:
    """A node as reported by the Slurm controller.

    `reason` and `set_by` describe the last change of the node's state. They may be empty.
    """

    name: str
    state: str
    flags: frozenset[str]
    reason: str = ""
    set_by: str = ""
    #: The host on which the node's slurmd runs.
    host: str = ""

    @property
    def is_out(self) -> bool:
        return bool(self.flags & _OUT)

    @property
    def is_lost(self) -> bool:
        # With INVALID_REG, slurmd has registered its jobs, but other resources than slurm.conf has.
        known = {"UNKNOWN"} if "INVALID_REG" in self.flags else set()
        return bool(self.flags & _LOST - known)

    def described(self) -> str:
        if not self.reason:
            return _shown(self.state)
        parts = (self.state, self.set_by or "an unknown user", self.reason)
        return "%s, by %s with the reason: %s" % tuple(map(_shown, parts))


def parse_node(record: str) -> Node:
    """Return the node from one line of `scontrol --oneliner show node`."""
    values = fields(record)
    words = values.get("State", "UNKNOWN").split("+")
    flags = {word.rstrip(_MARKS) for word in words}
    if any("*" in word for word in words):
        flags.add("NOT_RESPONDING")
    match = _REASON.search(record)
    reason, set_by = match.groups() if match else ("", "")
    return Node(
        values["NodeName"], "+".join(words), frozenset(flags), reason.strip(), set_by, values.get("NodeHostName", "")
    )


def _shown(text: str) -> str:
    """Make a text from Slurm printable and short enough for messages."""
    return printable(text[:_MOST_SHOWN]) + ("..." if len(text) > _MOST_SHOWN else "")


def check_reason(reason: str) -> str:
    """Return the reason without leading or trailing spaces.

    Raises DrainError if Slurm would change the text.
    """
    text = reason.strip()
    if not text or not text.isprintable() or '"' in text or "[" in text:
        problem = "Slurm would not return %r unchanged, so the drain would not recognize it" % reason
        raise DrainError("gpu_drain_slurm_reason", problem, 'Write one line without " and [.')
    return text


def check_name(name: str, where: str) -> str:
    """Return the name of a node. Raises DrainError if it is invalid."""
    if not _NODE_NAME.fullmatch(name):
        cure = "Set gpu_drain_slurm_node to Slurm's name of this host (scontrol show nodes)."
        raise DrainError(where, "%r is not a valid name of a Slurm node" % printable(name[:100]), cure)
    return name


class Slurm:
    """The Slurm tools on this host."""

    def __init__(self, run: Run = run_tool) -> None:
        self.run = run

    def name_from_slurmd(self) -> str | None:
        """Return this host's node name from slurmd, or None if slurmd is not running.

        Raises DrainError if the name is invalid.
        """
        text, _problem = self._ask("scontrol", "show", "slurmd")
        match = re.search(r"^Hostname\s*=\s*(\S+)", text or "", re.MULTILINE)
        return check_name(match.group(1), "slurmd on this host") if match else None

    def node(self, name: str) -> Node:
        """Return a node.

        Raises DrainError if the node is unknown or the controller does not respond.
        """
        where = "Slurm node %s" % name
        text, problem = self._ask("scontrol", "--oneliner", "show", "node", name)
        if text is None and "not found" in problem:
            cure = "Set gpu_drain_slurm_node to Slurm's name of this host (scontrol show nodes)."
            raise DrainError(where, "Slurm has no node of this name", cure)
        if text is None:
            raise DrainError(
                where, problem, "Check that slurmctld responds on this host (scontrol ping), and run again."
            )
        return parse_node(text)

    def jobs(self, name: str) -> list[dict[str, Any]]:
        """Return the jobs on the node with their remaining time.

        Jobs without GPUs are included, because they can open GPUs too.
        """
        command = ("squeue", "--all", "--noheader", "--nodelist", name, "--states", _JOB_STATES)
        text, problem = self._ask(*command, "--format", "%A %T %L %u")
        if text is None:
            raise DrainError(
                "Slurm node %s" % name, problem, "Check that slurmctld responds on this host (scontrol ping)."
            )
        deadline = time.monotonic() + _NAMES_SECONDS
        return [self._job(*line.strip().split(" ", 3), deadline) for line in text.splitlines() if line.strip()]

    def _job(self, number: str, state: str, left: str, user: str, deadline: float) -> dict[str, Any]:
        name = ""
        # A job's name may contain lines that look like jobs, so the query for all jobs omits names.
        with contextlib.suppress(NoAnswerError):
            name = _shown(first_line(name_of(self.run, number))) if time.monotonic() < deadline else ""
        limit = "%s left" % left if left[:1].isdigit() else "without a time limit"
        who = "Slurm job %s (%s) of user %s, %s, %s" % (*map(_shown, (number, name, user, state.lower(), limit)),)
        return {"kind": "slurm_job", "id": number, "name": name, "user": user, "state": state, "who": who}

    def drain(self, name: str, reason: str) -> Node:
        """Drain the node and return its new state.

        Raises DrainError if the node is not drained afterwards.
        """
        self._update(name, "State=DRAIN", "Reason=%s" % reason)
        node = self.node(name)
        if not node.is_out:
            raise DrainError(
                "Slurm node %s" % name, "it is %s after State=DRAIN" % node.state, "Check slurmctld's log."
            )
        return node

    def resume(self, name: str) -> Node:
        """Resume the node and return its new state.

        Raises DrainError if the node is not in service afterwards.
        """
        # UNDRAIN is not sufficient: a node that was rebooted during the drain is DOWN as long as it has a reason.
        try:
            self._update(name, "State=RESUME")
        except DrainError:
            # Slurm 22.05 reports an error, but resumes the node, if the node has not registered since slurmctld
            # started.
            if self.node(name).is_out:
                raise
        deadline = time.monotonic() + _ANSWER_SECONDS
        while True:
            node = self.node(name)
            if node.is_out or "DOWN" in node.flags:
                raise DrainError(
                    "Slurm node %s" % name, "it is %s after State=RESUME" % node.state, "Check slurmctld's log."
                )
            # A resumed node gets jobs as soon as slurmd responds.
            if not node.is_lost or time.monotonic() > deadline:
                return node
            time.sleep(0.1)

    def _update(self, name: str, *changes: str) -> None:
        _text, problem = self._ask("scontrol", "update", "NodeName=%s" % name, *changes)
        if problem:
            cure = "Check that root on this host may change nodes (scontrol ping, log of slurmctld)."
            raise DrainError("Slurm node %s" % name, problem, cure)

    def _ask(self, *command: str) -> tuple[str | None, str]:
        try:
            return ask(self.run, list(command))
        except FileNotFoundError:
            cure = (
                "Install Slurm's client commands on it, or put their directory on the PATH of the task (environment:)."
            )
            raise DrainError("this host", "%s is not installed" % command[0], cure) from None
