# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide whether a run goes on without the hosts that have no plan. Pure.

A host that cannot be reached, whose driver fails or whose GPUs are in use is a loss, which `gpu_site_tolerate` allows for. A
host whose layout or variables are wrong is never tolerated: the inventory is to be corrected first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from ..host_values import text, without_host

#: Of hosts named in one sentence; a report has all of them.
_NAMED = 20
#: Results that have one of these come from the host's state, not from what the inventory says.
_OF_THE_HOST = ("nvml", "busy", "unreachable", "module_stderr", "module_stdout")
_CURE_OF_ALL = (
    "Mend them and run again. Where none can be reached, look at the inventory's names and the SSH login: "
    "ansible gpu_hosts -m ansible.builtin.ping."
)
_TOLERANCE = re.compile(r"\s*([0-9]{1,9})\s*(%?)\s*")


@dataclass(frozen=True)
class Losses:
    """The hosts without a plan, each with the reason in one line, and why the run does not go on; empty where it does."""

    left_out: Mapping[str, str]
    refusal: str


def tolerated(value: Any, hosts: int) -> int:
    """Return how many of so many hosts may be lost: a number, or a percentage, rounded down.

    Raises ValueError where the value is neither.
    """
    found = None if isinstance(value, (bool, float)) else _TOLERANCE.fullmatch(str(value))
    if found is None or (found.group(2) and int(found.group(1)) > 100):
        raise ValueError("%s is neither a number of hosts nor a percentage from 0%% to 100%%" % text(value, 60))
    return hosts * int(found.group(1)) // 100 if found.group(2) else int(found.group(1))


def losses(hosts: Sequence[str], planned: Sequence[str], failures: Mapping[str, Any], tolerate: Any) -> Losses:
    """Hold the hosts that were to be planned against those that have a plan.

    `failures` has the result of the failed task by host; a host without one, or with an empty one, could not be
    reached. Raises ValueError for a `tolerate` that `tolerated` refuses. Where no host has a plan, nothing is tolerated.
    """
    with_plan = set(planned)
    lost = [host for host in hosts if host not in with_plan]
    left_out = {host: _reason(host, failures.get(host)) for host in lost}
    wrong = [host for host in lost if failures.get(host) and not _is_of_the_host(failures[host])]
    allowed = tolerated(tolerate, len(hosts))
    every = bool(lost) and len(lost) == len(hosts)
    if wrong:
        cure = "Correct that first: what may be a mistake in the inventory is never tolerated."
        return Losses(left_out, _refusal({host: left_out[host] for host in wrong}, cure, len(wrong) == len(hosts)))
    if every:
        return Losses(left_out, _refusal(left_out, _CURE_OF_ALL, every))
    if len(lost) > allowed:
        cure = "Mend them, leave them out (--limit '%s'), or go on without so many hosts (gpu_site_tolerate: %d)." % (
            ":".join("!%s" % host for host in lost[:_NAMED]),
            len(lost),
        )
        return Losses(left_out, _refusal(left_out, cure, every))
    return Losses(left_out, "")


def _refusal(reasons: Mapping[str, str], cure: str, every: bool) -> str:
    named = ["%s (%s)" % (host, reason.rstrip(".")) for host, reason in list(reasons.items())[:_NAMED]]
    if len(reasons) > _NAMED:
        named.append("%d more" % (len(reasons) - _NAMED))
    return "No plan for %s%s. %s Nothing was changed." % ("any host: " if every else "", ", ".join(named), cure)


def _is_of_the_host(result: Any) -> bool:
    return isinstance(result, Mapping) and any(result.get(key) for key in _OF_THE_HOST)


def _reason(host: str, result: Any) -> str:
    if not isinstance(result, Mapping) or not result or result.get("unreachable"):
        return "could not be reached"
    lines = str(result.get("msg") or "").strip().splitlines()
    return text(without_host(host, lines[0]), 300) if lines else "no reason given"
