# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the steps that apply a proposal, in order, with their commands. Pure.

A host to which workloads move comes before the host that they leave. A workload is stopped once: before a layout is
applied that disturbs its host, or else when its new part exists. Then it is started on its new part.
"""

from __future__ import annotations

import re
import shlex
from typing import Any, Iterator, Mapping, Sequence

from ..host_values import is_a
from .model import HostChange, Occupant, Outcome, Step

_CONTAINER = re.compile(r"(?:(\S+) )?container (\S+)")
_RUNTIMES = ("docker", "podman")


def steps(
    hosts: Sequence[HostChange], outcomes: Sequence[Outcome], occupants: Mapping[str, Occupant]
) -> tuple[Step, ...]:
    """Return a proposal's steps. `occupants` has the current workloads by name."""
    moving = [one for one in outcomes if one.change in ("moved", "resized")]
    stopped: set[str] = set()
    made: list[Step] = []
    for change in _ordered(hosts, moving):
        # If the plan disturbs nothing, workloads run until their new parts exist.
        for one in moving if change.disturbs else ():
            if one.host == change.host and one.name not in stopped:
                stopped.add(one.name)
                made.append(_stop(one, occupants[one.name]))
        if change.changes_layout:
            made.append(
                Step(
                    change.host,
                    "apply",
                    "Apply the layout of %s" % change.host,
                    "ansible-playbook -i INVENTORY -i proposal openfleet.gpu.site --limit %s"
                    % shlex.quote(change.host),
                )
            )
        for one in moving:
            if one.then_host == change.host:
                if one.name not in stopped:
                    stopped.add(one.name)
                    made.append(_stop(one, occupants[one.name]))
                made.append(_start(one, occupants[one.name]))
    return tuple(made)


def _ordered(hosts: Sequence[HostChange], moving: Sequence[Outcome]) -> Iterator[HostChange]:
    """Yield the hosts.

    A host comes before those whose workloads it gets, unless they exchange workloads.
    """
    sources = {change.host: {one.then_host for one in moving if one.host == change.host} for change in hosts}
    left = list(hosts)
    while left:
        names = {change.host for change in left}
        ready = next((one for one in left if not sources[one.host] & (names - {one.host})), left[0])
        left.remove(ready)
        yield ready


def _stop(one: Outcome, occupant: Occupant) -> Step:
    program = _program(occupant)
    what = "Stop %s on %s" % (one.name, one.host)
    if program is None:
        return Step(one.host, "stop", "%s, where it was started: %s" % (what, _who(occupant)), "")
    return Step(one.host, "stop", what, _on(one.host, "%s stop %s" % program))


def _start(one: Outcome, occupant: Occupant) -> Step:
    program = _program(occupant)
    device = "gpu %s, %s" % (one.then_gpu_index, one.then)
    what = "Give %s the device %s on %s, and start it" % (one.name, device, one.then_host)
    if program is None:
        return Step(one.then_host, "start", what, "")
    listing = _on(one.then_host, "nvidia-smi -L")
    return Step(one.then_host, "start", what, "%s\n%s" % (listing, _on(one.then_host, "%s start %s" % program)))


def _program(occupant: Occupant) -> tuple[str, str] | None:
    """Return (command, name) to stop a workload, or None if no command is known.

    Only valid names are used, because hosts report them.
    """
    names = {str(row.get("unit_or_container") or "") for row in occupant.holders if not row.get("job")}
    if len(names) != 1 or any(row.get("job") for row in occupant.holders):
        return None
    name = names.pop()
    container = _CONTAINER.fullmatch(name)
    if container and container.group(1) in _RUNTIMES and is_a("container", container.group(2)):
        return str(container.group(1)), container.group(2)
    if name.endswith(".service") and not name.startswith("user@") and is_a("unit", name):
        return "systemctl", name
    return None


def _who(occupant: Occupant) -> str:
    holders: list[Any] = [row.get("who") for row in occupant.holders if row.get("who")]
    return "; ".join(dict.fromkeys(map(str, holders[:3]))) or "its holder is unknown"


def _on(host: str, command: str) -> str:
    return "ssh %s %s" % (shlex.quote(host), shlex.quote("sudo " + command) if " " in command else command)
