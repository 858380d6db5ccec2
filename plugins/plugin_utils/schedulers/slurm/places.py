# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Combine the plans of Slurm's files on the controllers and on the node."""

from __future__ import annotations

import re
from typing import Any, Mapping, Sequence

from ....module_utils.errors import FleetError
from ...host_values import Reader, text

_PLAN = {
    "exist!": "flag",
    "changed!": "flag",
    "problems!": ["text"],
    "notes": ["text"],
    "restart": "flag",
    "interrupted!": "flag",
}
# Base64 of compressed files.
_CANDIDATE = re.compile(r"[A-Za-z0-9+/=]{0,8388608}")
_AWAY = "Check that the host is on and reachable, and that gpu_slurm_controllers names it correctly, and run again."


def places(results: Sequence[Mapping[str, Any]], node: str) -> dict[str, Any]:
    """Combine the plans of several hosts into one plan for a node.

    `results` are the results of a task with a loop over hosts. Each result has the name of its host in `item`. `node` is
    the host of the Slurm node. Keys of the returned plan:

    problems     messages about problems that block the change, each with its host
    notes        messages that do not block the change
    write        hosts whose files change or differ, in the order of the results
    files        hosts that have slurm.conf
    restart      whether Slurm must be restarted
    interrupted  whether a host has the record of an unconfirmed change
    candidate    files to test on the node
    """
    found: dict[str, Any] = {
        "problems": [],
        "notes": [],
        "write": [],
        "files": [],
        "restart": False,
        "interrupted": False,
        "candidate": "",
    }
    for result in results:
        host = text(result.get("item", ""))
        if result.get("unreachable") or result.get("failed") or "exist" not in result:
            message = text(result.get("msg") or "no reason given")
            cure = " " + _AWAY if result.get("unreachable") else ""
            found["problems"].append("%s: %s%s" % (host, message, cure))
            continue
        try:
            plan = Reader(host).read("slurm_config", result, _PLAN)
        except FleetError as error:
            found["problems"].append(str(error))
            continue
        found["interrupted"] |= plan["interrupted"]
        if not plan["exist"]:
            if host != node:
                problem = "%s: it has no slurm.conf in gpu_slurm_directory. Correct gpu_slurm_directory." % host
                found["problems"].append(problem)
            continue
        found["files"].append(host)
        found["problems"] += ["%s: %s" % (host, problem) for problem in plan["problems"]]
        found["notes"] += [note for note in plan.get("notes") or () if note not in found["notes"]]
        found["restart"] |= bool(plan.get("restart"))
        if plan["changed"]:
            found["write"].append(host)
        candidate = result.get("candidate")
        # A node with its own files tests its own candidate. A configless node tests the controllers'.
        if isinstance(candidate, str) and _CANDIDATE.fullmatch(candidate) and (host == node or not found["candidate"]):
            found["candidate"] = candidate
    return found
