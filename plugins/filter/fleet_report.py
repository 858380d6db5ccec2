# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One report over the fleet from what each host's run of the mig module returned."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fleet_report
short_description: Sum up what the layouts of all hosts asked for, found and changed
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Takes the results of the module M(openfleet.gpu.layout) by host and returns rows and totals for the report templates.
  - A host without a driver counts with what was planned for it from the catalogue of GPU models.
  - Each host's result is checked first. One that no module returned is left out, and the host's C(note) says why.
options:
  _input:
    description: Result of the module by host name. A host without a result is reported as such.
    type: dict
    required: true
  planned:
    description: Whether the results come from a dry run, so that the summary speaks of what would be.
    type: bool
    default: false
  warnings:
    description: By host, what is to be told of it besides, as vulnerabilities of its driver.
    type: dict
    default: {}
  left_out:
    description: By host, why the run went on without it.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Print the totals
  ansible.builtin.debug:
    msg: "{{ {inventory_hostname: gpu_layout_result} | openfleet.gpu.fleet_report }}"
"""

RETURN = r"""
_value:
  description:
    - C(schema), the version of this form; C(hosts), by name, each with C(gpus) as the module returned them, C(gpus_expected),
      how many GPUs were planned from the catalogue of models since no driver answers, C(note)
      where there are none, C(warnings), and in C(unmanaged) a sentence for each GPU that had an entry and that no entry names
      any more; C(totals) with C(hosts), C(hosts_changed), C(hosts_left_out),
      C(gpus), C(gpus_changed), C(instances), C(create), C(destroy) and C(keep); C(summary), the totals in one line.
  type: dict
"""

from collections.abc import Mapping

from ..module_utils.model import short_label
from ..plugin_utils import host_results
from ..plugin_utils.host_values import HostValueError, text, without_host

SCHEMA = 1
FROM_CATALOGUE = "no NVIDIA driver yet; planned from the model catalogue"
#: Of a host.
MOST_WARNINGS = 20
DONE = (
    "{gpus} GPUs on {hosts} hosts, {instances} MIG instances: {create} created, {destroy} destroyed, {keep} kept; "
    "{gpus_changed} GPUs changed; {hosts_changed} of {hosts} hosts changed"
)
PLANNED = (
    "{gpus} GPUs on {hosts} hosts, {instances} MIG instances now: {create} to create, {destroy} to destroy, {keep} to keep; "
    "{gpus_changed} GPUs would change; {hosts_changed} of {hosts} hosts would change"
)


def fleet_report(results, planned=False, warnings=None, left_out=None):
    """See DOCUMENTATION."""
    told, left_out = warnings or {}, left_out or {}
    hosts = [
        _host(name, {"msg": "left out: %s" % left_out[name]} if name in left_out else result, told.get(name) or [])
        for name, result in results.items()
    ]
    totals = {count: sum(host["counts"].get(count) or 0 for host in hosts) for count in host_results.COUNTS}
    totals.update(
        hosts=len(hosts),
        hosts_left_out=len(left_out),
        hosts_changed=sum(bool(host["counts"].get("gpus_changed")) for host in hosts),
        gpus=sum(len(host["gpus"]) + host["gpus_expected"] for host in hosts),
        instances=sum(len(gpu["instances"]) for host in hosts for gpu in host["gpus"]),
    )
    expected = sum(bool(host["gpus_expected"]) for host in hosts)
    more = "; %d without a driver yet, planned from the model catalogue" % expected if expected else ""
    more += "; %d left out" % len(left_out) if left_out else ""
    unmanaged = sum(len(host["unmanaged"]) for host in hosts)
    more += "; %d GPU%s unmanaged" % (unmanaged, "" if unmanaged == 1 else "s") if unmanaged else ""
    return {
        "schema": SCHEMA,
        "hosts": hosts,
        "totals": totals,
        "summary": (PLANNED if planned else DONE).format(**totals) + more,
    }


def _host(name, result, warnings):
    try:
        # A host that the run did not come to has none.
        read = host_results.layout(name, result) if isinstance(result, Mapping) else {}
    except HostValueError as error:
        read = {"msg": str(error)}
    gpus, counts, expected = read.get("gpus") or [], read.get("counts") or {}, 0
    note = "" if gpus else without_host(name, read.get("msg") or "nothing was applied on this host")
    forecast = read.get("forecast") or {}
    if forecast.get("checked"):
        note, counts, expected = FROM_CATALOGUE, forecast.get("counts") or {}, forecast.get("gpus") or 0
    # They name versions as the host reports them.
    warned = [text(each) for each in warnings[:MOST_WARNINGS]] if isinstance(warnings, (list, tuple)) else []
    return {
        "name": name,
        "gpus": gpus,
        "gpus_expected": expected,
        "counts": counts,
        "note": note,
        "warnings": warned,
        "unmanaged": [
            "%s: %s" % (short_label(gpu["index"], gpu["uuid"]), gpu["text"])
            for gpu in read.get("unmanaged") or []
            if gpu["action"] != "release"
        ],
    }


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"fleet_report": fleet_report}
