# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the role on a host of this scenario, and read the host's state between runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.lab import role_plays
from tests.lab.role_plays import Ask, fail_if

__all__ = ["Ask", "fail_if"]

SCENARIO = Path(__file__).resolve().parents[1]
INVENTORY = SCENARIO / "inventory"


@dataclass(frozen=True)
class Played:
    """The result of a run on one host."""

    failed: str
    changed: bool
    #: The planned steps and the completed steps of the module.
    planned: tuple[str, ...]
    done: tuple[str, ...]
    executions: int
    #: The output of the command in Ask.then.
    seen: str


def play(host: str, *asks: Ask, check: bool = False) -> list[Played]:
    """Run the role once for each of `asks`, in order, with one ansible-playbook.

    `check` adds the option --check.
    """
    options = ["--check"] if check else []
    played = []
    for run in role_plays.run_role(INVENTORY, "nvidia_driver", host, list(asks), *options):
        planned, done = (
            tuple(run.results.get(name, {}).get("steps", ())) for name in ("Plan the driver", "Apply the plan")
        )
        played.append(Played(run.failed, run.changed, planned, done, run.executions, run.seen))
    return played


# Use one command, because the tests read the state often.
LOOK = r"""dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\n'; echo ---
apt-mark showhold; echo ---
find /etc/apt /etc/modprobe.d /etc/modules-load.d /var/lib/apt/lists -type f ! -name lock -exec sha256sum {} + | sort; echo ---
cat /sys/module/nvidia/version 2>/dev/null || true; echo ---
dpkg --audit || true; echo --- end"""


@dataclass(frozen=True)
class State:
    """Everything that a change of the driver may affect, in the format of LOOK."""

    packages: dict[str, str]
    held: tuple[str, ...]
    configuration: str
    loaded: str
    broken: str

    @classmethod
    def read(cls, text: str) -> State:
        parts = [part.strip() for part in re.split("^---.*$", text, flags=re.MULTILINE)]
        lines = (line.split() for line in parts[0].splitlines())
        packages = {line[0]: line[1] for line in lines if line[2] == "installed"}
        return cls(packages, tuple(parts[1].split()), parts[2], parts[3], parts[4])
