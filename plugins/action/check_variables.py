# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Implement openfleet.gpu.check_variables on the controller."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Iterable, Mapping, Sequence

from ansible.errors import AnsibleError

from ..module_utils.errors import Problem
from ..modules.check_variables import DOCUMENTATION
from ..plugin_utils.controller_action import ControllerAction
from ..plugin_utils.equal_errors import shortened
from ..plugin_utils.plain import plain
from ..plugin_utils.variables import check, known

_OWN = "gpu_site_own_variables"
# Variables that must be equal on all hosts of the group, because site.yml uses the value of the group's first host.
_FLEET_WIDE = {"gpu_site_tolerate": "gpu_hosts", "gpu_site_waves": "gpu_hosts"}
_WORD = re.compile(r"[A-Za-z_]\w*")


class ActionModule(ControllerAction):
    documentation = DOCUMENTATION

    def choices(self) -> dict[str, Sequence[str]]:
        return {"of": known.owners()}

    def work(self, args: dict[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
        if args["collected"] is not None:
            return _together(args["collected"])
        names_of = (name for owner in args["of"] for name in known.of_owner(owner))
        checked = dict.fromkeys(name for name in names_of if name not in args["unread"])
        values, problems = self._values(variables, [*checked, *args["required"], _OWN])
        own = values.get(_OWN)
        own = [glob for glob in own if isinstance(glob, str)] if isinstance(own, list) else []
        names = [str(name) for name in variables]
        misspelt = {name: check.misspelling(name, names, own) for name in args["required"] if name not in variables}
        problems += [check.missing(name, other) for name, other in misspelt.items()]
        empty = [name for name in args["required"] if name in values and values[name] is None]
        problems += map(check.empty, empty)
        problems += check.check({name: value for name, value in values.items() if name not in empty})
        problems += self._differing(set(checked), values, variables)
        # The message about a missing variable already has its misspelt name.
        unknown = [
            # A name in another variable's template is the inventory's own.
            replace(entry, error=False) if entry.by_words and _is_read(entry.name, variables) else entry
            for entry in check.unknown(names, own)
            if entry.name not in misspelt.values()
        ]
        messages = [str(problem) for problem in problems] + [str(entry) for entry in unknown if entry.error]
        result = {"problems": messages, "suspicions": [str(entry) for entry in unknown if not entry.error]}
        return {"changed": False, **result} if args["collect"] else _together({variables["inventory_hostname"]: result})

    def _values(self, variables: Mapping[str, Any], names: Iterable[str]) -> tuple[dict[str, Any], list[Problem]]:
        """Return the inventory's values, and a problem for each unresolvable value."""
        values: dict[str, Any] = {}
        problems = []
        for name in dict.fromkeys(names):
            if name not in variables:
                continue
            try:
                values[name] = plain(self._templar.template(variables[name]))
            except AnsibleError as error:
                # Facts are not available yet. The role that gathers them validates such a value.
                if not _needs_facts(variables[name], variables):
                    cure = "Define the variables that it uses, or write the value itself."
                    problems.append(Problem(name, " ".join(str(error).split()), cure))
        return values, problems

    @staticmethod
    def _differing(checked: set[str], values: Mapping[str, Any], variables: Mapping[str, Any]) -> list[Problem]:
        """Return problems with fleet-wide variables that differ from the first host's."""
        problems, host = [], variables["inventory_hostname"]
        for name, group in _FLEET_WIDE.items():
            if name not in checked:
                continue
            first = next(iter(variables.get("groups", {}).get(group, [])), None)
            if first in (None, host) or host not in variables["groups"][group]:
                continue
            first_host = variables["hostvars"][first]
            try:
                same = (plain(first_host[name]) if name in first_host else None) == values.get(name)
            except AnsibleError:
                # The check of the first host reports this problem.
                same = True
            if not same:
                cure = "site.yml uses one value for all hosts. Set it in group_vars/%s.yml." % group
                problems.append(Problem(name, "value differs from host %s" % first, cure))
        return problems


def _together(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Combine the results of all hosts into one line per message with its hosts."""
    problems, suspicions = (
        ["%s: %s" % (shortened(hosts), message) for message, hosts in by_message(results, key).items()]
        for key in ("problems", "suspicions")
    )
    result: dict[str, Any] = {"changed": False, "warnings": suspicions}
    if problems:
        result.update(failed=True, msg="\n".join([*problems, "Nothing was changed."]))
    return result


def by_message(results: Mapping[str, Mapping[str, Any]], key: str) -> dict[str, list[str]]:
    """Return hosts by message. A host that was not checked has an empty result."""
    hosts: dict[str, list[str]] = {}
    for host, result in results.items():
        for message in result.get(key) or ():
            hosts.setdefault(str(message), []).append(host)
    return hosts


def _is_read(name: str, variables: Mapping[str, Any]) -> bool:
    """Return whether another variable's template contains the name as a word."""
    word = re.compile(r"\b%s\b" % re.escape(name))
    for other, value in variables.items():
        if other not in (name, "vars") and isinstance(value, (str, list, dict)):
            text = str(value)
            if "{{" in text and word.search(text):
                return True
    return False


def _needs_facts(value: Any, variables: Mapping[str, Any]) -> bool:
    """Return whether the value depends on facts, directly or through other variables."""
    seen: set[str] = set()
    pending = [str(value)]
    while pending:
        words = set(_WORD.findall(pending.pop())) - seen
        if "ansible_facts" in words:
            return True
        seen |= words
        pending += [str(variables[word]) for word in words if isinstance(variables.get(word), (str, list, dict))]
    return False
