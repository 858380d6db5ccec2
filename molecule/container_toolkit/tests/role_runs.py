# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs of the role on a host of this scenario, by the real ansible-playbook."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

SCENARIO = Path(__file__).resolve().parents[1]
REPOSITORY = SCENARIO.parents[1]
MIRROR = REPOSITORY / ".lab" / "mirror-toolkit"
#: What runs on the controller alone is no execution on the host.
_NOT_THERE = ("include_tasks", "include_role", "validate_argument_spec", "debug", "fail")


@dataclass(frozen=True)
class Run:
    """How a run went: what the module did or would do, and what it said besides."""

    steps: list[str]
    result: dict
    changed: bool
    executions: int


def run_role(host: str, *arguments: str, playbook: str = "converge.yml", fails: bool = False, **variables) -> Run | str:
    """A Run; with `fails` the message of the failure."""
    command = ["ansible-playbook", "-i", str(SCENARIO / "inventory"), "--limit", host, *arguments]
    command += ["-e", json.dumps({"lab_name": os.environ["OPENFLEET_LAB"], **variables}), str(SCENARIO / playbook)]
    environment = {**os.environ, "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json", "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    told, _end = json.JSONDecoder().raw_decode(done.stdout[done.stdout.index("{") :])
    tasks = [task for play in told["plays"] for task in play["tasks"] if host in task["hosts"]]
    results = [task["hosts"][host] for task in tasks if not task["hosts"][host].get("skipped")]
    messages = [result.get("msg", "") for result in results if result.get("failed")]
    assert (done.returncode != 0) == fails, messages or "it went well"
    if fails:
        return messages[0]
    (result,) = [
        task["hosts"][host]
        for task in tasks
        if task["task"]["name"].endswith("Bring the container toolkit, or take it away")
    ]
    there = [found for found in results if str(found.get("action", "")).rpartition(".")[2] not in _NOT_THERE]
    return Run(result.get("steps", []), result, bool(told["stats"][host]["changed"]), len(there))
