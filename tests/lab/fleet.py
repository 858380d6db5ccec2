# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the collection's playbooks on the lab, and read their results.

The demo and the benchmarks use this module.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

REPOSITORY = Path(__file__).resolve().parents[2]
LAB = REPOSITORY / ".lab"


class FleetError(Exception):
    """A playbook failed. The message includes the path of its output."""


@dataclass(frozen=True)
class Change:
    """A task that changed something on a host."""

    host: str
    play: str
    task: str


@dataclass(frozen=True)
class Run:
    """A successful run of a playbook, with its hosts, changes and duration."""

    hosts: tuple[str, ...]
    changes: tuple[Change, ...]
    seconds: float


def play(playbook: str, *arguments: str) -> float:
    """Run a playbook with visible output and return its seconds. Raises FleetError."""
    started = time.monotonic()
    done = subprocess.run(
        ["ansible-playbook", playbook, *arguments], cwd=REPOSITORY, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        raise FleetError(f"{playbook} ended with status {done.returncode}, see above")
    return time.monotonic() - started


def private_log(path: Path) -> TextIO:
    """Open a log file that only the owner and the group can read.

    Results contain users and their command lines.
    """
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640), "w")


def _log(name: str) -> Path:
    """Return the path of the log. Each fleet has separate logs."""
    return LAB / "{}-{}".format(os.environ.get("OPENFLEET_LAB") or "demo", name)


def play_quietly(playbook: str, log_name: str, *arguments: str) -> float:
    """Run a playbook, and return its duration in seconds.

    The output is written to .lab/FLEET-LOG_NAME. Raises FleetError with the end of the output if the playbook fails.
    """
    started = time.monotonic()
    log = _log(log_name)
    with private_log(log) as output:
        done = subprocess.run(
            ["ansible-playbook", playbook, *arguments],
            cwd=REPOSITORY,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    if done.returncode != 0:
        raise FleetError(f"{playbook} ended with status {done.returncode}, see {log}:\n{log.read_text()[-2000:]}")
    return time.monotonic() - started


def failures(told: dict) -> str:
    """Return the failed tasks of a run with their messages."""
    return "".join(
        f": {host}: {outcome['msg']}"
        for one_play in told.get("plays", ())
        for task in one_play["tasks"]
        for host, outcome in task["hosts"].items()
        if (outcome.get("failed") or outcome.get("unreachable")) and outcome.get("msg")
    )


def play_and_read(playbook: str, log_name: str, *arguments: str) -> Run:
    """Run a playbook, and read its changes from the output of the json callback.

    The output is in .lab/FLEET-LOG_NAME. Raises FleetError if the playbook fails.
    """
    log = _log(log_name)
    environment = dict(os.environ, ANSIBLE_STDOUT_CALLBACK="ansible.posix.json")
    started = time.monotonic()
    with private_log(log) as output:
        done = subprocess.run(
            ["ansible-playbook", playbook, *arguments],
            cwd=REPOSITORY,
            env=environment,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=output,
        )
    seconds = time.monotonic() - started
    # Other callbacks in ansible.cfg print text after the JSON. If there is text before the JSON, the run failed early.
    told, _ = json.JSONDecoder().raw_decode(log.read_text()) if log.read_text()[:1] == "{" else ({}, 0)
    if done.returncode != 0:
        raise FleetError(f"{playbook} ended with status {done.returncode}, see {log}{failures(told)}")
    changes = tuple(
        Change(host, one_play["play"]["name"], task["task"]["name"])
        for one_play in told["plays"]
        for task in one_play["tasks"]
        for host, outcome in task["hosts"].items()
        if outcome.get("changed")
    )
    # The callback counts changes separately. If its count does not agree with the tasks, neither of them is reliable.
    if bool(changes) != any(stats["changed"] for stats in told["stats"].values()):
        raise FleetError(f"{playbook}: the tasks and the stats disagree on whether something changed, see {log}")
    return Run(tuple(told["stats"]), changes, seconds)
