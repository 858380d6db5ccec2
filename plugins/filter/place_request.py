# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose the host and GPUs of one request."""

from __future__ import annotations

DOCUMENTATION = r"""
name: place_request
short_description: Choose the host and GPUs for one request
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Chooses the place after which the usual requests can use the most of the remaining GPUs. No workload moves.
  - Uses only its arguments, so it contacts no host and reserves nothing.
requirements:
  - NumPy on the controller (C(requirements-rightsize.txt))
options:
  _input:
    description:
      - Hosts with their free room. C(name), C(model) (a name that requests can ask for), C(cpus), C(memory_mib), and C(gpus) with
        the free percentage of each GPU by index, such as V([100, 35]).
    type: list
    elements: dict
    required: true
  request:
    description:
      - C(cpus), C(memory_mib), C(gpus) (number of GPUs of one host), C(gpu_percent) (of each GPU, V(100) by default) and
        C(models) (the allowed models, all by default).
    type: dict
    required: true
  usual:
    description:
      - Requests that are usual in this fleet, in the same form. C(count) says how often each occurs (V(1) by default).
      - Without them, the host with the least remaining free GPU share is chosen.
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Show where a workload fits best
  ansible.builtin.debug:
    msg: "{{ free_hosts | openfleet.gpu.place_request({'cpus': 8, 'memory_mib': 32768, 'gpus': 1, 'gpu_percent': 25}) }}"
"""

RETURN = r"""
_value:
  description:
    - C(host) and C(gpus) (indices), and an empty C(reason). Without a place, C(host) is empty and C(reason) says why and what
      to do.
  type: dict
  sample:
    host: h100-01
    gpus: [1]
    reason: ''
"""

from typing import Any, Callable, Mapping, Sequence

from ansible.errors import AnsibleFilterError

_HOST = ("name", "model", "cpus", "memory_mib", "gpus")
_REQUEST = ("cpus", "memory_mib", "gpus", "gpu_percent", "models")


def place_request(
    hosts: Sequence[Mapping[str, Any]], request: Mapping[str, Any], usual: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """See DOCUMENTATION."""
    try:
        # ansible-core loads all filters of a collection for every task that uses one of them, and NumPy may be missing.
        from ..plugin_utils import numerics
        from ..plugin_utils.packing.model import PackingError
        from ..plugin_utils.packing.online import Demand, Host, Online

        numerics.require()
    except ImportError as error:
        raise AnsibleFilterError("place_request: %s. Install requirements-rightsize.txt." % error) from error

    def demand(where: str, values: Mapping[str, Any], more: Sequence[str] = ()) -> Demand:
        _check_keys(where, values, (*_REQUEST, *more), ("cpus", "memory_mib"))
        cpu, share = _number(where, values, "cpus", 1000), _number(where, values, "gpu_percent", 10, 100)
        memory, gpus = _number(where, values, "memory_mib"), _number(where, values, "gpus", 1, 0)
        return Demand(cpu, memory, gpus, share, tuple(values.get("models", ())))

    free = []
    for number, host in enumerate(hosts):
        where = "host %s" % host.get("name", number)
        _check_keys(where, host, _HOST, _HOST)
        gpus = tuple(_number(where, {"gpus": percent}, "gpus", 10) for percent in host["gpus"])
        cpu, memory = _number(where, host, "cpus", 1000), _number(where, host, "memory_mib")
        free.append(Host(host["name"], host["model"], cpu, memory, gpus))
    counts: dict[Demand, int] = {}
    for number, values in enumerate(usual):
        where = "usual request %d" % number
        each = demand(where, values, ("count",))
        counts[each] = counts.get(each, 0) + _number(where, values, "count", 1, 1)
    wanted = demand("request", request)
    try:
        online = Online(free, counts)
        place = online.place(wanted)
    except PackingError as error:
        raise AnsibleFilterError("place_request: %s" % error) from error
    if place is None:
        return {"host": "", "gpus": [], "reason": online.why_not(wanted)}
    return {"host": place.host, "gpus": list(place.gpus), "reason": ""}


def _check_keys(where: str, values: Mapping[str, Any], known: Sequence[str], needed: Sequence[str]) -> None:
    unknown = sorted(set(values) - set(known))
    missing = [key for key in needed if key not in values]
    if unknown or missing:
        wrong = "%s is unknown" % unknown[0] if unknown else "%s is missing" % missing[0]
        raise AnsibleFilterError(
            "place_request: %s: the keys are wrong (%s). Use %s." % (where, wrong, ", ".join(known))
        )


def _number(where: str, values: Mapping[str, Any], key: str, factor: int = 1, default: float | None = None) -> int:
    value = values.get(key, default)
    try:
        return round(float(value) * factor)
    except (TypeError, ValueError, OverflowError) as error:
        raise AnsibleFilterError("place_request: %s: %s is %r. Give a number." % (where, key, value)) from error


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"place_request": place_request}
