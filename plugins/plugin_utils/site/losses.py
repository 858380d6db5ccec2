# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide whether a run continues without the hosts that have no plan. Pure.

A host is a loss if the cause is its own fault (unreachable, failing driver, GPUs in use). `gpu_site_tolerate` limits
the number of tolerated losses. If the cause is an error in the host's layout or variables, the run never continues,
because the inventory must be corrected first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Mapping, Sequence

from ..equal_errors import group
from ..host_values import text, without_host

#: Maximum number of hosts in one sentence. The report lists all hosts.
_NAMED = 20
#: A failed result with one of these keys is the host's fault and not the inventory's. This collection's modules set
#: `host_fault` (runner.details), and Ansible the other keys.
_HOST_FAULTS = ("host_fault", "unreachable", "timedout", "module_stderr", "module_stdout")
#: Ansible's messages about a password to become root, the only sign of this problem in a result.
_BECOME_PASSWORD = re.compile(r"(?:^|: )(?:Missing|Incorrect) [a-z]{1,16} password\.?$", re.MULTILINE)
# sudo's messages, which Ansible returns as the module's output if no password is set.
_SUDO_ASKS = re.compile(r"sudo: a (?:password|terminal) is required")
_UNREACHABLE = "could not be reached"
#: Text in place of an error that the task has already printed.
_PRINTED = "its error is above"
_CURE_OF_ALL = (
    "Fix these hosts and run again. If none can be reached, check the names in the inventory and the SSH login: "
    "ansible -i INVENTORY gpu_hosts -m ansible.builtin.ping."
)
_CURE_OF_BECOME = (
    "The account needs a password to become root on %s. Run with --ask-become-pass, set ansible_become_password, or allow the "
    "account in sudoers without a password (NOPASSWD). "
)
_TOLERANCE = re.compile(r"\s*([0-9]{1,9})\s*(%?)\s*")


@dataclass(frozen=True)
class Losses:
    """The hosts without a plan.

    `left_out` has a one-line reason for each host, `words` a shorter one for a message that follows the host's error.
    `refusal` is why the run ends, or "" if it continues. `errors` has the errors that no task has printed yet, with one
    line for hosts with equal errors.
    """

    left_out: Mapping[str, str]
    words: Mapping[str, str]
    refusal: str
    errors: Sequence[str] = ()


def tolerated(value: Any, hosts: int) -> int:
    """Return how many hosts without a plan are tolerated.

    `value` is a number, or a percentage of `hosts`. The result is rounded down. Raises ValueError for any other value.
    """
    found = None if isinstance(value, (bool, float)) else _TOLERANCE.fullmatch(str(value))
    if found is None or (found.group(2) and int(found.group(1)) > 100):
        raise ValueError("%s is neither a number of hosts nor a percentage from 0%% to 100%%" % text(value, 60))
    return hosts * int(found.group(1)) // 100 if found.group(2) else int(found.group(1))


@dataclass(frozen=True)
class Failure:
    """The reason, in one line, why a host has no plan.

    `host_fault`: whether the cause is the host and not the inventory. `become`: whether the host requires a password to
    become root.
    """

    reason: str
    host_fault: bool
    become: bool = False


def failure(host: str, result: Any) -> Failure:
    """Return a host's failure from a failed result or the text of a check.

    A missing or empty result means that the host was unreachable.
    """
    if isinstance(result, str):
        return Failure(_reason(host, result.strip()), False)
    if not isinstance(result, Mapping) or not result or result.get("unreachable"):
        return Failure(_UNREACHABLE, True)
    message = _message(result)
    lines = message.splitlines()
    if isinstance(result.get("timedout"), Mapping):
        # Ansible's message about the keyword `timeout` does not say that the host hangs.
        lines = ["it did not answer within %s s" % result["timedout"].get("period")]
    # Do not search messages of roles' assertions and this collection's modules for texts of Ansible and sudo, because
    # they may quote the inventory.
    by_ansible = not {"assertion", "problem", "host_fault"}.intersection(result)
    fault = any(result.get(key) for key in _HOST_FAULTS)
    become = by_ansible and _BECOME_PASSWORD.search(message) is not None
    said = "%s\n%s" % (result.get("module_stdout") or "", result.get("module_stderr") or "")
    become = become or _SUDO_ASKS.search(said) is not None
    return Failure(_reason(host, "\n".join(lines)), fault or become, become)


def _reason(host: str, message: str) -> str:
    """Return an error's first line without the host's name."""
    return text(without_host(host, message.splitlines()[0]), 300) if message else "no reason given"


def _message(result: Mapping[str, Any]) -> str:
    """Return a result's error message.

    If the plan was made with the catalogue of GPU models, `forecast` has the problems.
    """
    forecast = result.get("forecast")
    problems = forecast.get("problems") if isinstance(forecast, Mapping) else None
    return "\n".join(map(str, problems)) if problems else str(result.get("msg") or "").strip()


def _unprinted(host: str, result: Any) -> str:
    """Return the error in the result of a task that did not fail but found an error.

    Ansible does not print such an error. Returns "" if the task failed.
    """
    if isinstance(result, str):
        return result
    if not isinstance(result, Mapping) or result.get("failed") or result.get("unreachable"):
        return ""
    return _message(result)


def losses(hosts: Sequence[str], planned: Sequence[str], failures: Mapping[str, Any], tolerate: Any) -> Losses:
    """Compare the hosts that need a plan with those that have one.

    `failures` has the failed result of each host without a plan (see `failure`). If no host has a plan, no loss is
    tolerated. Raises ValueError if `tolerate` is invalid.
    """
    errors = [str(equal) for equal in group((host, _unprinted(host, failures.get(host))) for host in hosts)]
    return replace(_decide(hosts, planned, failures, tolerate), errors=[text(error, 3000) for error in errors])


def _decide(hosts: Sequence[str], planned: Sequence[str], failures: Mapping[str, Any], tolerate: Any) -> Losses:
    with_plan = set(planned)
    lost = [host for host in hosts if host not in with_plan]
    found = {host: failure(host, failures.get(host)) for host in lost}
    left_out = {host: found[host].reason for host in lost}
    words = {host: reason if reason == _UNREACHABLE else _PRINTED for host, reason in left_out.items()}
    wrong = [host for host in lost if not found[host].host_fault]
    allowed = tolerated(tolerate, len(hosts))
    every = bool(lost) and len(lost) == len(hosts)
    if wrong:
        cure = "Correct the errors above and run again. gpu_site_tolerate does not cover errors in the layout or in variables."
        named = {host: words[host] for host in wrong}
        return Losses(left_out, words, _refusal(named, cure, len(wrong) == len(hosts)))
    become = [host for host in lost if found[host].become]
    password = _CURE_OF_BECOME % _shortened(become) if become else ""
    if every:
        cure = password + ("" if len(become) == len(lost) else _CURE_OF_ALL)
        return Losses(left_out, words, _refusal(words, cure.strip(), every))
    if len(lost) > allowed:
        cure = "Fix %s, exclude %s (--limit '%s'), or allow %d host%s without a plan (gpu_site_tolerate: %d)." % (
            *(("this host", "it") if len(lost) == 1 else ("these hosts", "them")),
            ":".join("!%s" % host for host in lost[:_NAMED]),
            len(lost),
            "" if len(lost) == 1 else "s",
            len(lost),
        )
        return Losses(left_out, words, _refusal(words, password + cure, every))
    return Losses(left_out, words, "")


def _shortened(hosts: Sequence[str]) -> str:
    """Return the hosts as text: the first _NAMED names, and the number of others."""
    named = list(hosts[:_NAMED])
    return ", ".join(named if len(hosts) <= _NAMED else [*named, "%d more" % (len(hosts) - _NAMED)])


def _refusal(words: Mapping[str, str], cure: str, every: bool) -> str:
    named = ["%s (%s)" % named for named in list(words.items())[:_NAMED]]
    if len(words) > _NAMED:
        named.append("%d more" % (len(words) - _NAMED))
    return "No plan for %s%s. %s Nothing was changed." % ("any host: " if every else "", ", ".join(named), cure)
