# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the collection's playbooks against the lab and reads what came of it. Used by the demo and by the benchmark."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
LAB = REPOSITORY / ".lab"


class FleetError(Exception):
    """A playbook did not end well; the message says where its output stands."""


@dataclass(frozen=True)
class Result:
    """One result of a task on a host; `changed` of the whole task, loops included."""

    host: str
    play: str
    task: str
    action: str
    changed: bool
    # How many modules ran on the host for it: none for what is done on the controller alone, one an item of a loop.
    module_executions: int


@dataclass(frozen=True)
class Run:
    """A playbook run: its results in the order of the tasks, how long it took, the stats of each host."""

    results: tuple[Result, ...]
    stats: dict[str, dict[str, int]]
    seconds: float


def play(playbook: str, *arguments: str) -> float:
    """Runs a playbook before the eyes of whoever looks on; gives the seconds it took. Raises FleetError."""
    started = time.monotonic()
    done = subprocess.run(["ansible-playbook", playbook, *arguments], cwd=REPOSITORY, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise FleetError(f"{playbook} ended with status {done.returncode}, see above")
    return time.monotonic() - started


def play_quietly(playbook: str, log_name: str) -> float:
    """Runs a playbook with its output in .lab/LOG_NAME; gives the seconds it took. Raises FleetError with its end."""
    started = time.monotonic()
    log = LAB / log_name
    with log.open("w") as output:
        done = subprocess.run(
            ["ansible-playbook", playbook], cwd=REPOSITORY, check=False, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    if done.returncode != 0:
        raise FleetError(f"{playbook} ended with status {done.returncode}, see {log}:\n{log.read_text()[-2000:]}")
    return time.monotonic() - started


def play_and_read(playbook: str, log_name: str) -> Run:
    """Runs a playbook and reads its results from the json callback's output, kept as .lab/LOG_NAME. Raises FleetError."""
    log = LAB / log_name
    environment = dict(os.environ, ANSIBLE_STDOUT_CALLBACK="ansible.posix.json", ANSIBLE_CALLBACK_RESULT_FORMAT="json")
    started = time.monotonic()
    with log.open("w") as output:
        done = subprocess.run(
            ["ansible-playbook", playbook], cwd=REPOSITORY, env=environment, check=False, stdin=subprocess.DEVNULL, stdout=output
        )
    seconds = time.monotonic() - started
    if done.returncode != 0:
        raise FleetError(f"{playbook} ended with status {done.returncode}, see {log}")
    told = json.loads(log.read_text())
    results = tuple(
        _result(host, one_play["play"]["name"], task["task"]["name"], outcome)
        for one_play in told["plays"]
        for task in one_play["tasks"]
        for host, outcome in task["hosts"].items()
    )
    return Run(results, told["stats"], seconds)


def _result(host: str, play_name: str, task_name: str, outcome: dict) -> Result:
    items = outcome.get("results")
    return Result(
        host=host,
        play=play_name,
        task=task_name,
        action=outcome.get("action", ""),
        changed=bool(outcome.get("changed")),
        module_executions=sum(map(_ran_a_module, items if isinstance(items, list) else [outcome])),
    )


def _ran_a_module(outcome: dict) -> bool:
    # Ansible puts the arguments into what a module returned; what an action does on the controller has none.
    return "invocation" in outcome
