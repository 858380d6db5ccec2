# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The names of Docker's containers: a cgroup has only their ids, and it is by name that people speak of them.

https://docs.docker.com/reference/cli/docker/container/ls/ (--no-trunc, --format)
"""

from __future__ import annotations

import dataclasses
import re
from typing import Sequence

from .command import Run
from .model import Holder
from .tool_answer import ask

#: Lists running containers for `parse`.
LIST = ["docker", "ps", "--no-trunc", "--format", "{{.ID}} {{.Names}}"]
_UNNAMED = re.compile(r"docker container ([0-9a-f]{12})")


def with_names(holders: Sequence[Holder], run: Run) -> list[Holder]:
    """The holders with names in place of ids; Docker is asked only where a container of its own is among them.

    Where it does not answer the ids stay: who holds the GPU is known all the same.
    """
    unnamed = {holder.unit_or_container for holder in holders if _UNNAMED.fullmatch(holder.unit_or_container or "")}
    if not unnamed:
        return list(holders)
    names = parse(_listed(run))
    found = []
    for holder in holders:
        match = _UNNAMED.fullmatch(holder.unit_or_container or "")
        name = names.get(match.group(1)) if match else None
        if name:
            told = "docker container %s" % name
            who = holder.who.replace(str(holder.unit_or_container), told)
            holder = dataclasses.replace(holder, unit_or_container=told, who=who)
        found.append(holder)
    return found


def _listed(run: Run) -> str:
    try:
        said, _why = ask(run, LIST)
    except FileNotFoundError:
        return ""
    return said or ""


def parse(listed: str) -> dict[str, str]:
    """By the first twelve digits of its id each running container's name."""
    names = {}
    for line in listed.splitlines():
        container, _blank, called = line.partition(" ")
        # Links of old are names of a container too, with a slash in them.
        own = [name for name in called.split(",") if name and "/" not in name]
        if own:
            names[container[:12]] = own[0]
    return names
