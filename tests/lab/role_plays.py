# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a role on a lab host several times in one run of ansible-playbook.

Starting ansible-playbook takes longer than running the role. Each run of the role is a separate play with its own
variables. Between two runs, a command on the host prints the state.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

from tests.lab import warm_playbook
from tests.lab.lab_fixtures import REPOSITORY

#: Modules that run only on the controller.
_LOCAL = ("include_tasks", "include_role", "validate_argument_spec", "assert", "debug", "fail")
_FIRST, _THEN, _FAILED = "Run the command ahead of the role", "Run the command behind the role", "Go on after a failure"


@dataclass(frozen=True)
class Ask:
    """One run of the role, with the commands before and after it."""

    #: Variables of the role that override the inventory.
    variables: dict = field(default_factory=dict)
    entry: str = "main"
    #: (role, entry point) pairs that run instead of the role, in this order.
    steps: tuple[tuple[str, str], ...] = ()
    #: Run modules in check mode. Roles that read `ansible_check_mode` also need the option `--check`.
    check: bool = False
    #: True if the run must fail.
    fails: bool = False
    #: Shell commands. `first` runs before the run, and `then` runs after it, even if the run failed.
    first: str = ""
    then: str = ""

    def __post_init__(self) -> None:
        for text in (self.first, self.then):
            if re.search(r"(?m)(^|[;{&|])\s*! ", text):
                raise ValueError("the shell does not stop at a failed `!`, so use fail_if: %s" % text)


def fail_if(command: str) -> str:
    """Return a shell command that fails if `command` succeeds."""
    return "if %s >&2; then exit 1; fi; " % command


@dataclass(frozen=True)
class Done:
    """The result of one run."""

    #: The error message, or "" if the run succeeded.
    failed: str
    changed: bool
    #: The number of modules that ran on the host.
    executions: int
    #: The output of the role's debug tasks.
    said: tuple[str, ...]
    #: The output of the command `then`.
    seen: str
    #: The error of the command before or after the run, or "".
    broken: str
    #: The result of each task by its name, without the prefix of the role.
    results: dict[str, dict]


def run_role(inventory: Path, role: str, host: str, asks: list[Ask], *options: str, warm: bool = False) -> list[Done]:
    """Run openfleet.gpu.ROLE on the host once for each of `asks`, in order.

    `options` are options of ansible-playbook. If `warm` is true, ansible-playbook runs as a fork of a loaded process
    (warm_playbook.py).
    """
    with tempfile.TemporaryDirectory() as folder:
        program = warm_playbook.COMMAND if warm else ("ansible-playbook",)
        command = [*program, *_arguments(folder, inventory, role, host, asks), *options]
        ended = subprocess.run(command, cwd=REPOSITORY, env=_environment(), capture_output=True, text=True, check=False)
    assert "{" in ended.stdout, ended.stderr
    told, _end = json.JSONDecoder().raw_decode(ended.stdout[ended.stdout.index("{") :])
    done = [_read(play["tasks"], host) for play in told["plays"]]
    for number, (ask, run) in enumerate(zip(asks, done)):
        assert not run.broken, f"run {number}: a command around it failed: {run.broken}"
        assert bool(run.failed) == ask.fails, f"run {number}: {run.failed or 'it went well'}"
    assert (ended.returncode, len(done)) == (0, len(asks)), ended.stdout[-2000:] + ended.stderr
    return done


def kill_role(inventory: Path, role: str, host: str, ask: Ask, moment: Callable[[], object]) -> None:
    """Run the role as run_role does, and kill ansible-playbook when `moment` returns.

    A module that is running on the host then continues.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = ["ansible-playbook", *_arguments(folder, inventory, role, host, [ask])]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        running = subprocess.Popen(command, cwd=REPOSITORY, env=_environment(), **quiet)
        try:
            moment()
        finally:
            running.kill()
            running.wait()
    assert running.returncode == -signal.SIGKILL, "the run ended before it was killed"


def _arguments(folder: str, inventory: Path, role: str, host: str, asks: list[Ask]) -> list[str]:
    playbook = Path(folder, "plays.json")
    playbook.write_text(json.dumps([_play(role, host, number, ask) for number, ask in enumerate(asks)]))
    return ["--inventory", str(inventory), str(playbook)]


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"),
    }


def _play(role: str, host: str, number: int, ask: Ask) -> dict:
    def command(name: str, text: str) -> list[dict]:
        # Ansible must not evaluate braces in the command.
        cmd = "{% raw %}set -e\n" + text + "{% endraw %}"
        return [{"name": name, "ansible.builtin.shell": {"cmd": cmd}, "check_mode": False}] if text else []

    run = [
        {
            "name": "Run the role",
            "ansible.builtin.include_role": {"name": f"openfleet.gpu.{name}", "tasks_from": entry},
        }
        for name, entry in ask.steps or ((role, ask.entry),)
    ]
    rescue = {"name": _FAILED, "ansible.builtin.debug": {"msg": "failed"}}
    play = {
        "name": f"Run {number}",
        "hosts": host,
        "gather_facts": False,
        "become": True,
        "vars": ask.variables,
        "tasks": [
            *command(_FIRST, ask.first),
            {"name": "Run", "block": run, "rescue": [rescue]},
            *command(_THEN, ask.then),
        ],
    }
    return {**play, "check_mode": True} if ask.check else play


def _read(tasks: list[dict], host: str) -> Done:
    of_host = [(task["task"]["name"], task["hosts"][host]) for task in tasks if host in task["hosts"]]
    there = [(name, result) for name, result in of_host if not result.get("skipped")]
    around = {name: result for name, result in there if name in (_FIRST, _THEN)}
    role = [(name, result) for name, result in there if name not in (_FIRST, _THEN, _FAILED)]
    messages = [result.get("msg", "") for _name, result in role if result.get("failed")]
    actions = [str(result.get("action", "")).rpartition(".")[2] for _name, result in role]
    return Done(
        # If the role has a rescue section, its own message comes last and says most.
        (messages or ["it ended without a message"])[-1] if any(name == _FAILED for name, _result in there) else "",
        any(result.get("changed") for _name, result in role),
        len([action for action in actions if action not in _LOCAL]),
        tuple(result["msg"] for (_name, result), action in zip(role, actions) if action == "debug" and "msg" in result),
        around.get(_THEN, {}).get("stdout", ""),
        "".join(f"{result['cmd']}: {result['stderr']}" for result in around.values() if result.get("failed")),
        {name.rpartition(" : ")[2]: result for name, result in role},
    )
