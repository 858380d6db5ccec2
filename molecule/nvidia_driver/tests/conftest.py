# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plays of the scenario, run as an operator runs them, and what a host looks like before and after."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from lab_fixtures import REPOSITORY, lab_host

__all__ = ["lab_host"]

SCENARIO = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Played:
    """How a play went on one host."""

    failed: str
    changed: bool
    #: What the module planned, and what it then did.
    planned: tuple[str, ...]
    done: tuple[str, ...]
    executions: int
    #: What the play said of its own accord.
    said: tuple[str, ...] = ()


def outcome(text: str, host: str) -> Played:
    told, _end = json.JSONDecoder().raw_decode(text[text.index("{") :])
    results = [task["hosts"][host] for play in told["plays"] for task in play["tasks"] if host in task["hosts"]]
    named = {
        task["task"]["name"]: task["hosts"][host]
        for play in told["plays"]
        for task in play["tasks"]
        if host in task["hosts"] and not task["hosts"][host].get("skipped")
    }
    failures = [result.get("msg", "") for result in results if result.get("failed") and not result.get("skipped")]

    def steps(name):
        return tuple(next((result.get("steps", ()) for task, result in named.items() if task.endswith(name)), ()))

    # What runs on the controller alone is no execution on the host.
    there = ("include_tasks", "include_role", "validate_argument_spec", "debug", "fail")
    actions = [str(result.get("action", "")).rpartition(".")[2] for result in named.values()]
    return Played(
        failures[-1] if told["stats"][host]["failures"] else "",
        bool(told["stats"][host]["changed"]),
        steps("Plan the driver"),
        steps("Apply the plan"),
        len([action for action in actions if action not in there]),
        tuple(
            result["msg"] for result in results if str(result.get("action", "")).endswith("debug") and "msg" in result
        ),
    )


@pytest.fixture
def play():
    """A function that plays the role on a host with variables, and tells how it went."""

    def run(host: str, *options: str, playbook: Path = SCENARIO / "converge.yml", **variables) -> Played:
        command = [
            "ansible-playbook",
            "--inventory",
            str(SCENARIO / "inventory"),
            "--limit",
            host,
            "--extra-vars",
            json.dumps(variables),
            *options,
            str(playbook),
        ]
        environment = dict(
            os.environ, ANSIBLE_STDOUT_CALLBACK="ansible.posix.json", ANSIBLE_CONFIG=str(REPOSITORY / "ansible.cfg")
        )
        done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
        assert "{" in done.stdout, done.stderr
        return outcome(done.stdout, host)

    return run


# In one execution: a story looks often.
LOOK = r"""dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\n'; echo ---
apt-mark showhold; echo ---
find /etc/apt /etc/modprobe.d /etc/modules-load.d /var/lib/apt/lists -type f ! -name lock -exec sha256sum {} + | sort; echo ---
cat /sys/module/nvidia/version 2>/dev/null; echo ---
dpkg --audit; echo --- end"""


@dataclass(frozen=True)
class State:
    """All that a change of the driver may touch."""

    packages: dict[str, str]
    held: tuple[str, ...]
    configuration: str
    loaded: str
    broken: str


@pytest.fixture
def state_of(lab_host):
    def read(name: str) -> State:
        parts = [part.strip() for part in re.split("^---.*$", lab_host(name).check_output(LOOK), flags=re.MULTILINE)]
        lines = (line.split() for line in parts[0].splitlines())
        packages = {line[0]: line[1] for line in lines if line[2] == "installed"}
        return State(packages, tuple(parts[1].split()), parts[2], parts[3], parts[4])

    return read
