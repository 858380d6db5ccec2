# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the role on a host of this scenario with the real ansible-playbook."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.lab import role_plays
from tests.lab.role_plays import Ask

__all__ = ["Ask"]

SCENARIO = Path(__file__).resolve().parents[1]
REPOSITORY = SCENARIO.parents[1]
MIRROR = REPOSITORY / ".lab" / "mirror-toolkit"


@dataclass(frozen=True)
class Run:
    """A run: the steps that the module did or would do, and the run's messages."""

    steps: list[str]
    result: dict
    changed: bool
    executions: int
    #: The error message of the run, and the output of Ask.then.
    failed: str
    seen: str


def run_roles(host: str, *asks: Ask, check: bool = False) -> list[Run]:
    """Run the role once for each of `asks`, in order, with one ansible-playbook.

    `check` adds the option --check.
    """
    options = ["--check"] if check else []
    done = role_plays.run_role(SCENARIO / "inventory", "container_toolkit", host, list(asks), *options)
    runs = []
    for run in done:
        # If the role refuses its arguments or a file on the controller, there is no result.
        result = run.results.get("Install or remove the container toolkit", {})
        runs.append(Run(result.get("steps", []), result, run.changed, run.executions, run.failed, run.seen))
    return runs
